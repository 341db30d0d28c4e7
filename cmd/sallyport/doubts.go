package main

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// doubts writes down which replicas lose credit for what they say, and which
// have it again.
type doubts struct {
	log    audit.Appender
	logger *slog.Logger
	due    chan fleet.Notice
}

// maxDoubts bounds the notices that wait to be written: a fleet that breaks as
// a whole tells of each replica once.
const maxDoubts = 4096

func newDoubts(log audit.Appender, logger *slog.Logger) *doubts {
	return &doubts{log: log, logger: logger, due: make(chan fleet.Notice, maxDoubts)}
}

// notify never waits.
func (d *doubts) notify(n fleet.Notice) {
	select {
	case d.due <- n:
	default:
		d.logger.Error("doubt not recorded: too many", "replica", n.Replica, "doubt", n.Doubt)
	}
}

// run writes until ctx ends.
func (d *doubts) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-d.due:
			d.record(ctx, n)
		}
	}
}

// doubtEvent is the body of a fleet record.
type doubtEvent struct {
	Action  string `json:"action"` // doubt or trust
	Replica string `json:"replica"`
	Pool    string `json:"pool"`
	Epoch   string `json:"epoch,omitempty"` // of its relay
	Doubt   string `json:"doubt"`           // over_claims, miss_claims, floods, protocol
	Detail  string `json:"detail"`
}

func (d *doubts) record(ctx context.Context, n fleet.Notice) {
	e := doubtEvent{Action: "doubt", Replica: n.Replica, Pool: n.Pool, Epoch: n.Epoch, Doubt: string(n.Doubt), Detail: n.Detail}
	if n.Over {
		e.Action = "trust"
	}
	event, err := json.Marshal(e)
	if err == nil {
		_, err = d.log.Append(context.WithoutCancel(ctx), &audit.Record{
			V: audit.Version, Kind: audit.KindFleet, ID: uuid.NewString(), Durability: audit.Strict, Event: event,
		})
	}
	if err != nil {
		d.logger.Error("doubt not recorded", "replica", n.Replica, "doubt", n.Doubt, "error", err)
	}
}
