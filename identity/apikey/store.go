package apikey

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
)

// Config says where the keys are.
type Config struct {
	// File is the store, PepperFile what it was made under. Both must be there.
	// The pepper is read once.
	File       string
	PepperFile string
	// Clock tells the time; nil is time.Now.
	Clock func() time.Time
	// Logger hears of each new state of the file; nil discards.
	Logger *slog.Logger
}

// Store is a store of keys at work. It is safe for concurrent use. One that
// cannot be read refuses keys and makes no gateway unready: gateways share the
// file, so that all of them would go, and callers with other credentials with
// them.
type Store struct {
	file   string
	pepper Pepper
	clock  func() time.Time
	log    *slog.Logger

	mu      sync.Mutex // guards what follows
	seen    os.FileInfo
	settled bool // seen is old enough that a later change must show
	keys    map[string]*Record
	err     error // why there are no keys
}

// New opens a store. It must be readable and made under the pepper.
func New(config Config) (*Store, error) {
	pepper, err := ReadPepper(config.PepperFile)
	if err != nil {
		return nil, fmt.Errorf("API keys: %w", err)
	}
	s := &Store{file: config.File, pepper: pepper, clock: config.Clock, log: config.Logger}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if _, err := s.current(); err != nil {
		return nil, fmt.Errorf("API keys: %w", err)
	}
	return s, nil
}

// errRefused is the one answer for every key that does not hold: unknown,
// wrong, expired and revoked look alike, and take alike long.
var errRefused = fmt.Errorf("API key: %w", identity.ErrBadCredential)

// nobody is held against a key that is not in the store.
var nobody = &Record{}

// Authenticate is the identity.Authenticator for API keys. A token that does not
// begin like one is left to other methods.
func (s *Store) Authenticate(_ context.Context, r *http.Request) (identity.Principal, error) {
	token, err := identity.PresentedToken(r)
	if err != nil {
		return identity.Principal{}, err
	}
	if !strings.HasPrefix(token.Value, prefix) {
		return identity.Principal{}, identity.ErrNoCredential
	}
	key, err := ParseKey(token.Value)
	if err != nil || token.Scheme != identity.Bearer {
		return identity.Principal{}, errRefused
	}
	keys, err := s.current()
	if err != nil {
		return identity.Principal{}, fmt.Errorf("API key: %w: %w", identity.ErrUnavailable, err)
	}
	record, known := keys[key.ID()]
	if !known {
		record = nobody
	}
	mac := s.pepper.mac(key.Secret(), record)
	right := subtle.ConstantTimeCompare(mac[:], record.mac[:]) == 1
	if active := record.State(s.clock()) == Active; !known || !right || !active {
		return identity.Principal{}, errRefused
	}
	return identity.Principal{
		Tenant:      record.Tenant,
		Subject:     record.Subject,
		Kind:        record.Kind,
		Method:      identity.APIKey,
		Issuer:      Issuer,
		Scopes:      record.Scopes,
		ClientID:    record.Client,
		Fingerprint: fingerprint(record.ID),
		Expires:     record.Expires,
	}, nil
}

// racy is the age from which a file's time is believed to tell it from any later
// state: a second change within one tick of the file system's clock would not
// show.
const racy = 100 * time.Millisecond

// current returns the keys as the file has them now.
func (s *Store) current() (map[string]*Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(s.file)
	if err != nil {
		if s.seen != nil || s.err == nil {
			s.log.Error("API keys are refused: their store is not there", "file", s.file, "error", err)
		}
		s.seen, s.keys, s.err = nil, nil, err
		return nil, err
	}
	if s.seen != nil && s.settled && same(s.seen, info) {
		return s.keys, s.err
	}
	changed := s.seen == nil || !same(s.seen, info)
	s.seen, s.settled = info, time.Since(info.ModTime()) > racy
	s.keys, s.err = s.load()
	switch {
	case !changed:
	case s.err != nil:
		s.log.Error("API keys are refused: their store is broken", "file", s.file, "error", s.err)
	default:
		s.log.Info("API keys loaded", "file", s.file, "keys", len(s.keys))
	}
	return s.keys, s.err
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (s *Store) load() (map[string]*Record, error) {
	h, records, err := readFile(s.file)
	if err != nil {
		return nil, err
	}
	if h.Pepper != s.pepper.name() {
		return nil, fmt.Errorf("%s: %w", s.file, errPepper)
	}
	keys := make(map[string]*Record, len(records))
	for _, r := range records {
		keys[r.ID] = r
	}
	return keys, nil
}

var errPepper = errors.New("made under another pepper")

func readFile(path string) (header, []*Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return header{}, nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return header{}, nil, fmt.Errorf("read %s: %w", path, err)
	}
	h, records, err := decode(raw)
	if err != nil {
		return header{}, nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, records, nil
}

// Read returns the records of a store, in the order in which they were made. It
// needs no pepper.
func Read(path string) ([]*Record, error) {
	_, records, err := readFile(path)
	return records, err
}
