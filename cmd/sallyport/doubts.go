package main

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// doubts writes down which replicas lose credit for what they say, and which
// have it again; and how far the tokenizers that we have are believed.
type doubts struct {
	log    audit.Appender
	logger *slog.Logger
	due    chan any // a doubtEvent or a promptEvent
}

// maxDoubts bounds the notices that wait to be written: a fleet that breaks as
// a whole tells of each replica once.
const maxDoubts = 4096

func newDoubts(log audit.Appender, logger *slog.Logger) *doubts {
	return &doubts{log: log, logger: logger, due: make(chan any, maxDoubts)}
}

// doubtEvent is the body of a fleet record about a replica.
type doubtEvent struct {
	Action  string `json:"action"` // doubt or trust
	Replica string `json:"replica"`
	Pool    string `json:"pool"`
	Epoch   string `json:"epoch,omitempty"` // of its relay
	Doubt   string `json:"doubt"`           // over_claims, miss_claims, floods, protocol
	Detail  string `json:"detail"`
}

// promptEvent is the body of a fleet record about our tokenizer for a model.
type promptEvent struct {
	Action string `json:"action"` // doubt or trust
	Model  string `json:"model"`
	Digest string `json:"digest"` // of its files
	Doubt  string `json:"doubt"`  // prompt_mismatch, no_overlap
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Detail string `json:"detail"`
}

// action names the beginning or the end of a doubt.
func action(over bool) string {
	if over {
		return "trust"
	}
	return "doubt"
}

// notify never waits.
func (d *doubts) notify(n fleet.Notice) {
	d.put(doubtEvent{Action: action(n.Over), Replica: n.Replica, Pool: n.Pool, Epoch: n.Epoch, Doubt: string(n.Doubt), Detail: n.Detail})
}

// notifyPrompt never waits.
func (d *doubts) notifyPrompt(n gateway.PromptNotice) {
	d.put(promptEvent{Action: action(n.Over), Model: n.Model, Digest: n.Digest, Doubt: n.Doubt, From: n.From, To: n.To, Detail: n.Detail})
}

func (d *doubts) put(event any) {
	select {
	case d.due <- event:
	default:
		d.logger.Error("doubt not recorded: too many", "doubt", event)
	}
}

// run writes until ctx ends, and then what is still due.
func (d *doubts) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-d.due:
			d.record(ctx, e)
		}
	}
	for {
		select {
		case e := <-d.due:
			d.record(ctx, e)
		default:
			return
		}
	}
}

func (d *doubts) record(ctx context.Context, e any) {
	event, err := json.Marshal(e)
	if err == nil {
		_, err = d.log.Append(context.WithoutCancel(ctx), &audit.Record{
			V: audit.Version, Kind: audit.KindFleet, ID: uuid.NewString(), Durability: audit.Strict, Event: event,
		})
	}
	if err != nil {
		d.logger.Error("doubt not recorded", "doubt", e, "error", err)
	}
}
