package export

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// note is the event of an export record: what the exporter says of itself.
type note struct {
	Action string  `json:"action"`
	Sink   string  `json:"sink"`
	Kind   string  `json:"kind"` // of sink
	Cursor *Cursor `json:"cursor,omitempty"`
	First  *uint64 `json:"first,omitempty"` // of the records that this is about
	Next   uint64  `json:"next,omitempty"`  // the one after the last
	Count  int     `json:"count,omitempty"`
	Detail string  `json:"detail,omitempty"`
}

// What export records are about.
const (
	actionCursor     = "cursor"      // how far a sink is
	actionCursorLost = "cursor_lost" // its cursor could not be used
	actionDeadLetter = "dead_letter" // it refused a record for good
	actionGap        = "gap"         // records were pruned before it had them
	actionDown       = "down"        // it has been failing for a while
	actionUp         = "up"          // it takes records again
)

// record writes a note into the log. A log that takes no records says so
// itself.
func (f *follower) record(ctx context.Context, n note) {
	n.Sink, n.Kind = f.sink.Name, f.kind.Name
	n.Detail = n.Detail[:min(len(n.Detail), 256)]
	event, err := json.Marshal(n)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, err = f.cfg.Log.Append(ctx, &audit.Record{Kind: audit.KindExport, ID: audit.NewID(), Event: event})
	}
	if err != nil {
		f.logger.Error("export event not recorded", "action", n.Action, "error", err)
	}
}
