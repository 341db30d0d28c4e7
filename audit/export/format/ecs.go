package format

import (
	"encoding/json"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// ECS, the Elastic Common Schema, with nested objects. What has no field there
// is under sallyport; see appendDetails.
const ecsVersion = "9.0.0"

type ecs struct {
	Timestamp    string          `json:"@timestamp"`
	ECS          ecsMeta         `json:"ecs"`
	Message      string          `json:"message"`
	Event        ecsEventFields  `json:"event"`
	Observer     ecsObserver     `json:"observer"`
	Organization *ecsID          `json:"organization,omitempty"`
	User         *ecsUser        `json:"user,omitempty"`
	Source       *ecsEndpoint    `json:"source,omitempty"`
	Destination  *ecsEndpoint    `json:"destination,omitempty"`
	Rule         *ecsRule        `json:"rule,omitempty"`
	HTTP         *ecsHTTP        `json:"http,omitempty"`
	GenAI        *ecsGenAI       `json:"gen_ai,omitempty"`
	Error        *ecsError       `json:"error,omitempty"`
	Sallyport    json.RawMessage `json:"sallyport"`
	Tags         []string        `json:"tags,omitempty"`
	Log          ecsLog          `json:"log"`
}

type ecsMeta struct {
	Version string `json:"version"`
}

type ecsLog struct {
	Logger string `json:"logger"`
}

type ecsEventFields struct {
	Kind     string   `json:"kind"`
	Category []string `json:"category"`
	Type     []string `json:"type"`
	Outcome  string   `json:"outcome"`
	Action   string   `json:"action"`
	ID       string   `json:"id"`
	Sequence uint64   `json:"sequence"`
	Hash     string   `json:"hash,omitempty"`
	Module   string   `json:"module"`
	Dataset  string   `json:"dataset"`
	Provider string   `json:"provider"`
	Severity int      `json:"severity"`
	Reason   string   `json:"reason,omitempty"`
	Duration int64    `json:"duration,omitempty"` // ns
	Original string   `json:"original,omitempty"`
}

type ecsObserver struct {
	Name    string `json:"name,omitempty"`
	Product string `json:"product"`
	Type    string `json:"type"`
	Version string `json:"version,omitempty"`
}

type ecsID struct {
	ID string `json:"id"`
}

type ecsUser struct {
	ID    string   `json:"id"`
	Roles []string `json:"roles,omitempty"`
}

type ecsEndpoint struct {
	Address string `json:"address"`
}

type ecsRule struct {
	ID      string `json:"id"`
	Version string `json:"version,omitempty"`
	Ruleset string `json:"ruleset"`
}

type ecsHTTP struct {
	Response struct {
		StatusCode int `json:"status_code"`
	} `json:"response"`
}

type ecsGenAI struct {
	Operation struct {
		Name string `json:"name,omitempty"`
	} `json:"operation"`
	Request struct {
		Model string `json:"model,omitempty"`
	} `json:"request"`
	Usage struct {
		Input  int `json:"input_tokens,omitempty"`
		Output int `json:"output_tokens,omitempty"`
	} `json:"usage"`
}

type ecsError struct {
	Code string `json:"code"`
}

func ecsEvent(e *Event, c cut) ([]byte, error) {
	r, v := e.Record, e.verdict()
	details, err := appendDetails(make([]byte, 0, 2048), e, c)
	if err != nil {
		return nil, err
	}
	o := ecs{
		Timestamp: e.Time().Format(time.RFC3339Nano), Message: e.summary(), Observer: ecsObserver{Version: e.build()},
		Event: ecsEventFields{
			Category: []string{"api", "network"}, Type: []string{"access"}, Outcome: "success", Action: string(r.Kind),
			ID: e.UID(), Sequence: e.Index, Hash: e.Hash.String(), Severity: e.Severity(), Reason: r.Reason,
		},
		Sallyport: details, Log: ecsLog{Logger: r.Log.Origin},
	}
	switch {
	case v.allowed:
		o.Event.Type = append(o.Event.Type, "allowed")
	case v.denied:
		o.Event.Type = append(o.Event.Type, "denied")
	case r.Kind != audit.KindOutcome:
		o.Event.Category, o.Event.Type = []string{"configuration"}, []string{"info"}
	}
	if v.failed {
		o.Event.Outcome = "failure"
		if r.Reason != "" {
			o.Error = &ecsError{Code: r.Reason}
		}
	}
	if e.Raw && c < withoutLeaf {
		o.Event.Original = string(e.Leaf)
	}
	if c > whole {
		o.Tags = []string{"truncated"}
	}
	o.parties(e)
	return o.write(), nil
}

// parties fills in who asked, of whom and for what.
func (o *ecs) parties(e *Event) {
	r := e.Record
	if r.Gateway != nil {
		o.Observer.Name = r.Gateway.SPIFFE
	}
	if p := r.Policy; p != nil {
		o.Rule = &ecsRule{ID: p.Digest, Version: p.Revision, Ruleset: "sallyport"}
	}
	if caller := r.Caller; caller != nil {
		o.Organization, o.User = &ecsID{caller.Tenant}, &ecsUser{ID: caller.Ref, Roles: []string{caller.Kind}}
		if caller.Workload != "" {
			o.Source = &ecsEndpoint{caller.Workload}
		}
	}
	if id, _ := e.replica(); id != "" {
		o.Destination = &ecsEndpoint{id}
	}
	http := r.HTTP
	if u := r.Outcome; u != nil {
		http, o.Event.Duration = u.HTTP, u.DurationMS*int64(time.Millisecond)
		o.GenAI = new(ecsGenAI)
		o.GenAI.Usage.Input, o.GenAI.Usage.Output = u.PromptTokens, u.CompletionTokens
	}
	if q := r.Request; q != nil {
		o.GenAI = new(ecsGenAI)
		o.GenAI.Operation.Name, o.GenAI.Request.Model, o.GenAI.Usage.Input = q.Operation, q.Model, q.PromptTokens
	}
	if http != 0 {
		o.HTTP = new(ecsHTTP)
		o.HTTP.Response.StatusCode = http
	}
}

// write fills in what is the same for every event.
func (o *ecs) write() []byte {
	o.ECS.Version = ecsVersion
	o.Event.Kind, o.Event.Module, o.Event.Dataset, o.Event.Provider = "event", "sallyport", "sallyport.audit", "sallyport"
	o.Observer.Product, o.Observer.Type = "Sallyport", "gateway"
	return o.append(make([]byte, 0, 4096))
}

func ecsAnchor(a *Anchor) ([]byte, error) {
	o := ecs{
		Timestamp: a.Time.UTC().Format(time.RFC3339Nano), Message: "anchor of an exported batch",
		Event: ecsEventFields{
			Category: []string{"configuration"}, Type: []string{"info"}, Outcome: "success", Action: "anchor",
			ID: a.UID(), Sequence: a.Next, Severity: 1,
		},
		Sallyport: appendAnchor(nil, a), Log: ecsLog{Logger: a.Origin},
	}
	return o.write(), nil
}
