package oidc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sallyport-ai/sallyport/identity"
)

// How an issuer's keys are kept.
const (
	refreshEvery = 10 * time.Minute // and up to half as much again
	retryEvery   = 30 * time.Second // after a failure, likewise
	maxStale     = 24 * time.Hour   // keys not renewed for so long are not believed
	fetchTimeout = 5 * time.Second
	maxKeysBytes = 256 << 10

	// A token with an unknown key ID may ask for a refresh, as after a rotation
	// it must; all tokens of an issuer together may do so this often.
	missBurst = 2
	missEvery = 30 * time.Second
	// An ID that the issuer did not know is not asked for again for a while.
	missTTL   = time.Minute
	maxMisses = 1024
)

var (
	errUnknownKey = errors.New("the issuer has no such key")
	errAllowance  = errors.New("the allowance for fetching keys is spent")
)

// keySet is one issuer's public keys. Each issuer has its own, so a key ID
// means nothing beyond its issuer.
type keySet struct {
	fetch      func(context.Context) ([]byte, error)
	algorithms []string
	clock      func() time.Time
	log        *slog.Logger
	allowance  *rate.Limiter

	confirmed atomic.Pointer[confirmed] // nil before the first fetch

	mu      sync.Mutex           // guards what follows
	misses  map[string]time.Time // key IDs that the issuer did not know, and when
	current *fetching            // nil when no fetch is under way
}

// confirmed is the keys as they were fetched. It does not change.
type confirmed struct {
	keys map[string]*key
	at   time.Time
}

// fetching is a fetch that any number of callers wait for.
type fetching struct {
	done chan struct{} // closed when err is set
	err  error
}

func newKeySet(config Config, options Options) (*keySet, error) {
	s := &keySet{
		algorithms: config.Algorithms,
		clock:      options.Clock,
		log:        options.Logger.With("issuer", config.URL),
		allowance:  rate.NewLimiter(rate.Every(missEvery), missBurst),
		misses:     make(map[string]time.Time),
	}
	if config.JWKSFile != "" {
		s.fetch = func(context.Context) ([]byte, error) { return readBounded(os.Open(config.JWKSFile)) }
		return s, nil
	}
	client := &http.Client{CheckRedirect: sameHost}
	s.fetch = func(ctx context.Context) ([]byte, error) { return get(ctx, client, config.JWKSURL) }
	return s, nil
}

// find returns the key with the ID given. A key that is known is never fetched
// again for a token's sake, whatever its signature turns out to be.
func (s *keySet) find(ctx context.Context, id string) (*key, error) {
	seen := s.confirmed.Load()
	if k, ok := s.lookUp(id); ok {
		return k, nil
	}
	if s.missed(id) {
		return nil, s.unknown()
	}
	// Whoever fetches fetches for all: a flood of unknown IDs can spend the
	// allowance, but a rotated key is found no later than when it is next
	// earned.
	err := s.renew(ctx, seen, func() bool { return s.allowance.AllowN(s.clock(), 1) })
	if k, ok := s.lookUp(id); ok {
		return k, nil
	}
	switch {
	case err == nil:
		s.miss(id)
	case !errors.Is(err, errAllowance):
		s.log.Warn("keys could not be renewed for a token with an unknown key", "error", err)
	}
	return nil, s.unknown()
}

// unknown is the answer for a key that is not there: bad if the set may be
// believed, unavailable if there is none to believe.
func (s *keySet) unknown() error {
	if err := s.usable(); err != nil {
		return err
	}
	return errUnknownKey
}

// lookUp finds a key among those that may be believed.
func (s *keySet) lookUp(id string) (*key, bool) {
	c := s.confirmed.Load()
	if c == nil || s.clock().Sub(c.at) > maxStale {
		return nil, false
	}
	k, ok := c.keys[id]
	return k, ok
}

// usable reports whether the keys may be believed now.
func (s *keySet) usable() error {
	age, ok := s.age()
	switch {
	case !ok:
		return fmt.Errorf("%w: the issuer's keys have not been fetched yet", identity.ErrUnavailable)
	case age > maxStale:
		return fmt.Errorf("%w: the issuer's keys were last fetched %v ago", identity.ErrUnavailable, age.Round(time.Second))
	}
	return nil
}

