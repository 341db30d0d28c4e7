package relay

import (
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"sync"

	"github.com/sallyport-ai/sallyport/routing/blockid"
)

const (
	// saltKeySize is the size of the key salts are derived from, in bytes.
	saltKeySize = 32
	// knownSalts bounds how many (domain, model) pairs are remembered. Blocks
	// of one that was forgotten are not reported.
	knownSalts = 64 << 10
)

// salter derives cache salts and knows which ones it gave out:
//
//	cache_salt = base64url(HMAC-SHA-256(K, lenprefix(domain, model)))
type salter struct {
	key []byte

	mu    sync.Mutex
	known map[string]*list.Element // by salt
	order *list.List               // most recently used first; of origin
	limit int
}

type origin struct{ salt, model, domain string }

// newSalter uses the key in file, or a random one where file is empty. A file
// is for engines that share a cache tier, whose relays must agree.
func newSalter(file string) (*salter, error) {
	key := make([]byte, saltKeySize)
	rand.Read(key) // never fails
	if file != "" {
		var err error
		if key, err = readSaltKey(file); err != nil {
			return nil, err
		}
	}
	return &salter{key: key, known: make(map[string]*list.Element), order: list.New(), limit: knownSalts}, nil
}

func readSaltKey(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("salt key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("salt key: %s is open to others (mode %04o)", file, info.Mode().Perm())
	}
	key, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("salt key: %w", err)
	}
	if len(key) != saltKeySize {
		return nil, fmt.Errorf("salt key: %s has %d bytes, want %d random ones", file, len(key), saltKeySize)
	}
	return key, nil
}

// secret derives a salt and tells nobody.
func (s *salter) secret(domain, model string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write(blockid.LenPrefix(domain, model))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// salt derives a salt and remembers whose it is.
func (s *salter) salt(domain, model string) string {
	salt := s.secret(domain, model)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.known[salt]; ok {
		s.order.MoveToFront(e)
		return salt
	}
	s.known[salt] = s.order.PushFront(origin{salt, model, domain})
	if s.order.Len() > s.limit {
		if o, ok := s.order.Remove(s.order.Back()).(origin); ok {
			delete(s.known, o.salt)
		}
	}
	return salt
}

// resolve says whose salt this is.
func (s *salter) resolve(salt string) (model, domain string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.known[salt]
	if !ok {
		return "", "", false
	}
	s.order.MoveToFront(e)
	o, ok := e.Value.(origin)
	return o.model, o.domain, ok
}
