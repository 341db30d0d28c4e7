// Package valkey keeps in one Valkey or Redis server what the gateways of a fleet
// must know of each other's callers: DPoP proofs that were used, and tokens that
// were revoked.
//
// Start at [New]; [Store.Spend] and [Store] as a revocation.Source are what other
// packages take. Keys begin with the configured prefix:
//
//	<prefix>proof:<base64url of SHA-256>   1, until the proof would be refused anyway
//	<prefix>revocations                    hash of entry ID to entry (JSON)
//	<prefix>revocations:epoch              another text whenever that hash changes
//
// It is one server, or a name behind which there is one at a time. What a failed
// primary had not yet copied is lost: a proof of that moment could be used once
// more, and revocations are put back by the gateways that knew them.
package valkey

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sallyport-ai/sallyport/identity/dpop"
)

// Config says where the server is.
type Config struct {
	// URL is rediss://host:port/database, redis:// to a loopback address, or
	// unix:///path. It holds no secret. Empty: there is no server.
	URL string `yaml:"url"`
	// Username and PasswordFile are who we are there; both may be empty.
	Username     string `yaml:"username"`
	PasswordFile string `yaml:"password_file"`
	// CAFile holds the authorities of a rediss server; empty: the system's.
	CAFile string `yaml:"ca_file"`
	// Prefix begins every key; empty is "sallyport:".
	Prefix string `yaml:"prefix"`
	// Timeout bounds each question; 0 is 100 ms.
	Timeout time.Duration `yaml:"timeout"`
	// WhenDown is what becomes of callers while the server does not answer: deny,
	// which is also what empty means, or local, which goes by what this process
	// knows.
	WhenDown string `yaml:"when_down"`
}

const (
	defaultPrefix  = "sallyport:"
	defaultTimeout = 100 * time.Millisecond
	// rest is how long a server that did not answer is left alone by those who
	// can do without it.
	rest = time.Second
)

// Check returns every problem of c, joined, each as "field: what is wrong". It
// asks nobody.
func (c Config) Check() error {
	var problems []error
	if _, err := c.options(); err != nil {
		problems = append(problems, fmt.Errorf("url: %w", err))
	}
	if c.Timeout < 0 || c.Timeout > 5*time.Second {
		problems = append(problems, fmt.Errorf("timeout: %v is not between 0 and 5s", c.Timeout))
	}
	if c.WhenDown != "" && c.WhenDown != "deny" && c.WhenDown != "local" {
		problems = append(problems, fmt.Errorf("when_down: %q is not one of deny, local", c.WhenDown))
	}
	return errors.Join(problems...)
}

// options reads the URL.
func (c Config) options() (*redis.Options, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	ip := net.ParseIP(u.Hostname()) // nil, which is no loopback, if it is a name
	switch {
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("must hold no user, query and fragment")
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
	case u.Scheme == "rediss" && u.Host != "", u.Scheme == "redis" && ip.IsLoopback():
	default:
		return nil, errors.New("want rediss://host:port, unix:///path, or redis:// to a loopback address")
	}
	return redis.ParseURL(c.URL)
}

// Options are what a store tells others. The zero value is usable.
type Options struct {
	// Changed hears that the server stopped answering, and why, or answers again
	// (nil). It must not wait. nil: nobody.
	Changed func(err error)
	// Logger hears of the same; nil discards.
	Logger *slog.Logger
}

// Store is a client of the server. It is safe for concurrent use, but for Read
// and Revoke.
type Store struct {
	client  *redis.Client
	prefix  string
	timeout time.Duration
	local   bool
	options Options
	memory  *dpop.Memory // of what this process itself has seen

	cache revocations // owned by who reads or revokes, one at a time

	mu    sync.Mutex // guards what follows
	err   error      // why it is down; nil while it answers
	after time.Time  // when it may be asked again by those who can do without
}

// New makes a client. It does not connect yet: a server that is down is no error
// at start, so that WhenDown says what becomes of callers.
func New(config Config, options Options) (*Store, error) {
	if err := config.Check(); err != nil {
		return nil, fmt.Errorf("valkey: %w", err)
	}
	o, err := config.options()
	if err != nil {
		return nil, fmt.Errorf("valkey: %w", err)
	}
	if o.Username = config.Username; config.PasswordFile != "" {
		password, err := os.ReadFile(config.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("valkey: password: %w", err)
		}
		o.Password = strings.TrimSpace(string(password))
	}
	if o.TLSConfig != nil {
		o.TLSConfig.MinVersion = tls.VersionTLS12
		if o.TLSConfig.RootCAs, err = authorities(config.CAFile); err != nil {
			return nil, err
		}
	}
	timeout := config.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	o.ContextTimeoutEnabled = true
	o.DialerRetries = 1
	o.MaxRetries = -1 // a mark that was set and not acknowledged must not be asked for again
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		client: redis.NewClient(o), prefix: config.Prefix, timeout: timeout, local: config.WhenDown == "local",
		options: options, memory: dpop.NewMemory(0, nil),
	}
	if s.prefix == "" {
		s.prefix = defaultPrefix
	}
	return s, nil
}

// authorities reads a PEM file; nil means the system's.
func authorities(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("valkey: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("valkey: %s holds no certificate", path)
	}
	return pool, nil
}

// Close ends the connections.
func (s *Store) Close() error { return s.client.Close() }

// GoesOn reports whether callers are judged without the server while it is down.
func (s *Store) GoesOn() bool { return s.local }

// Err is why the server does not answer, or nil.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Spend is a dpop.Spend: no two gateways that ask the same server take one proof.
// Without an answer it is an error, or, where WhenDown is local, what this process
// alone knows.
func (s *Store) Spend(ctx context.Context, of dpop.Holder, proof [32]byte, until time.Time) (first bool, err error) {
	if first, err := s.memory.Spend(ctx, of, proof, until); err != nil || !first {
		return first, err
	}
	if s.resting() {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	// A little longer than the proof lasts by our clock; the server's is another.
	left := max(time.Until(until), 0) + 10*time.Second
	key := s.prefix + "proof:" + base64.RawURLEncoding.EncodeToString(proof[:])
	err = s.client.SetArgs(ctx, key, 1, redis.SetArgs{Mode: "NX", TTL: left}).Err()
	if errors.Is(err, redis.Nil) {
		s.answered(ctx, nil)
		return false, nil
	}
	s.answered(ctx, err)
	if err != nil && !s.local {
		return false, err
	}
	return true, nil
}

// resting reports whether the server is down and left alone until s.after.
func (s *Store) resting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local && s.err != nil && time.Now().Before(s.after)
}

// answered notes whether the server did. A caller that left is not the server's
// silence.
func (s *Store) answered(ctx context.Context, err error) {
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return
	}
	s.mu.Lock()
	was := s.err
	s.err, s.after = err, time.Now().Add(rest)
	s.mu.Unlock()
	if (was == nil) == (err == nil) {
		return
	}
	if err != nil {
		s.options.Logger.Error("Valkey does not answer", "when_down", map[bool]string{true: "local", false: "deny"}[s.local], "error", err)
	} else {
		s.options.Logger.Info("Valkey answers again")
	}
	if s.options.Changed != nil {
		s.options.Changed(err)
	}
}
