package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// appendTimeout bounds the wait for our own log.
const appendTimeout = 250 * time.Millisecond

// inboxEvery is how often the log takes in that somebody has read it.
const inboxEvery = 2 * time.Second

// access is the relay's log of tickets served: one record of kind access for
// each, written before the request is forwarded. Held against the gateways'
// logs it shows a forward without a decision and a decision without its
// forward. The zero access keeps no log.
type access struct {
	log   audit.Appender
	close func() error
}

// openAccess opens the log, if there is to be one.
func openAccess(cfg *Config, id string) (*access, error) {
	if cfg.Log.Dir == "" {
		return new(access), nil
	}
	key, err := tlog.ReadKeyFile(cfg.Log.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	log, err := tlog.Open(tlog.Config{
		Dir: cfg.Log.Dir, Key: key, Logger: cfg.Logger,
		Boot: audit.Gateway{SPIFFE: id, Build: build()},
	})
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &access{log: log, close: log.Close}, nil
}

// build is the version that the binary was built from.
func build() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

// served returns once the record is durable.
func (a *access) served(ctx context.Context, f *forwarded) error {
	if a.log == nil {
		return nil
	}
	t := &f.ticket
	event, err := json.Marshal(audit.Served{
		Ticket: t.ID, Attempt: t.Attempt, N: t.N, Gateway: f.peer, Log: t.Log, Replica: t.Audience, Epoch: t.Epoch,
		Op: t.Op, Pool: t.Pool, Model: t.Model, Adapter: t.Adapter, Domain: t.Domain, Rank: t.Rank, Exp: t.Exp,
	})
	if err != nil {
		return fmt.Errorf("encode access record: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	_, err = a.log.Append(ctx, &audit.Record{
		Kind: audit.KindAccess, ID: audit.NewID(), Durability: audit.Strict, Status: audit.StatusServed, Event: event,
	})
	return err
}

func (a *access) shut() error {
	if a.close == nil {
		return nil
	}
	return a.close()
}

// knownTickets bounds how many served tickets Diverge can answer for.
const knownTickets = 8192

// servedTicket is what Diverge needs to know of a ticket.
type servedTicket struct {
	gateway gatewayLog
	ns      namespace
	rank    int
	since   time.Time // when it was admitted
}

// tickets remembers the last tickets served, by decision id.
type tickets struct {
	mu    sync.Mutex
	byID  map[string]servedTicket
	order [knownTickets]string // ring
	next  int
}

func newTickets() *tickets { return &tickets{byID: make(map[string]servedTicket)} }

func (t *tickets) add(f *forwarded) {
	tk := &f.ticket
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.byID[tk.ID]; !ok {
		delete(t.byID, t.order[t.next])
		t.order[t.next] = tk.ID
		t.next = (t.next + 1) % knownTickets
	}
	t.byID[tk.ID] = servedTicket{f.gateway(), namespace{tk.Model, tk.Adapter, tk.Domain}, tk.Rank, time.Now()}
}

func (t *tickets) get(id string) (servedTicket, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.byID[id]
	return s, ok
}
