package wire

import (
	"encoding/json"
	"net/http"
)

// Shape is the form of a route's error bodies.
type Shape int

// The shapes. The zero value is OpenAI's.
const (
	OpenAI    Shape = iota // {"error":{"message","type","code","param"}}
	Anthropic              // {"type":"error","error":{"type","message"}}
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

// ErrorEvent is the error as the last event of a stream whose status line has
// gone out. No [DONE] follows it.
func ErrorEvent(shape Shape, typ, code, message string) []byte {
	var event []byte
	if shape == Anthropic {
		event = append(event, "event: error\n"...)
	}
	event = append(event, "data: "...)
	event = append(event, errorBody(shape, typ, code, message, "")...)
	return append(event, "\n\n"...)
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
	var v any
	if shape == Anthropic {
		e := anthropicError{Type: "error"}
		e.Error.Type, e.Error.Message = typ, message
		v = e
	} else {
		var e openAIError
		e.Error.Message, e.Error.Type, e.Error.Code = message, typ, code
		if param != "" {
			e.Error.Param = &param
		}
		v = e
	}
	body, err := json.Marshal(v)
	if err != nil { // strings alone cannot fail; a fixed body beats none
		return []byte(`{"error":{"message":"internal error","type":"server_error","code":"internal","param":null}}`)
	}
	return body
}
