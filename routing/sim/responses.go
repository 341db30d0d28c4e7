package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

const responsesPath = "/v1/responses"

// itemsRequest is what of a /v1/responses body has a bearing on the prompt.
type itemsRequest struct {
	Model        string           `json:"model"`
	Instructions string           `json:"instructions"`
	Input        json.RawMessage  `json:"input"`
	Tools        []map[string]any `json:"tools"`
	ToolChoice   json.RawMessage  `json:"tool_choice"`
	Stream       bool             `json:"stream"`
	MaxTokens    *int             `json:"max_output_tokens"`
	CacheSalt    string           `json:"cache_salt"`
}

type inputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Summary   json.RawMessage `json:"summary"`
	Status    string          `json:"status"`
}

// chatFromItems makes the chat body that has the same prompt, as vLLM does: what
// an assistant says, calls and thinks in items that follow each other is one
// message. Items that it does not know are an error, as the template could not
// show them.
func chatFromItems(body []byte) ([]byte, error) {
	var in itemsRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("invalid body: %w", err)
	}
	var messages []object
	if in.Instructions != "" {
		messages = append(messages, object{"role": "system", "content": in.Instructions})
	}
	open := false
	var text string
	if json.Unmarshal(in.Input, &text) == nil {
		messages = append(messages, object{"role": "user", "content": text})
	} else {
		var items []inputItem
		if err := json.Unmarshal(in.Input, &items); err != nil {
			return nil, fmt.Errorf("invalid input: %w", err)
		}
		for _, it := range items {
			m, err := it.message()
			if err != nil {
				return nil, err
			}
			messages = joinMessages(messages, m)
			open = (it.Status == "in_progress" || it.Status == "incomplete") && it.Type != "function_call" && it.Type != "function_call_output"
		}
	}
	out := object{"model": in.Model, "messages": messages, "stream": in.Stream}
	if open {
		out["continue_final_message"], out["add_generation_prompt"] = true, false
	}
	if in.MaxTokens != nil {
		out["max_tokens"] = *in.MaxTokens
	}
	if in.CacheSalt != "" {
		out["cache_salt"] = in.CacheSalt
	}
	if len(in.Tools) > 0 {
		tools := make([]any, len(in.Tools))
		for i, t := range in.Tools {
			delete(t, "type")
			tools[i] = object{"type": "function", "function": t}
		}
		out["tools"] = tools
	}
	var forced struct {
		Name string `json:"name"`
	}
	switch {
	case json.Unmarshal(in.ToolChoice, &forced) == nil && forced.Name != "":
		out["tool_choice"] = object{"type": "function", "function": forced}
	case in.ToolChoice != nil:
		out["tool_choice"] = in.ToolChoice
	}
	return json.Marshal(out)
}

type object = map[string]any

// joinMessages appends m, or makes it a part of an assistant's message that ends
// the list and lacks what m has.
func joinMessages(messages []object, m object) []object {
	if len(messages) == 0 || m["role"] != "assistant" {
		return append(messages, m)
	}
	last := messages[len(messages)-1]
	if last["role"] != "assistant" {
		return append(messages, m)
	}
	for name, v := range m { // besides its role it has one member
		calls, _ := v.([]any)
		before, _ := last["tool_calls"].([]any)
		switch {
		case name == "role":
		case calls != nil:
			last[name] = append(before, calls...)
		case last[name] != nil:
			return append(messages, m)
		default:
			last[name] = v
		}
	}
	return messages
}

func (it inputItem) message() (object, error) {
	switch it.Type {
	case "", "message":
		text, err := partsText(it.Content)
		return object{"role": it.Role, "content": text}, err
	case "reasoning":
		text, err := partsText(it.Content)
		if text == "" && err == nil {
			text, err = partsText(it.Summary)
		}
		return object{"role": "assistant", "reasoning": text}, err
	case "function_call":
		call := object{"id": it.CallID, "type": "function", "function": object{"name": it.Name, "arguments": it.Arguments}}
		return object{"role": "assistant", "tool_calls": []any{call}}, nil
	case "function_call_output":
		text, err := partsText(it.Output)
		return object{"role": "tool", "tool_call_id": it.CallID, "content": text}, err
	default:
		return nil, errors.New("this kind of input item is not supported")
	}
}

// partsText is a text, or the texts of a list of parts.
func partsText(raw json.RawMessage) (string, error) {
	var text string
	if raw == nil || json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", fmt.Errorf("invalid content: %w", err)
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Text == nil {
			return "", errors.New("only text is supported")
		}
		texts[i] = *p.Text
	}
	return strings.Join(texts, "\n"), nil
}

