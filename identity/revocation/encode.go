package revocation

import (
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxMore bounds the members of an entry that are not known, in bytes.
const maxMore = 4096

// known are the members that every version knows.
var known = []string{"id", "issuer", "tenant", "subject", "client", "jti", "before", "made", "by", "reason"}

// members is an entry as it is written.
type members struct {
	Entry plain          `json:",embed"`
	More  jsontext.Value `json:",embed"` // all others
}

// plain is an entry without its methods, which would call themselves.
type plain Entry

// Encode writes an entry as one line of JSON, without its end.
func (e Entry) Encode() ([]byte, error) {
	return json.Marshal(members{Entry: plain(e), More: jsontext.Value(e.more)})
}

// MarshalJSON is Encode, for those who print entries.
func (e Entry) MarshalJSON() ([]byte, error) { return e.Encode() }

// Decode reads what [Entry.Encode] of this version or a later one wrote, and
// refuses anything else.
func Decode(raw []byte) (Entry, error) {
	var m members
	if err := json.Unmarshal(raw, &m); err != nil || len(m.More) > maxMore {
		return Entry{}, errors.New("revocation: not an entry")
	}
	e := Entry(m.Entry)
	if len(m.More) > 0 {
		var err error
		e.more = string(m.More)
		if e.wide, err = critical(m.More); err != nil {
			return Entry{}, err
		}
	}
	return e, e.check()
}

// critical reports whether a member must be understood and is not known.
func critical(more jsontext.Value) (bool, error) {
	var unknown map[string]jsontext.Value
	if err := json.Unmarshal(more, &unknown); err != nil {
		return false, errors.New("revocation: not an entry")
	}
	list, ok := unknown["crit"]
	if !ok {
		return false, nil
	}
	var names []string
	if err := json.Unmarshal(list, &names); err != nil || len(names) == 0 {
		return false, errors.New("revocation: crit is not a list of names")
	}
	wide := false
	for _, name := range names {
		_, there := unknown[name]
		switch {
		case slices.Contains(known, name):
		case there && name != "crit":
			wide = true
		default:
			return false, errors.New("revocation: crit names a member that is not there")
		}
	}
	return wide, nil
}
