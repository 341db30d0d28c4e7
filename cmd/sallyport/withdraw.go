package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/identity/dpop"
	"github.com/sallyport-ai/sallyport/identity/revocation"
	"github.com/sallyport-ai/sallyport/identity/valkey"
)

type revocationsConfig struct {
	File string `yaml:"file"` // where there is no valkey; empty: nothing is revoked
}

// checkShared refuses what would be kept in two places.
func (c *gatewayConfig) checkShared(k checker) {
	shared, file := c.Identity.Valkey, c.Identity.Revocations.File
	if shared != (valkey.Config{}) {
		for _, problem := range each(shared.Check()) {
			field, what, _ := strings.Cut(problem.Error(), ": ")
			k.f.Problem("identity.valkey."+field, "%s", what)
		}
		if shared.PasswordFile != "" {
			k.file("identity.valkey.password_file", shared.PasswordFile)
		}
		if shared.CAFile != "" {
			k.file("identity.valkey.ca_file", shared.CAFile)
		}
	}
	switch {
	case file == "":
	case shared.URL != "":
		k.f.Problem("identity.revocations.file", "revocations are in identity.valkey; they have one place")
	default:
		k.file("identity.revocations.file", file)
	}
}

// shared is what a gateway knows of callers together with others, or for itself:
// the proofs that were used and the tokens that were revoked.
type shared struct {
	store    *valkey.Store        // nil: nothing is shared
	spend    dpop.Spend           // never nil
	register *revocation.Register // nil: nothing is revoked
	log      audit.Appender
	logger   *slog.Logger
	due      chan sharedEvent
}

// sharedEvent is the body of an admin record. A record holds no name of a caller:
// the entry of that ID does.
type sharedEvent struct {
	Action     string   `json:"action"`               // revocation, shared_state
	Revocation string   `json:"revocation,omitempty"` // ID of the entry
	Of         []string `json:"of,omitempty"`         // the kinds of name it goes by
	Tenant     string   `json:"tenant,omitempty"`
	Issuer     string   `json:"issuer,omitempty"`
	Before     string   `json:"before,omitempty"`
	By         string   `json:"by,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	State      string   `json:"state,omitempty"`     // lost, back
	WhenDown   string   `json:"when_down,omitempty"` // deny, local
	Detail     string   `json:"detail,omitempty"`
}

// maxSharedEvents bounds what waits to be written.
const maxSharedEvents = 4096

// newShared opens what configuration names. ring is called when tokens were
// revoked.
func newShared(ctx context.Context, cfg identityConfig, log audit.Appender, logger *slog.Logger, ring func()) (*shared, error) {
	s := &shared{log: log, logger: logger, due: make(chan sharedEvent, maxSharedEvents), spend: dpop.NewMemory(0, nil).Spend}
	rc := revocation.Config{Logger: logger, Revoked: func(entries []revocation.Entry) { s.revoked(entries); ring() }}
	switch {
	case cfg.Valkey.URL != "":
		store, err := valkey.New(cfg.Valkey, valkey.Options{Changed: s.changed, Logger: logger})
		if err != nil {
			return nil, err
		}
		s.store, s.spend = store, store.Spend
		rc.Source, rc.GoOn = store, store.GoesOn()
	case cfg.Revocations.File != "":
		rc.Source = revocation.File(cfg.Revocations.File)
	default:
		return s, nil
	}
	var err error
	s.register, err = revocation.NewRegister(ctx, rc)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *shared) revoked(entries []revocation.Entry) {
	for _, e := range entries {
		s.logger.Warn("tokens revoked", "revocation", e.ID, "of", e.Of(), "issuer", e.Issuer, "tenant", e.Tenant, "before", e.Before, "by", e.By)
		s.record(sharedEvent{
			Action: "revocation", Revocation: e.ID, Of: e.Of(), Tenant: e.Tenant, Issuer: e.Issuer,
			Before: e.Before.Format("2006-01-02T15:04:05Z07:00"), By: e.By, Reason: e.Reason,
		})
	}
}

func (s *shared) changed(err error) {
	e := sharedEvent{Action: "shared_state", State: "back", WhenDown: "deny"}
	if s.store != nil && s.store.GoesOn() {
		e.WhenDown = "local"
	}
	if err != nil {
		e.State, e.Detail = "lost", shortened(err.Error())
	}
	s.record(e)
}

// record never waits.
func (s *shared) record(e sharedEvent) {
	select {
	case s.due <- e:
	default:
		s.logger.Error("event not recorded: too many", "action", e.Action, "revocation", e.Revocation)
	}
}

// run follows the revocations and writes down what happens, until ctx ends, and
// then what is still due.
func (s *shared) run(ctx context.Context) {
	var following sync.WaitGroup
	if s.register != nil {
		following.Go(func() { s.register.Run(ctx) })
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-s.due:
			s.write(ctx, e)
		}
	}
	following.Wait()
	for {
		select {
		case e := <-s.due:
			s.write(ctx, e)
		default:
			return
		}
	}
}

func (s *shared) write(ctx context.Context, e sharedEvent) {
	event, err := json.Marshal(e)
	if err == nil {
		_, err = s.log.Append(context.WithoutCancel(ctx), &audit.Record{
			V: audit.Version, Kind: audit.KindAdmin, ID: uuid.NewString(), Durability: audit.Strict, Event: event,
		})
	}
	if err != nil {
		s.logger.Error("event not recorded", "action", e.Action, "error", err)
	}
}

func (s *shared) close() error {
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// watch registers the gauges of what there is to watch.
func (s *shared) watch(m metric.Meter) error {
	revoked, err1 := m.Int64ObservableGauge("sallyport.identity.revocations", metric.WithDescription("Revocations in force."))
	age, err2 := m.Float64ObservableGauge("sallyport.identity.revocations.age", metric.WithUnit("s"), metric.WithDescription("Time since revocations were read."))
	answers, err3 := m.Int64ObservableGauge("sallyport.identity.shared", metric.WithDescription("1 while Valkey answers."))
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("make gauges: %w", err)
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if s.register != nil {
			o.ObserveInt64(revoked, int64(s.register.InForce()))
			o.ObserveFloat64(age, s.register.Age().Seconds())
		}
		if s.store != nil && s.store.Err() == nil {
			o.ObserveInt64(answers, 1)
		} else if s.store != nil {
			o.ObserveInt64(answers, 0)
		}
		return nil
	}, revoked, age, answers)
	return err
}
