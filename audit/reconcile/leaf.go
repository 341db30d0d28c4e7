package reconcile

import (
	"bytes"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
)

// leaf is what is needed of a record: much less than there is.
type leaf struct {
	Kind       audit.Kind       `json:"kind"`
	ID         string           `json:"id"`
	Time       audit.Time       `json:"time"`
	Attempt    int              `json:"attempt"`
	Status     string           `json:"status"`
	Durability audit.Durability `json:"durability"`
	Gateway    struct {
		SPIFFE string `json:"spiffe"`
	} `json:"gateway"`
	Caller struct {
		Tenant string `json:"tenant"`
	} `json:"caller"`
	Policy struct {
		Digest string `json:"digest"`
	} `json:"policy"`
	Class struct {
		Name string `json:"name"`
	} `json:"class"`
	Label struct {
		Level string `json:"level"`
	} `json:"label"`
	Request struct {
		Served string `json:"served"`
	} `json:"request"`
	Placement *struct {
		Pool       string `json:"pool"`
		Replica    string `json:"replica"`
		Epoch      string `json:"epoch"`
		Candidates []struct {
			Replica string `json:"replica"`
			Region  string `json:"region"`
		} `json:"candidates"`
	} `json:"placement"`
	Outcome struct {
		HTTP         int    `json:"http"`
		UpstreamHTTP int    `json:"upstream_http"`
		Completion   int    `json:"completion_tokens"`
		Finish       string `json:"finish"`
	} `json:"outcome"`
	Event struct {
		audit.Served
		Clean  bool   `json:"clean"`  // of a start
		Reason string `json:"reason"` // of a gap
	} `json:"event"`
}

func (l *leaf) at() time.Time { return time.UnixMicro(l.Time.Wall).UTC() }

// answered says whether an outcome tells of an answer.
func (l *leaf) answered() bool {
	return l.Status == audit.StatusOK || l.Outcome.UpstreamHTTP == http.StatusOK || l.Outcome.Completion > 0
}

// kinds are the records that are looked at; of the others only the time is.
var kinds = [][]byte{[]byte(`"kind":"decision"`), []byte(`"kind":"outcome"`), []byte(`"kind":"access"`), []byte(`"kind":"boot"`), []byte(`"kind":"gap"`)}

// read decodes what is needed. Of a record of another kind that is the time.
func read(text []byte) (*leaf, error) {
	head := text[:min(len(text), 40)] // a record's fields have a fixed order
	wanted := false
	for _, k := range kinds {
		wanted = wanted || bytes.Contains(head, k)
	}
	l := new(leaf)
	if !wanted {
		var t struct {
			Kind audit.Kind `json:"kind"`
			Time audit.Time `json:"time"`
		}
		if err := json.Unmarshal(text, &t); err != nil {
			return nil, fmt.Errorf("decode record: %w", err)
		}
		l.Kind, l.Time = t.Kind, t.Time
		return l, nil
	}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	return l, nil
}

// keyOf reads a decision id.
func keyOf(id string, n int) (key, error) {
	u, err := uuid.Parse(id)
	return key{u, n}, err
}
