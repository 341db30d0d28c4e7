package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultTimeout bounds one evaluation. A decision takes tens of microseconds.
const DefaultTimeout = 50 * time.Millisecond

// Config says where policy comes from.
type Config struct {
	Bundle        string        // directory or .tar.gz
	Layers        []fs.FS       // instead of Bundle: file systems, later ones over earlier ones
	VerifyKeyFile string        // PEM public key; the tarball must be signed with it
	Shadow        string        // directory or .tar.gz evaluated beside the active one
	Production    bool          // takes nothing but a signed tarball
	MinRevision   string        // the newest revision seen by an earlier process; older ones are refused
	Pools         []string      // pools of the configuration; nil: see [Snapshot.CheckPools]
	Timeout       time.Duration // of one evaluation; 0: DefaultTimeout
	Logger        *slog.Logger  // nil: discard
}

// Engine holds the active policy.
type Engine struct {
	cfg    Config
	mu     sync.Mutex // serialises Reload
	active atomic.Pointer[Snapshot]
}

// Activation is a change of policy, as the audit log records it.
type Activation struct {
	Revision         string `json:"revision"`
	Digest           string `json:"digest"`
	PreviousRevision string `json:"previous_revision,omitempty"`
	PreviousDigest   string `json:"previous_digest,omitempty"`
	Signed           bool   `json:"signed"`
	ShadowRevision   string `json:"shadow_revision,omitempty"`
	ShadowDigest     string `json:"shadow_digest,omitempty"`
	ShadowError      string `json:"shadow_error,omitempty"` // the shadow did not load and is off
}

// Load compiles the configured bundle. Nothing malformed survives it.
func Load(ctx context.Context, cfg Config) (*Engine, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg}
	_, err := e.Reload(ctx)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (c Config) check() error {
	if (c.Bundle == "") == (len(c.Layers) == 0) {
		return errors.New("policy: set exactly one of Bundle and Layers")
	}
	if c.Timeout < 0 {
		return errors.New("policy: negative timeout")
	}
	if !c.Production {
		return nil
	}
	if c.VerifyKeyFile == "" {
		return errors.New("policy: production needs a signed bundle: set verify_key_file")
	}
	for _, name := range []string{c.Bundle, c.Shadow} {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			return fmt.Errorf("policy: production takes no directory: %s", name)
		}
	}
	return nil
}

// Snapshot returns the active policy; never nil.
func (e *Engine) Snapshot() *Snapshot { return e.active.Load() }

// Activation describes the active policy as if it had just been loaded.
func (e *Engine) Activation() Activation {
	return activation(e.active.Load(), nil, e.cfg.VerifyKeyFile != "")
}

func activation(now, before *Snapshot, signed bool) Activation {
	a := Activation{Revision: now.revision, Digest: now.digest, Signed: signed}
	if before != nil {
		a.PreviousRevision, a.PreviousDigest = before.revision, before.digest
	}
	if now.shadow != nil {
		a.ShadowRevision, a.ShadowDigest = now.shadow.revision, now.shadow.digest
	}
	return a
}

// Reload reads the bundle again and swaps it in whole. After an error the
// previous policy is still active.
func (e *Engine) Reload(ctx context.Context) (Activation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.active.Load()
	next, err := e.load(ctx)
	if err != nil {
		return Activation{}, fmt.Errorf("activate policy: %w", err)
	}
	e.active.Store(next)
	return activation(next, before, e.cfg.VerifyKeyFile != ""), nil
}

func (e *Engine) load(ctx context.Context) (*Snapshot, error) {
	f := make(files)
	var err error
	if e.cfg.Bundle != "" {
		f, err = readBundle(e.cfg.Bundle)
	}
	for _, l := range e.cfg.Layers {
		err = errors.Join(err, f.layer(l))
	}
	if err != nil {
		return nil, err
	}
	b, err := f.parse(nil)
	if err != nil {
		return nil, err
	}
	s, err := compile(ctx, b, f.digest())
	if err != nil {
		return nil, err
	}
	s.timeout, s.log = e.cfg.Timeout, e.cfg.Logger
	return s, nil
}
