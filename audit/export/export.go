// Package export follows the audit log and gives its records to the systems
// that collect them.
//
// Start at [New] and [Exporter.Run]. Formats are in package format, transports
// in package sink.
//
// # What a sink can rely on
//
// The log itself is the queue. Each sink has its own place in it, its own
// reader and its own connection, so that one that is slow or gone holds neither
// the log nor another sink, however long. In memory there is never more than a
// few batches of each.
//
// Delivery is in the order of the log and at least once: a place moves over a
// record only when the receiver has taken it, as far as the protocol can say
// so, or has refused it for good. The place is on disk at most a second later,
// so a crash sends a second's records once more, each with the same id. What a
// sink refuses for good goes to a dead-letter file and, as a record of its own,
// into the log.
//
// # On disk
//
//	export/NAME.json        cursor, see [Cursor]
//	export/NAME.dead.jsonl  records that the sink refused, one a line
//
// both in the log's directory. A cursor that is lost or damaged is taken from
// the log, which holds it as of a minute ago.
package export

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// Config is what an exporter needs. All but Logger are required.
type Config struct {
	Dir    string // of the log
	Origin string // of the log
	Sinks  []SinkConfig
	// Log takes the records that the exporter writes about itself.
	Log audit.Appender
	// Head is the size of the log's head: so many records are durable, and no more
	// are sent.
	Head   func() uint64
	Logger *slog.Logger

	pace pace // tests are faster
}

// pace is how often things are done.
type pace struct {
	poll     time.Duration // looks at the log's end
	save     time.Duration // of the cursor to disk
	record   time.Duration // of the cursor into the log
	retryMin time.Duration // first pause after a failure
	retryMax time.Duration // longest
	attempt  time.Duration // longest time of one delivery
	wait     time.Duration // instead of the sink kind's, if set
}

func (p pace) withDefaults() pace {
	for _, d := range []struct {
		at *time.Duration
		to time.Duration
	}{
		{&p.poll, 200 * time.Millisecond},
		{&p.save, time.Second},
		{&p.record, time.Minute},
		{&p.retryMin, 500 * time.Millisecond},
		{&p.retryMax, time.Minute},
		{&p.attempt, sink.Attempt},
	} {
		if *d.at == 0 {
			*d.at = d.to
		}
	}
	return p
}

// Exporter runs the sinks of a log.
type Exporter struct {
	followers []*follower
}

// New makes an exporter. Receivers need not be there yet. The error holds every
// problem of the configuration.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.pace = cfg.pace.withDefaults()
	if err := Check(cfg.Sinks, false); err != nil {
		return nil, err
	}
	if len(cfg.Sinks) > 0 {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, folder), 0o700); err != nil {
			return nil, fmt.Errorf("export: %w", err)
		}
	}
	x := new(Exporter)
	for _, c := range cfg.Sinks {
		f, err := newFollower(ctx, &cfg, c)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("export to %s: %w", c.Name, err), x.Close())
		}
		x.followers = append(x.followers, f)
	}
	return x, nil
}

// Check returns every problem of the sinks, each as "[index].field: what is
// wrong". In production nothing leaves the machine unencrypted.
func Check(sinks []SinkConfig, production bool) error {
	var errs []error
	seen := make(map[string]bool)
	for i := range sinks {
		for _, err := range each(sinks[i].Check(production)) {
			errs = append(errs, fmt.Errorf("[%d].%w", i, err))
		}
		if seen[sinks[i].Name] {
			errs = append(errs, fmt.Errorf("[%d].name: sink %s stands twice", i, sinks[i].Name))
		}
		seen[sinks[i].Name] = true
	}
	return errors.Join(errs...)
}

// each takes joined errors apart.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, each(e)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// Run delivers until ctx ends. A sink that fails is tried again for as long.
func (x *Exporter) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, f := range x.followers {
		wg.Go(func() { f.run(ctx) })
	}
	wg.Wait()
}

// Close closes the sinks. Nothing may be running.
func (x *Exporter) Close() error {
	var errs []error
	for _, f := range x.followers {
		errs = append(errs, f.out.Close())
	}
	return errors.Join(errs...)
}

// newFollower opens the sink of one follower and finds its place in the log.
func newFollower(ctx context.Context, cfg *Config, c SinkConfig) (*follower, error) {
	f := &follower{cfg: cfg, sink: c, now: time.Now}
	var err error
	if f.kind, err = c.To.Kind(); err != nil {
		return nil, err
	}
	if f.format, err = format.Find(c.Format); err != nil {
		return nil, err
	}
	f.limit = c.Limit
	if f.limit == 0 {
		f.limit = f.kind.Limit
	}
	f.logger = cfg.Logger.With("sink", c.Name)
	f.out, err = sink.Open(ctx, &c.To, sink.Options{
		Name: c.Name, Origin: cfg.Origin, ContentType: f.format.ContentType, Logger: f.logger,
	})
	f.st = Status{Sink: c.Name, Kind: f.kind.Name, Format: f.format.Name}
	return f, err
}

// findPlace reads the cursor, or finds where to begin without one.
func (f *follower) findPlace(ctx context.Context) error {
	fresh := Cursor{V: cursorVersion, Sink: f.sink.Name, Origin: f.cfg.Origin}
	c, err := readCursor(f.cfg.Dir, f.sink.Name)
	if err == nil {
		err = c.fits(f.cfg.Dir, f.cfg.Origin, f.cfg.Head())
	}
	if err == nil {
		f.cursor, f.placed = c, true
		f.publish()
		return nil
	}
	f.cursor = fresh
	old, found, lookErr := recorded(f.cfg.Dir, f.sink.Name, f.cfg.Origin)
	if lookErr != nil {
		return lookErr
	}
	if f.placed = true; found {
		f.cursor = old
	}
	if found || !errors.Is(err, errNoCursor) {
		f.logger.Error("cursor of a sink is not usable; going on from the one in the log", "error", err, "next", f.cursor.Next)
		f.record(ctx, note{Action: actionCursorLost, Detail: err.Error(), Next: f.cursor.Next})
	}
	f.publish()
	return nil
}

// checkpoint is the newest that the log has published.
func (f *follower) checkpoint() string {
	b, err := os.ReadFile(filepath.Join(f.cfg.Dir, "checkpoint"))
	if err != nil {
		return "" // none yet, or it is being replaced: the next batch has one
	}
	return string(b)
}
