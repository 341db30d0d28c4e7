package wire

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// messageStream writes the events of one message:
//
//	message_start, ping,
//	content_block_start, content_block_delta …, content_block_stop for each block,
//	message_delta with the stop reason and usage, message_stop
//
// The last two come only when the engine has given a finish reason and [DONE].
type messageStream struct {
	begun    bool
	id       string
	index    int    // of the block
	kind     string // of the open block, empty for none
	call     int    // index of the call that the open block is, as the engine counts
	callID   string
	calls    int  // begun so far
	ended    bool // the finish reason has come
	reason   string
	sequence *string
}

// The events, as far as they are not blocks.
type (
	startEvent struct {
		Type    string           `json:"type"`
		Message anthropicMessage `json:"message"`
	}
	pingEvent struct {
		Type string `json:"type"`
	}
	blockStart struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Block any    `json:"content_block"`
	}
	blockDelta struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Delta any    `json:"delta"`
	}
	blockStop struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	textDelta struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	thinkingDelta struct {
		Type     string `json:"type"`
		Thinking string `json:"thinking"`
	}
	inputDelta struct {
		Type string `json:"type"`
		JSON string `json:"partial_json"`
	}
	messageDelta struct {
		Type  string `json:"type"`
		Delta struct {
			StopReason   string  `json:"stop_reason"`
			StopSequence *string `json:"stop_sequence"`
		} `json:"delta"`
		Usage anthropicUsage `json:"usage"`
	}
)

// events collects the bytes of several events; the first error stays.
type events struct {
	out []byte
	err error
}

func (e *events) add(name string, v any) {
	if e.err != nil {
		return
	}
	var data []byte
	if data, e.err = encode(v); e.err == nil {
		e.out = fmt.Appendf(e.out, "event: %s\ndata: %s\n\n", name, data)
	}
}

// event turns one chunk into any number of events.
func (m *message) event(a *Answer, e Event) ([]byte, error) {
	var out events
	if e.Data == nil {
		if m.stream.begun {
			out.add("ping", pingEvent{"ping"}) // a comment keeps the line alive; clients wait for this
		}
		return out.out, out.err
	}
	if isDone(e) {
		return m.finish(a)
	}
	c, err := m.read(a, e.Data)
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	if c == nil {
		return nil, nil
	}
	a.Events++
	m.begin(a, &out, c.ID)
	for _, choice := range c.Choices {
		if choice.Delta != nil {
			if err := m.delta(&out, choice.Delta); err != nil {
				return nil, fmt.Errorf("translate event: %w", err)
			}
		}
		if choice.FinishReason != "" {
			if err := m.stop(choice.FinishReason, choice.StopReason); err != nil {
				return nil, fmt.Errorf("translate event: %w", err)
			}
		}
	}
	return out.out, out.err
}

func (m *message) begin(a *Answer, out *events, id string) {
	if m.stream.begun {
		return
	}
	m.stream.begun, m.stream.id = true, id
	start := m.empty(id)
	start.Usage.InputTokens = a.PromptTokens
	out.add("message_start", startEvent{"message_start", start})
	out.add("ping", pingEvent{"ping"})
}

func (m *message) delta(out *events, s *spoken) error {
	st := &m.stream
	if st.ended && (s.Content+s.Refusal != "" || len(s.ToolCalls) > 0) {
		return fmt.Errorf("%w: content after the finish reason", ErrAnswer)
	}
	if t := s.thought(); t != "" && m.thinking {
		if st.kind != "thinking" {
			st.open(out, "thinking", thinkingBlock{Type: "thinking"})
		}
		out.add("content_block_delta", blockDelta{"content_block_delta", st.index, thinkingDelta{"thinking_delta", t}})
	}
	if text := s.Content + s.Refusal; text != "" {
		if st.kind != "text" {
			st.open(out, "text", textBlock{Type: "text"})
		}
		out.add("content_block_delta", blockDelta{"content_block_delta", st.index, textDelta{"text_delta", text}})
	}
	for _, call := range s.ToolCalls {
		if err := m.toolCall(out, call); err != nil {
			return err
		}
	}
	return nil
}

// toolCall begins a block at each new call, and continues the open one. Engines
// disagree on how they count calls, some give all the same index and some none:
// another id is another call, whatever its index.
func (m *message) toolCall(out *events, call spokenCall) error {
	st := &m.stream
	if call.Type != "" && call.Type != "function" {
		return fmt.Errorf("%w: a call that is not of a function", ErrAnswer)
	}
	index := st.call
	if call.Index != nil {
		index = *call.Index
	}
	same := st.kind == "tool_use" && index == st.call && (call.ID == "" || call.ID == st.callID)
	if !same {
		if call.Function.Name == "" {
			return fmt.Errorf("%w: part of a call that is not the last one", ErrAnswer)
		}
		st.callID, st.call = call.ID, index
		st.open(out, "tool_use", toolUseBlock{Type: "tool_use", ID: m.callID(call.ID, st.calls), Name: call.Function.Name, Input: jsontext.Value("{}")})
		st.calls++
	}
	if call.Function.Arguments != "" {
		out.add("content_block_delta", blockDelta{"content_block_delta", st.index, inputDelta{"input_json_delta", call.Function.Arguments}})
	}
	return nil
}

// open ends the open block and begins another.
func (st *messageStream) open(out *events, kind string, block any) {
	st.close(out)
	st.kind = kind
	out.add("content_block_start", blockStart{"content_block_start", st.index, block})
}

func (st *messageStream) close(out *events) {
	if st.kind == "" {
		return
	}
	out.add("content_block_stop", blockStop{"content_block_stop", st.index})
	st.kind = ""
	st.index++
}

func (m *message) stop(finish string, met jsontext.Value) (err error) {
	st := &m.stream
	if st.ended {
		return fmt.Errorf("%w: a second finish reason", ErrAnswer)
	}
	st.ended = true
	st.reason, st.sequence, err = stopReason(finish, met, st.calls > 0)
	return err
}

// finish ends the message, if the engine has.
func (m *message) finish(a *Answer) ([]byte, error) {
	st := &m.stream
	if !st.begun || !st.ended {
		return nil, fmt.Errorf("%w: [DONE] without a finish reason", ErrAnswer)
	}
	if a.Done {
		return nil, nil
	}
	a.Done = true
	var out events
	st.close(&out)
	end := messageDelta{Type: "message_delta", Usage: a.anthropicUsage()}
	end.Delta.StopReason, end.Delta.StopSequence = st.reason, st.sequence
	out.add("message_delta", end)
	out.add("message_stop", pingEvent{"message_stop"})
	return out.out, out.err
}