// response is the object of the responses API.
type response struct {
	ID         string           `json:"id"`
	Object     string           `json:"object"`
	Created    int64            `json:"created_at"`
	Status     string           `json:"status"`
	Error      *struct{}        `json:"error"`
	Incomplete *incomplete      `json:"incomplete_details"`
	Model      string           `json:"model"`
	Output     []map[string]any `json:"output"`
	Store      bool             `json:"store"`
	Usage      *itemsUsage      `json:"usage"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type itemsUsage struct {
	InputTokens  int `json:"input_tokens"`
	InputDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int `json:"output_tokens"`
	OutputDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

// responder writes one answer of items, with its events if it is streamed.
type responder struct {
	streamer
	live   bool // streamed
	number int  // of the next event
	resp   response
	item   map[string]any
}

// respond answers a request of /v1/responses.
func (e *Engine) respond(w http.ResponseWriter, req *request, seq *sequence, next func() (emission, error)) {
	r := &responder{live: req.Stream, resp: response{
		ID: "resp_" + uuid.NewString(), Object: "response", Created: time.Now().Unix(), Status: "in_progress",
		Model: req.Model, Output: []map[string]any{},
	}}
	r.w, r.flush = w, http.NewResponseController(w)
	if r.live {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	r.event("response.created", map[string]any{"response": r.resp})
	r.event("response.in_progress", map[string]any{"response": r.resp})
	r.open(req)
	said, sent := "", 0
	count, finish, err := e.speak(next, func(text, finish string) error {
		said += text
		if req.call != nil {
			text = req.call.next(&sent, finish)
		}
		r.delta(req, text)
		return r.err
	})
	if err != nil {
		return // the caller has gone
	}
	status := "completed"
	if finish == "length" {
		status = "incomplete"
		r.resp.Incomplete = &incomplete{"max_output_tokens"}
	}
	if req.call != nil {
		said = req.call.Arguments[:sent]
	}
	r.close(req, said, status)
	r.resp.Status, r.resp.Output = status, []map[string]any{r.item}
	u := &itemsUsage{InputTokens: seq.prompt, OutputTokens: count, TotalTokens: seq.prompt + count}
	u.InputDetails.CachedTokens = seq.cached
	r.resp.Usage = u
	if r.live {
		r.event("response."+status, map[string]any{"response": r.resp})
		return
	}
	writeJSON(w, http.StatusOK, r.resp)
}

// event sends one event, numbered, if the answer is streamed.
func (r *responder) event(kind string, members map[string]any) {
	if !r.live || r.err != nil {
		return
	}
	members["type"], members["sequence_number"] = kind, r.number
	r.number++
	data, err := json.Marshal(members)
	if err != nil {
		r.err = err
		return
	}
	r.raw("event: " + kind + "\ndata: " + string(data) + "\n\n")
}

// at is where in the output an event belongs.
func (r *responder) at(req *request, members map[string]any) map[string]any {
	members["item_id"], members["output_index"] = r.item["id"], 0
	if req.call == nil {
		members["content_index"] = 0
	}
	return members
}

func outputText(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}}
}

// open begins the one item of the output.
func (r *responder) open(req *request) {
	if c := req.call; c != nil {
		r.item = map[string]any{"id": "fc_" + uuid.NewString(), "type": "function_call", "status": "in_progress", "call_id": "call_" + uuid.NewString(), "name": c.Name, "arguments": ""}
	} else {
		r.item = map[string]any{"id": "msg_" + uuid.NewString(), "type": "message", "status": "in_progress", "role": "assistant", "content": []any{}}
	}
	r.event("response.output_item.added", map[string]any{"output_index": 0, "item": r.item})
	if req.call == nil {
		r.event("response.content_part.added", r.at(req, map[string]any{"part": outputText("")}))
	}
}

func (r *responder) delta(req *request, text string) {
	switch {
	case text == "":
	case req.call != nil:
		r.event("response.function_call_arguments.delta", r.at(req, map[string]any{"delta": text}))
	default:
		r.event("response.output_text.delta", r.at(req, map[string]any{"delta": text}))
	}
}

func (r *responder) close(req *request, said, status string) {
	r.item["status"] = status
	if req.call != nil {
		r.item["arguments"] = said
		r.event("response.function_call_arguments.done", r.at(req, map[string]any{"name": req.call.Name, "arguments": said}))
	} else {
		r.item["content"] = []any{outputText(said)}
		r.event("response.output_text.done", r.at(req, map[string]any{"text": said}))
		r.event("response.content_part.done", r.at(req, map[string]any{"part": outputText(said)}))
	}
	r.event("response.output_item.done", map[string]any{"output_index": 0, "item": r.item})
}
