package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// appended hands on the records that it is given.
type appended chan *audit.Record

func (a appended) Append(_ context.Context, r *audit.Record) (audit.Position, error) {
	a <- r
	return audit.Position{}, nil
}

func TestWhatWasDoubtedBeforeAStopIsWrittenDown(t *testing.T) {
	log := make(appended, maxDoubts)
	d := newDoubts(log, slog.New(slog.DiscardHandler))
	for range 100 {
		d.notify(fleet.Notice{Replica: "spiffe://example.org/r0", Doubt: fleet.OverClaims})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.run(ctx)
	if len(log) != 100 {
		t.Errorf("%d of 100 doubts are on record", len(log))
	}
}

func TestEachDoubtIsAFleetRecord(t *testing.T) {
	log := make(appended)
	d := newDoubts(log, slog.New(slog.DiscardHandler))
	go d.run(t.Context())
	for want, n := range map[string]fleet.Notice{
		"doubt": {Replica: "spiffe://example.org/r0", Pool: "general", Epoch: "e", Doubt: fleet.OverClaims, Detail: "much"},
		"trust": {Replica: "spiffe://example.org/r0", Pool: "general", Epoch: "e", Doubt: fleet.OverClaims, Detail: "less", Over: true},
	} {
		d.notify(n)
		rec := <-log
		var e doubtEvent
		if err := json.Unmarshal(rec.Event, &e); err != nil {
			t.Fatal(err)
		}
		if rec.Kind != audit.KindFleet || rec.Durability != audit.Strict || rec.ID == "" {
			t.Errorf("record %+v", rec)
		}
		if e != (doubtEvent{want, n.Replica, n.Pool, n.Epoch, "over_claims", n.Detail}) {
			t.Errorf("event %+v", e)
		}
	}
	d.notifyPrompt(gateway.PromptNotice{Model: "small", Digest: "d", Doubt: gateway.PromptMismatch, From: "verified", To: "unverified", Detail: "length"})
	rec := <-log
	if want := `{"action":"doubt","model":"small","digest":"d","doubt":"prompt_mismatch","from":"verified","to":"unverified","detail":"length"}`; string(rec.Event) != want || rec.Kind != audit.KindFleet {
		t.Errorf("%s, want %s", rec.Event, want)
	}
}
