package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/roster"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// members writes down which replicas there are, and when that changes.
type members struct {
	fleet  func() []fleet.Member
	log    audit.Appender
	logger *slog.Logger

	tracker roster.Tracker // used by one goroutine at a time: who builds the gateway, then run
}

// membersEvery is how often the fleet is looked at: so exact are the times in the
// records.
const membersEvery = 100 * time.Millisecond

// run looks until ctx ends. What the log does not take now is written later.
func (m *members) run(ctx context.Context) {
	tick := time.NewTicker(membersEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// What was seen last; by now the fleet itself is being let go of.
			if err := m.write(context.WithoutCancel(ctx), time.Now()); err != nil {
				m.logger.Error("the fleet is not recorded", "error", err)
			}
			return
		case now := <-tick.C:
			if err := m.look(ctx, now); err != nil && ctx.Err() == nil {
				m.logger.Error("the fleet is not recorded", "error", err)
			}
		}
	}
}

// look writes what has changed, if it is due.
func (m *members) look(ctx context.Context, now time.Time) error {
	var all []roster.Seen
	for _, r := range m.fleet() {
		all = append(all, roster.Seen{
			Key: r.Target.Pool + " " + r.Target.Address + " " + r.Target.ID, Replica: r.ID, Address: r.Target.Address,
			Pool: r.Target.Pool, Region: r.Target.Region, Epoch: r.Epoch, Excluded: string(r.Excluded),
		})
	}
	if m.tracker.See(now, all); !m.tracker.Due(now) {
		return nil
	}
	return m.write(ctx, now)
}

func (m *members) write(ctx context.Context, now time.Time) error {
	events, err := m.tracker.Events(now)
	if err != nil || len(events) == 0 {
		return err
	}
	for _, e := range events {
		text, err := json.Marshal(e)
		if err == nil {
			_, err = m.log.Append(ctx, &audit.Record{
				V: audit.Version, Kind: audit.KindFleet, ID: uuid.NewString(), Durability: audit.Strict, Event: text,
			})
		}
		if err != nil {
			return fmt.Errorf("record the fleet: %w", err)
		}
	}
	m.tracker.Written(now)
	return nil
}
