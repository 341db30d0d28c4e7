package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/bundle"
)

// DefaultTimeout bounds one evaluation. A decision takes a fraction of a
// millisecond; the rest is for a machine that is short of time, where a denial
// could not be told from a real one.
const DefaultTimeout = 250 * time.Millisecond

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
	Archive       string        // directory that keeps every bundle that was active, by digest; empty: none
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
	if _, err := e.Reload(ctx, cfg.Pools); err != nil {
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
	if c.Production && (c.VerifyKeyFile == "" || c.Bundle == "") {
		return errors.New("policy: production needs a signed bundle: set bundle and verify_key_file")
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
	a := Activation{Revision: now.revision, Digest: now.digest, Signed: signed, ShadowError: now.shadowError}
	if before != nil {
		a.PreviousRevision, a.PreviousDigest = before.revision, before.digest
	}
	if now.shadow != nil {
		a.ShadowRevision, a.ShadowDigest = now.shadow.revision, now.shadow.digest
	}
	return a
}

// Reload reads the bundles again and swaps them in whole, under a configuration
// that now has these pools (nil: see [Snapshot.CheckPools]): the two change
// together or not at all. After an error the previous policy is still active. A
// shadow that does not load is switched off and said so in the activation: it
// must not hold up the active policy.
func (e *Engine) Reload(ctx context.Context, pools []string) (Activation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.active.Load()
	next, err := e.load(ctx, before, pools)
	if err != nil {
		return Activation{}, fmt.Errorf("activate policy: %w", err)
	}
	if e.cfg.Archive != "" {
		if err := errors.Join(next.save(e.cfg.Archive), next.shadow.save(e.cfg.Archive)); err != nil {
			return Activation{}, fmt.Errorf("activate policy: %w", err)
		}
	}
	e.active.Store(next)
	a := activation(next, before, e.cfg.VerifyKeyFile != "")
	e.cfg.Logger.InfoContext(ctx, "policy activated", "revision", a.Revision, "digest", a.Digest, "shadow_error", a.ShadowError)
	return a, nil
}

func (e *Engine) load(ctx context.Context, before *Snapshot, pools []string) (*Snapshot, error) {
	next, err := e.cfg.snapshot(ctx, e.cfg.Bundle, e.cfg.Layers)
	if err != nil {
		return nil, err
	}
	if err := e.refuseRollback(next, before); err != nil {
		return nil, err
	}
	if pools != nil {
		if err := next.CheckPools(pools); err != nil {
			return nil, err
		}
	}
	if e.cfg.Shadow != "" {
		next.shadow, err = e.cfg.snapshot(ctx, e.cfg.Shadow, nil)
		if err != nil {
			next.shadowError = err.Error()
		}
	}
	return next, nil
}

// snapshot reads, verifies, compiles and tries one bundle.
func (c Config) snapshot(ctx context.Context, name string, layers []fs.FS) (*Snapshot, error) {
	f, err := c.read(name, layers)
	if err != nil {
		return nil, err
	}
	var verify *bundle.VerificationConfig
	if c.VerifyKeyFile != "" {
		if verify, err = verification(c.VerifyKeyFile); err != nil {
			return nil, err
		}
	}
	b, err := f.parse(verify)
	if err != nil {
		return nil, err
	}
	s, err := compile(ctx, b, f)
	if err != nil {
		return nil, err
	}
	s.timeout = c.Timeout
	if err := s.canary(ctx); err != nil {
		return nil, err
	}
	if err := passTests(ctx, b); err != nil {
		return nil, err
	}
	return s, nil
}

func (c Config) read(name string, layers []fs.FS) (files, error) {
	if name != "" {
		return readBundle(name, !c.Production)
	}
	f := make(files)
	for _, l := range layers {
		if err := f.layer(l); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// refuseRollback lets only newer bundles follow, or the same one again. A
// signer that puts two contents under one revision is refused as well; in
// development, where nothing is signed, an author edits in place.
func (e *Engine) refuseRollback(next, before *Snapshot) error {
	if err := refuseOlder(next.revision, e.cfg.MinRevision); err != nil {
		return err
	}
	if before == nil {
		return nil
	}
	if err := refuseOlder(next.revision, before.revision); err != nil {
		return err
	}
	if e.cfg.VerifyKeyFile != "" && next.digest != before.digest && compareRevisions(next.revision, before.revision) == 0 {
		return fmt.Errorf("bundle revision %s has changed: digest %s, was %s", next.revision, next.digest, before.digest)
	}
	return nil
}
