// Package wire knows the request and answer formats: it decodes a request in
// one strict pass, edits it byte-exactly, frames server-sent events and writes
// error bodies.
//
// Start at [Operations], the table of routes, and [Decode], which turns a body
// into a [Request]. [Request.Upstream] makes the body for the engine, [Framer]
// and [Answer] read what the engine sends back.
//
// # Strictness
//
// Policy and engine must read the same request. Decode therefore refuses what
// two JSON readers could read differently: duplicate names at any depth, names
// that differ only in case, invalid UTF-8, numbers out of range, trailing data.
// Content that the API leaves to the client (the JSON schema of a tool,
// metadata, documents) may hold names that differ in case, never duplicates.
//
// # Fields
//
// A top-level field that the route's table does not list is refused by name,
// because a field that the gateway does not know could steer the engine's
// cache, its queue or its network. Deeper, an unknown type or field does not
// refuse the request but is noted in [Request.Unknown], and classification
// does the rest.
//
// # Memory
//
// What is made of a body is bounded by the number of its values, which is
// checked first: at most 100,000 JSON values, and 10,000 each of messages or
// items, content parts, tool calls, documents and prompts. Decoding allocates
// some six times the body at most, and 24 MiB. Texts stay in the body until
// they are read.
package wire

// Error is a refusal of what the client sent. Message is for the client and
// never quotes the body.
type Error struct {
	Code    Code
	Param   string // the field, where one is to blame
	Message string
}

// Code is the stable name of a refusal.
type Code string

// The codes of this package.
const (
	MalformedJSON        Code = "malformed_json"         // 400
	UnsupportedField     Code = "unsupported_field"      // 400
	InvalidRequest       Code = "invalid_request"        // 400
	TooLarge             Code = "too_large"              // 413
	UnsupportedMediaType Code = "unsupported_media_type" // 415
	UnsupportedEncoding  Code = "unsupported_encoding"   // 415
)

// Error returns the code, the field and the message.
func (e *Error) Error() string {
	if e.Param == "" {
		return string(e.Code) + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Param + ": " + e.Message
}

// Limits bound a body. A zero value means the default.
type Limits struct {
	BodyBytes int // default 16 MiB
	Depth     int // nesting of objects and arrays, default 128
}

const (
	defaultBodyBytes = 16 << 20
	mostBodyBytes    = 1 << 30 // whatever the configuration says: places in it are 32 bits
	defaultDepth     = 128
	maxNumberBytes   = 64  // the longest number literal
	maxExponent      = 400 // a little more than any float64 needs
	maxModelBytes    = 256
)

// check refuses a body that is too long or holds too much.
func (l Limits) check(body []byte) error {
	if err := l.size(body); err != nil {
		return err
	}
	return count(body)
}

func (l Limits) size(body []byte) error {
	if len(body) > min(l.BodyBytes, mostBodyBytes) {
		return &Error{TooLarge, "", "the body is larger than this gateway accepts"}
	}
	return nil
}

func (l Limits) withDefaults() Limits {
	if l.BodyBytes <= 0 {
		l.BodyBytes = defaultBodyBytes
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	return l
}
