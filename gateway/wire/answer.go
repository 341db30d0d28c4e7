package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/routing/splice"
)

// Errors of what the engine sent. A caller ends the stream with an error event;
// it never makes up a stop or a [DONE].
var (
	// ErrAnswer says that an answer, or one event of it, is not what this route
	// answers with: its usage could not be read, nor what a client may not see
	// be taken out.
	ErrAnswer = errors.New("answer is not of the expected form")
	// ErrTruncated says that the stream ended before [DONE].
	ErrTruncated = errors.New("stream ended before it was done")
)

// Usage is what the engine says a request took.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     *int // nil: the engine does not say
}

// Answer reads an answer while it passes through and takes out what the client
// may not see. Get one from [Operation.Answer], set CachedTokens, then call Body
// once or Event for each event; the rest is what has been learnt. The zero value
// reads chat completions. One goroutine owns it.
type Answer struct {
	IncludeUsage bool // the client asked for usage in its stream
	CachedTokens bool // policy lets the client see cached tokens
	PromptTokens int  // as counted before; 0 where nobody could

	Usage  *Usage // nil until the engine said so
	Finish string // first finish reason
	Events int    // events that carried a chunk
	Done   bool   // the stream has come to its proper end
	Failed bool   // the engine reported an error in place of an answer

	reader reader
	next   int               // sequence number after the last, where events have one
	dec    *jsontext.Decoder // kept between events for its memory
}

// reader is what differs between the answers of routes. It sets what the Answer
// learns and returns what the client may see. A stream's end is proper only if
// the reader says so: [DONE] for chat and completions, a closing event for
// responses.
type reader interface {
	body(a *Answer, body []byte) ([]byte, error)
	event(a *Answer, e Event) ([]byte, error)
}

// Answer returns what reads the answer to r.
func (o Operation) Answer(r *Request) *Answer {
	a := &Answer{IncludeUsage: r.IncludeUsage}
	if o.reader != nil {
		a.reader = o.reader(r)
	}
	return a
}

// Body reads a whole answer and returns what the client may see of it.
func (a *Answer) Body(body []byte) ([]byte, error) { return a.read().body(a, body) }

// Event reads one event of a stream and returns the bytes to forward, nil for
// none. They alias the event where nothing had to be taken out.
func (a *Answer) Event(e Event) ([]byte, error) { return a.read().event(a, e) }

func (a *Answer) read() reader {
	if a.reader == nil {
		return choices{}
	}
	return a.reader
}

// End returns the error of a stream that ended now, nil where it was done.
func (a *Answer) End() error {
	if !a.Done {
		return ErrTruncated
	}
	return nil
}

// ErrorEvent is the error as the last event of this stream. Nothing that ends a
// stream properly follows it.
func (a *Answer) ErrorEvent(shape Shape, typ, code, message string) []byte {
	return errorEvent(shape, a.next, typ, code, message)
}

// choices reads answers of choices: chat, completions and, as far as there is
// anything to read, embeddings. The client gets the engine's bytes but for what
// it may not see.
type choices struct{}

// cachedPaths are where engines say how much of a prompt was in their cache:
// vLLM and OpenAI, SGLang and others.
var cachedPaths = [][]string{
	{"usage", "prompt_tokens_details", "cached_tokens"},
	{"usage", "cached_tokens"},
	{"usage", "prompt_cache_hit_tokens"},
	{"usage", "prompt_cache_miss_tokens"},
}

func (choices) body(a *Answer, body []byte) ([]byte, error) {
	c, err := a.chunk(body)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	a.learn(c)
	return a.hide(body, c, nil)
}

func (choices) event(a *Answer, e Event) ([]byte, error) {
	if e.Data == nil {
		return e.plain(), nil // a comment or a blank line
	}
	if isDone(e) {
		a.Done = true
		return e.plain(), nil
	}
	c, err := a.chunk(e.Data)
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	a.learn(c)
	a.Events++
	var edits []splice.Edit
	if !a.IncludeUsage && c.hasUsage {
		if c.usage != nil && c.choices == 0 {
			return nil, nil // the chunk that only we asked for
		}
		edits = append(edits, splice.Delete("usage"))
	}
	data, err := a.hide(e.Data, c, edits)
	if err != nil {
		return nil, err
	}
	if len(edits) == 0 && len(data) == len(e.Data) {
		return e.plain(), nil
	}
	return e.withData(data), nil
}

// isDone reports whether e is the end marker of a stream of choices.
func isDone(e Event) bool { return string(bytes.TrimSpace(e.Data)) == "[DONE]" }

func (a *Answer) learn(c chunk) {
	if c.usage != nil {
		a.Usage = c.usage
	}
	if a.Finish == "" {
		a.Finish = c.finish
	}
	a.Failed = a.Failed || c.failed
}

// hide makes edits, and takes out cached tokens where they may not be seen.
func (a *Answer) hide(body []byte, c chunk, edits []splice.Edit) ([]byte, error) {
	if len(edits) == 0 && c.usage != nil && !a.CachedTokens {
		for _, path := range cachedPaths {
			edits = append(edits, splice.DeleteIn(path...))
		}
	}
	return edited(body, edits)
}

func edited(body []byte, edits []splice.Edit) ([]byte, error) {
	if len(edits) == 0 {
		return body, nil
	}
	out, err := splice.Apply(nil, body, edits...)
	if err != nil {
		return nil, fmt.Errorf("take out usage: %w: %w", ErrAnswer, err)
	}
	return out, nil
}

// chunk is what we read of an answer or of one event.
type chunk struct {
	usage    *Usage
	hasUsage bool // the field is there, null or not
	choices  int
	finish   string
	failed   bool
}

// chunk reads the fields we need and checks the rest as JSON. Missing fields are
// no error: engines leave out what they do not have.
func (a *Answer) chunk(body []byte) (chunk, error) {
	var c chunk
	r := a.begin(body)
	err := r.whole(func(name []byte) error {
		switch string(name) {
		case "usage":
			c.hasUsage = true
			return r.usage(&c.usage)
		case "choices":
			return r.array(func() error {
				c.choices++
				return r.choice(&c)
			})
		case "error":
			c.failed = r.dec.PeekKind() != 'n'
		}
		return r.dec.SkipValue()
	})
	return c, err
}

// begin returns a reader of one JSON value.
func (a *Answer) begin(body []byte) chunkReader {
	if a.dec == nil {
		a.dec = new(jsontext.Decoder)
	}
	a.dec.Reset(bytes.NewBuffer(body))
	return chunkReader{a.dec}
}
