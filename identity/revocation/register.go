package revocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
)

// How a register follows its source. What is withdrawn is refused by every
// gateway within lookEvery and the time of one look; where the source cannot be
// read, a register goes on for MaxStale.
const (
	lookEvery = time.Second
	// MaxStale is how long entries are believed to be all there are.
	MaxStale = 10 * time.Second
)

// Source is where entries are kept.
type Source interface {
	// Read returns all entries. It may be asked every second.
	Read(context.Context) ([]Entry, error)
	// Restore puts entries back that were lost from where Read found them. A
	// source that cannot be written does nothing.
	Restore(context.Context, []Entry) error
}

// Config says what a register follows.
type Config struct {
	Source Source
	// GoOn makes a register whose source cannot be read judge by the entries it
	// has. Otherwise, after MaxStale, it refuses every token.
	GoOn bool
	// Revoked hears of entries that were not there before. It must not wait.
	// nil: nobody.
	Revoked func([]Entry)
	// Clock tells the time; nil is time.Now.
	Clock func() time.Time
	// Logger hears of failures; nil discards.
	Logger *slog.Logger
}

// Register is the entries in force. It is safe for concurrent use.
type Register struct {
	config  Config
	current atomic.Pointer[set]
	read    atomic.Int64 // when the source was last read, Unix ns; 0: never
	failing bool         // owned by look
}

// NewRegister reads the source for the first time. One that cannot be read is an
// error, unless the register is to go on without it.
func NewRegister(ctx context.Context, config Config) (*Register, error) {
	if config.Source == nil {
		return nil, errors.New("revocation: no source")
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Register{config: config}
	r.current.Store(&set{})
	tell := r.config.Revoked
	r.config.Revoked = nil // what was there before is no news
	err := r.look(ctx)
	r.config.Revoked = tell
	if err != nil && !config.GoOn {
		return nil, err
	}
	return r, nil
}

// Run follows the source until ctx ends.
func (r *Register) Run(ctx context.Context) {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			_ = r.look(ctx) // it has said so
		}
	}
}

// look reads the source once. Only one may look at a time.
func (r *Register) look(ctx context.Context) error {
	now := r.config.Clock()
	entries, err := r.config.Source.Read(ctx)
	if err == nil && len(entries) > MaxEntries {
		err = fmt.Errorf("more than %d entries", MaxEntries)
	}
	if err != nil {
		if !r.failing && ctx.Err() == nil {
			r.config.Logger.Error("revocations cannot be read", "go_on", r.config.GoOn, "error", err)
		}
		r.failing = true
		return fmt.Errorf("read revocations: %w", err)
	}
	if r.failing {
		r.config.Logger.Info("revocations can be read again")
	}
	r.failing = false
	next, fresh := r.current.Load().with(entries, now)
	r.current.Store(next)
	r.read.Store(now.UnixNano())
	for _, e := range fresh {
		if e.wide {
			r.config.Logger.Error("a revocation asks for what this version does not know: every token of its issuer and tenant is refused", "revocation", e.ID, "issuer", e.Issuer, "tenant", e.Tenant, "before", e.Before)
		}
	}
	if len(fresh) > 0 && r.config.Revoked != nil {
		r.config.Revoked(fresh)
	}
	if lost := next.missing(entries); len(lost) > 0 {
		if err := r.config.Source.Restore(ctx, lost); err != nil {
			r.config.Logger.Warn("revocations that were lost could not be put back", "entries", len(lost), "error", err)
		}
	}
	return nil
}

// Check is [identity.Chain]'s Revoked: nil if the caller's token is not withdrawn.
// Only tokens are: whoever has no time of issue is not judged here.
func (r *Register) Check(p identity.Principal, tenant string) error {
	if p.IssuedAt.IsZero() {
		return nil
	}
	if e, ok := r.current.Load().withdrawn(p, tenant); ok {
		return fmt.Errorf("%w: revoked by %s", identity.ErrBadCredential, e.ID)
	}
	if age := r.Age(); age > MaxStale && !r.config.GoOn {
		return fmt.Errorf("%w: revocations were last read %v ago", identity.ErrUnavailable, age.Round(time.Second))
	}
	return nil
}

// Age is how long ago the source was last read; many years if it never was.
func (r *Register) Age() time.Duration {
	return r.config.Clock().Sub(time.Unix(0, r.read.Load()))
}

// InForce is how many entries there are.
func (r *Register) InForce() int { return len(r.current.Load().all) }
