package wire

import (
	"encoding/json"
	"net/http"
)

// Shape is the form of a route's error bodies.
type Shape int

// The shapes. The zero value is OpenAI's.
const (
	OpenAI          Shape = iota // {"error":{"message","type","code","param"}}
	Anthropic                    // {"type":"error","error":{"type","message"}}
	OpenAIResponses              // OpenAI's, but for events: {"type":"error","code","message","param","sequence_number"}
)

// WriteError answers with an error body. Headers such as Retry-After are set by
// the caller before.
func WriteError(w http.ResponseWriter, shape Shape, status int, typ, code, message, param string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// A client that has gone does not read its refusal; nothing is owed to it.
	_, _ = w.Write(append(errorBody(shape, typ, code, message, param), '\n'))
}

// KeepAlive is what a stream of that shape says when there is nothing to say: a
// comment, which every reader skips, or Anthropic's own event for it.
func KeepAlive(shape Shape) []byte {
	if shape == Anthropic {
		return []byte("event: ping\ndata: {\"type\":\"ping\"}\n\n")
	}
	return []byte(": keep-alive\n\n")
}

func errorEvent(shape Shape, sequence int, typ, code, message string) []byte {
	body := errorBody(shape, typ, code, message, "")
	var event []byte
	switch shape {
	case Anthropic:
		event = append(event, "event: error\n"...)
	case OpenAIResponses:
		event = append(event, "event: error\n"...)
		body = mustJSON(responsesError{Type: "error", Code: code, Message: message, Sequence: sequence})
	}
	event = append(event, "data: "...)
	event = append(event, body...)
	return append(event, "\n\n"...)
}

// responsesError is an error inside a stream of responses. Outside they have
// OpenAI's shape.
type responsesError struct {
	Type     string  `json:"type"`
	Code     string  `json:"code"`
	Message  string  `json:"message"`
	Param    *string `json:"param"`
	Sequence int     `json:"sequence_number"`
}

type openAIError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Code    string  `json:"code"`
		Param   *string `json:"param"`
	} `json:"error"`
}

type anthropicError struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
}

func errorBody(shape Shape, typ, code, message, param string) []byte {
	if shape == Anthropic {
		e := anthropicError{Type: "error"}
		e.Error.Type, e.Error.Message = anthropicType(typ, code), message
		return mustJSON(e)
	}
	var e openAIError
	e.Error.Message, e.Error.Type, e.Error.Code = message, typ, code
	if param != "" {
		e.Error.Param = &param
	}
	return mustJSON(e)
}

// anthropicTypes are the error types of Anthropic's reference that say more than
// ours, by code.
var anthropicTypes = map[string]string{
	"not_found": "not_found_error", "too_large": "request_too_large",
	"no_replica": "overloaded_error", "upstream_timeout": "timeout_error",
}

func anthropicType(typ, code string) string {
	if t, ok := anthropicTypes[code]; ok {
		return t
	}
	if typ == "server_error" {
		return "api_error"
	}
	return typ
}

// mustJSON encodes a struct of strings and numbers, which cannot fail; a fixed
// body beats none.
func mustJSON(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":{"message":"internal error","type":"server_error","code":"internal","param":null}}`)
	}
	return body
}
