package wire

import (
	"mime"
	"net/http"
	"strings"
)

// CheckContent refuses a body that is not plain JSON in UTF-8 by its headers.
// The error is always an [*Error].
func CheckContent(h http.Header) error {
	for _, coding := range h.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(coding), "identity") {
			return &Error{UnsupportedEncoding, "", "the body must not be encoded; send it without Content-Encoding"}
		}
	}
	types := h.Values("Content-Type")
	if len(types) != 1 {
		return &Error{UnsupportedMediaType, "", "exactly one Content-Type is required: application/json"}
	}
	kind, params, err := mime.ParseMediaType(types[0])
	if err != nil || kind != "application/json" {
		return &Error{UnsupportedMediaType, "", "the Content-Type must be application/json"}
	}
	for name, value := range params {
		if name == "charset" && !strings.EqualFold(value, "utf-8") {
			return &Error{UnsupportedMediaType, "", "the charset must be utf-8"}
		}
	}
	return nil
}

// IsEventStream reports whether a Content-Type value is that of server-sent
// events, whatever its case and parameters.
func IsEventStream(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "text/event-stream"
}
