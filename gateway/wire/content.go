package wire

import (
	"bytes"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"strings"
)

// CheckContent refuses a body that is not JSON in UTF-8, plain or in gzip, by its
// headers. The error is always an [*Error].
func CheckContent(h http.Header) (gzipped bool, err error) {
	codings := h.Values("Content-Encoding")
	if len(codings) > 1 {
		return false, &Error{UnsupportedEncoding, "", "the body must not be encoded more than once"}
	}
	for _, coding := range codings {
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "identity":
		case "gzip", "x-gzip":
			gzipped = true
		default:
			return false, &Error{UnsupportedEncoding, "", "the Content-Encoding must be gzip or absent"}
		}
	}
	return gzipped, checkType(h)
}

func checkType(h http.Header) error {
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

// maxRatio is how much larger than its gzip a body may be. Prompts shrink to a
// third, repetitive ones to a thirtieth.
const maxRatio = 100

// Gunzip returns what body holds, of at most the limit's size and at most a
// hundred times its own. The error is always an [*Error].
func Gunzip(body []byte, limits Limits) ([]byte, error) {
	most := min(limits.withDefaults().BodyBytes, maxRatio*len(body))
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, &Error{MalformedJSON, "", "the body is not valid gzip"}
	}
	plain, err := io.ReadAll(io.LimitReader(z, int64(most)+1))
	switch {
	case len(plain) > most:
		return nil, &Error{TooLarge, "", "the body is larger than this gateway accepts, or compressed more than a hundredfold"}
	case err != nil:
		return nil, &Error{MalformedJSON, "", "the body is not valid gzip"}
	}
	return plain, nil
}

// IsEventStream reports whether a Content-Type value is that of server-sent
// events, whatever its case and parameters.
func IsEventStream(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "text/event-stream"
}
