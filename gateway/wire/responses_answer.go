package wire

import (
	"fmt"

	"github.com/sallyport-ai/sallyport/routing/splice"
)

// responses reads answers of the responses route. The client gets the engine's
// bytes but for cached tokens. A stream is done when one of its closing events
// has come; it has no [DONE], though some engines send one.
type responses struct{}

func readResponse(*Request) reader { return responses{} }

// response is what we read of an answer or of one event.
type response struct {
	kind     string // of the event
	sequence int
	status   string
	why      string // it is incomplete
	usage    *Usage
	failed   bool
}

func (responses) body(a *Answer, body []byte) ([]byte, error) {
	var v response
	r := a.begin(body)
	if err := r.whole(func(name []byte) error { return r.response(&v, name) }); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	a.learnResponse(&v)
	return a.hideCached(body, v.usage, "usage")
}

func (responses) event(a *Answer, e Event) ([]byte, error) {
	if e.Data == nil || isDone(e) {
		return e.plain(), nil
	}
	v := response{sequence: -1}
	r := a.begin(e.Data)
	err := r.whole(func(name []byte) error {
		switch string(name) {
		case "type":
			return r.str(&v.kind)
		case "sequence_number":
			return r.count(&v.sequence)
		case "response":
			return r.object(func(name []byte) error { return r.response(&v, name) })
		case "error":
			v.failed = v.failed || r.dec.PeekKind() != 'n'
		}
		return r.dec.SkipValue()
	})
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	a.Events++
	a.next = max(a.next, v.sequence+1)
	switch v.kind {
	case "response.completed", "response.incomplete":
		a.Done = true
	case "error", "response.failed":
		v.failed = true
	}
	a.learnResponse(&v)
	data, err := a.hideCached(e.Data, v.usage, "response", "usage")
	if err != nil {
		return nil, err
	}
	if len(data) == len(e.Data) {
		return e.plain(), nil
	}
	return e.withData(data), nil
}

// response reads a member of a response object.
func (r chunkReader) response(v *response, name []byte) error {
	switch string(name) {
	case "status":
		return r.str(&v.status)
	case "usage":
		return r.usage(&v.usage)
	case "error":
		v.failed = r.dec.PeekKind() != 'n'
	case "incomplete_details":
		return r.object(func(name []byte) error {
			if string(name) != "reason" {
				return r.dec.SkipValue()
			}
			return r.str(&v.why)
		})
	}
	return r.dec.SkipValue()
}

func (a *Answer) learnResponse(v *response) {
	if v.usage != nil {
		a.Usage = v.usage
	}
	switch v.status {
	case "completed":
		a.Finish = v.status
	case "incomplete":
		if a.Finish = v.why; v.why == "" {
			a.Finish = v.status
		}
	case "failed", "cancelled":
		v.failed = true
	}
	a.Failed = a.Failed || v.failed
}

// hideCached takes what tells of cached tokens out of the usage at path: what
// OpenAI reports, and what vLLM adds for each turn.
func (a *Answer) hideCached(body []byte, usage *Usage, path ...string) ([]byte, error) {
	if usage == nil || a.CachedTokens {
		return body, nil
	}
	var edits []splice.Edit
	for _, name := range []string{"cached_tokens", "cached_tokens_per_turn"} {
		edits = append(edits, splice.DeleteIn(append(path[:len(path):len(path)], "input_tokens_details", name)...))
	}
	return edited(body, edits)
}
