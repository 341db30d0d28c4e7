package reconcile

import (
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
)

// leaf is a record, with what is needed of its event.
type leaf struct {
	*audit.Record
	served *audit.Served // of a ticket that a relay served
	clean  bool          // of a start: what ran before had ended in order
	reason string        // of a gap
}

func (l *leaf) at() time.Time { return time.UnixMicro(l.Time.Wall).UTC() }

// answered says whether an outcome tells of an answer.
func (l *leaf) answered() bool {
	o := l.Outcome
	return l.Status == audit.StatusOK || o != nil && (o.UpstreamHTTP == http.StatusOK || o.CompletionTokens > 0)
}

// read decodes a record, strictly: one in which a name stands twice is malformed.
func read(text []byte) (*leaf, error) {
	r, ok := audit.DecodeExact(text)
	if !ok {
		r = new(audit.Record)
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("decode record: %w", err)
		}
	}
	l := &leaf{Record: r}
	if err := l.readEvent(); err != nil {
		return nil, fmt.Errorf("decode event of %s record: %w", r.Kind, err)
	}
	return l, nil
}

func (l *leaf) readEvent() (err error) {
	switch {
	case l.Kind == audit.KindAccess && l.Status == audit.StatusServed:
		var ok bool
		if l.served, ok = audit.DecodeServed(l.Event); !ok {
			l.served = new(audit.Served)
			err = json.Unmarshal(l.Event, l.served)
		}
	case l.Kind == audit.KindBoot && l.Event != nil:
		var start struct {
			Clean bool `json:"clean"`
		}
		err = json.Unmarshal(l.Event, &start)
		l.clean = start.Clean
	case l.Kind == audit.KindGap && l.Event != nil:
		var gap struct {
			Reason string `json:"reason"`
		}
		err = json.Unmarshal(l.Event, &gap)
		l.reason = gap.Reason
	}
	return err
}

// keyOf reads a decision id.
func keyOf(id string, n int) (key, error) {
	u, err := uuid.Parse(id)
	return key{u, n}, err
}
