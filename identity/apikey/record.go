package apikey

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sallyport-ai/sallyport/identity"
)

// Limits of a store.
const (
	maxKeys      = 1 << 16
	maxFileBytes = 32 << 20
	maxScopes    = 64
	maxLabel     = 256 // bytes
)

// MaxLife is the longest that a key may live.
const MaxLife = 366 * 24 * time.Hour

// Record is what the store says of one key. Times are in UTC, to the second.
type Record struct {
	ID      string        `json:"id"`
	Tenant  string        `json:"tenant"`
	Subject string        `json:"subject"`
	Kind    identity.Kind `json:"kind"`
	Client  string        `json:"client,omitzero"` // as registrations in policy data name the holder
	Scopes  []string      `json:"scopes,omitempty"`
	Label   string        `json:"label,omitzero"` // for people: what the key is for
	Created time.Time     `json:"created"`
	Expires time.Time     `json:"expires"`
	Revoked time.Time     `json:"revoked,omitzero"`
	MAC     string        `json:"mac"` // hex

	mac [sha256.Size]byte
}

// State is what a key is good for at a time.
type State string

// The states.
const (
	Active  State = "active"
	Expired State = "expired"
	Revoked State = "revoked"
)

// State is the key's state at a time.
func (r *Record) State(now time.Time) State {
	switch {
	case !r.Revoked.IsZero():
		return Revoked
	case !now.Before(r.Expires):
		return Expired
	}
	return Active
}

// check reports everything that is wrong with a record.
func (r *Record) check() error {
	var problems []error
	fail := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	fail(len(r.ID) != idDigits || !isDigits(r.ID), "id %.32q: want %d letters and digits", r.ID, idDigits)
	fail(!identity.IsIdentifier(r.Tenant), "tenant %.64q: want a short name without spaces", r.Tenant)
	fail(!identity.IsName(r.Subject), "subject %.64q: want a printable name", r.Subject)
	fail(r.Client != "" && !identity.IsIdentifier(r.Client), "client %.64q: want a short name without spaces", r.Client)
	switch r.Kind {
	case identity.Human, identity.Workload, identity.Agent:
	default:
		fail(true, "kind %.32q: want human, workload or agent", r.Kind)
	}
	fail(len(r.Scopes) > maxScopes, "%d scopes: at most %d", len(r.Scopes), maxScopes)
	for _, scope := range r.Scopes {
		fail(!identity.IsIdentifier(scope), "scope %.64q: want a word", scope)
	}
	fail(len(r.Label) > maxLabel || r.Label != "" && !identity.IsName(r.Label), "label: want at most %d printable bytes", maxLabel)
	fail(r.Created.Unix() <= 0 || !r.Expires.After(r.Created), "it expires before it is made")
	fail(r.Expires.Sub(r.Created) > MaxLife, "it lives longer than %d days", MaxLife/(24*time.Hour))
	for _, t := range []time.Time{r.Created, r.Expires, r.Revoked} {
		fail(t.Nanosecond() != 0, "%v: a fraction of a second", t)
	}
	return errors.Join(problems...)
}

// header is the first line of a store.
type header struct {
	Version int    `json:"sallyport_api_keys"`
	Pepper  string `json:"pepper"`
}

const version = 1

// strict makes the decoder refuse what it does not know; repeated and
// differently spelt names it refuses by itself.
var strict = json.RejectUnknownMembers(true)

// decode reads a whole store: every line must be right, or none counts.
func decode(raw []byte) (h header, records []*Record, err error) {
	if len(raw) > maxFileBytes {
		return h, nil, fmt.Errorf("longer than %d MiB", maxFileBytes>>20)
	}
	if !bytes.HasSuffix(raw, []byte("\n")) {
		return h, nil, errors.New("the last line has no end: the file is cut short")
	}
	n, seen := 0, make(map[string]bool)
	for line := range bytes.Lines(raw) {
		if n++; n == 1 {
			if err := json.Unmarshal(line, &h, strict); err != nil || h.Version != version || h.Pepper == "" {
				return h, nil, fmt.Errorf("line 1: no store of API keys of version %d", version)
			}
			continue
		}
		r := new(Record)
		if err := r.decode(line); err != nil {
			return h, nil, fmt.Errorf("line %d: %w", n, err)
		}
		if seen[r.ID] {
			return h, nil, fmt.Errorf("line %d: key %s stands twice", n, r.ID)
		}
		seen[r.ID] = true
		records = append(records, r)
	}
	if len(records) > maxKeys {
		return h, nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	return h, records, nil
}

func (r *Record) decode(line []byte) error {
	if err := json.Unmarshal(line, r, strict); err != nil {
		return err
	}
	if n, err := hex.Decode(r.mac[:], []byte(r.MAC)); err != nil || n != len(r.mac) || len(r.MAC) != 2*len(r.mac) {
		return errors.New("mac: want 64 hexadecimal digits")
	}
	return r.check()
}

// encode is the inverse of decode.
func encode(h header, records []*Record) ([]byte, error) {
	var out bytes.Buffer
	write := func(v any) error {
		line, err := json.Marshal(v)
		out.Write(append(line, '\n'))
		return err
	}
	if err := write(h); err != nil {
		return nil, fmt.Errorf("encode store: %w", err)
	}
	for _, r := range records {
		if err := write(r); err != nil {
			return nil, fmt.Errorf("encode key %s: %w", r.ID, err)
		}
	}
	return out.Bytes(), nil
}
