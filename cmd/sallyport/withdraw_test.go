package main

import (
	"context"
	"log/slog"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/identity/revocation"
)

func TestWhatWasRevokedBeforeAStopIsWrittenDown(t *testing.T) {
	log := make(appended, maxSharedEvents)
	s := &shared{log: log, logger: slog.New(slog.DiscardHandler), due: make(chan sharedEvent, maxSharedEvents)}
	entries := make([]revocation.Entry, 100)
	s.revoked(entries)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.run(ctx)
	if len(log) != len(entries) {
		t.Errorf("%d of %d revocations are on record", len(log), len(entries))
	}
	for range len(log) {
		if r := <-log; r.Kind != audit.KindAdmin || r.Durability != audit.Strict {
			t.Errorf("on record as %s, %s", r.Kind, r.Durability)
		}
	}
}