func (s *keySet) age() (time.Duration, bool) {
	c := s.confirmed.Load()
	if c == nil {
		return 0, false
	}
	return s.clock().Sub(c.at), true
}

// confirm puts fetched keys in place. A key that was there before stays the same
// one, so that tokens known to be good by it are known further.
func (s *keySet) confirm(keys map[string]*key) {
	if before := s.confirmed.Load(); before != nil {
		for id, k := range keys {
			if known := before.keys[id]; known != nil && known.equal(k) {
				keys[id] = known
			}
		}
	}
	s.confirmed.Store(&confirmed{keys: keys, at: s.clock()})
}

func (s *keySet) missed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.misses[id]
	return ok && s.clock().Sub(at) < missTTL
}

func (s *keySet) miss(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.misses) >= maxMisses {
		// Forgetting costs at most the allowance.
		clear(s.misses)
	}
	s.misses[id] = s.clock()
}

// refresh fetches the keys. Those that the issuer no longer lists are gone
// afterwards; a failure keeps the old ones.
func (s *keySet) refresh(ctx context.Context) error {
	return s.renew(ctx, s.confirmed.Load(), func() bool { return true })
}

// renew joins the fetch under way, or starts one if allowed. Where the keys are
// no longer those that the caller has seen, somebody else's fetch has just ended
// and serves it too.
func (s *keySet) renew(ctx context.Context, seen *confirmed, allowed func() bool) error {
	s.mu.Lock()
	call := s.current
	if call == nil {
		if s.confirmed.Load() != seen {
			s.mu.Unlock()
			return nil
		}
		if !allowed() {
			s.mu.Unlock()
			return errAllowance
		}
		call = &fetching{done: make(chan struct{})}
		s.current = call
		// The fetch is everybody's, so one caller's leaving must not end it.
		go s.run(context.WithoutCancel(ctx), call)
	}
	s.mu.Unlock()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *keySet) run(ctx context.Context, call *fetching) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	keys, err := s.load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.confirm(keys)
	}
	call.err = err
	s.current = nil
	close(call.done)
}

func (s *keySet) load(ctx context.Context) (map[string]*key, error) {
	raw, err := s.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	keys, skipped, err := parseKeys(raw, s.algorithms)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	if len(skipped) > 0 {
		s.log.Debug("keys of this issuer that are not used", "keys", skipped)
	}
	return keys, nil
}

// keepFresh renews the keys until ctx ends.
func (s *keySet) keepFresh(ctx context.Context) {
	_, ok := s.age()
	for {
		wait := retryEvery
		if ok {
			wait = refreshEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait/2)):
		}
		err := s.refresh(ctx)
		if ok = err == nil; !ok && ctx.Err() == nil {
			s.log.Warn("keys could not be renewed", "error", err)
		}
	}
}

func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("status %s", response.Status), response.Body.Close())
	}
	return readBounded(response.Body, nil)
}

// readBounded reads and closes a source of at most maxKeysBytes.
func readBounded(source io.ReadCloser, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer source.Close()
	raw, err := io.ReadAll(io.LimitReader(source, maxKeysBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxKeysBytes {
		return nil, fmt.Errorf("longer than %d bytes", maxKeysBytes)
	}
	return raw, nil
}

// sameHost lets a redirect stay where the configuration pointed.
func sameHost(request *http.Request, via []*http.Request) error {
	if len(via) > 3 || request.URL.Host != via[0].URL.Host || request.URL.Scheme != via[0].URL.Scheme {
		return errors.New("redirected to somewhere else")
	}
	return nil
}

// requireSecure admits https, and http to a loopback address. Names are not
// resolved, so "localhost" does not count.
func requireSecure(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return errors.New("not a URL")
	}
	ip := net.ParseIP(u.Hostname()) // nil, which is no loopback, if it is a name
	switch {
	case u.Host == "" || u.User != nil || u.Fragment != "":
		return errors.New("must be a URL with a host, without user and fragment")
	case u.Scheme == "https", u.Scheme == "http" && ip.IsLoopback():
		return nil
	}
	return errors.New("must be https; http is for loopback addresses alone")
}
