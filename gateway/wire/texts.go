package wire

import (
	"bytes"
	"iter"
)

// Origin says where in a request a text stands.
type Origin uint8

// The origins. Texts of one origin that follow each other may be read as one;
// what could stand between two pieces of prose is therefore of another.
const (
	FromMessage  Origin = iota // prose of a message
	FromToolCall               // names and arguments of calls
	FromTool                   // declarations
	FromDocument
	FromField  // everything else
	FromMember // a name and a value under it, each of which was a text before
)

// String returns a word for the origin.
func (o Origin) String() string {
	names := [...]string{"message", "tool_call", "tool", "document", "field", "member"}
	if int(o) < len(names) {
		return names[o]
	}
	return "unknown"
}

// Text is one string of the body, unescaped.
type Text struct {
	Origin  Origin
	Message int // index in messages[], -1 elsewhere
	Data    []byte
}

// span is where a text stands in the body, as JSON. There may be many, so it
// holds no pointer.
type span struct {
	start, end uint32
	message    int32 // index in messages[], -1 elsewhere
	under      int32 // span of the nearest name that it stands under in free content, -1 for none
	origin     Origin
	role       spanRole
}

type spanRole uint8

const (
	plainText spanRole = iota
	memberName
	shortNumber // tells something only behind its name
)

const (
	namesUp   = 4   // names that a value is read behind: a schema has some between a property and its value
	nameBytes = 64  // of each
	headBytes = 128 // of the value
)

// Texts yields every text that a detector must see, in the order of the body:
// content of all roles, tool definitions and arguments, documents, schemas,
// names and metadata. Only media payloads are left out ([Request.Media]).
//
// In content that the client makes up (documents, arguments, schemas), a value
// is yielded once more as "name: value" for the nearest names that it stands
// under, since one without the other may say nothing.
//
// The bytes may alias the body, must not be changed, and are valid until the
// next text.
func (r *Request) Texts() iter.Seq[Text] {
	return func(yield func(Text) bool) {
		var pair []byte
		for _, s := range r.spans {
			data := r.data(s)
			if s.role != shortNumber && !yield(Text{s.origin, int(s.message), data}) {
				return
			}
			if s.role == memberName || !telling(data) {
				continue
			}
			for name, n := s.under, 0; name >= 0 && n < namesUp; name, n = r.spans[name].under, n+1 {
				pair = append(pair[:0], r.name(r.spans[name])...)
				pair = append(append(pair, ": "...), data[:min(len(data), headBytes)]...)
				if !yield(Text{FromMember, int(s.message), pair}) {
					return
				}
			}
		}
	}
}

// data returns the text of a span.
func (r *Request) data(s span) []byte {
	raw := r.Body[s.start:s.end]
	if raw[0] != '"' {
		return raw // a number
	}
	return unquote(raw)
}

// name returns the end of a name, at a cost that does not depend on its length.
func (r *Request) name(s span) []byte {
	if s.end-s.start > 6*nameBytes+2 { // longer than a name of that many escapes
		return r.Body[s.end-1-nameBytes : s.end-1]
	}
	name := r.data(s)
	return name[max(0, len(name)-nameBytes):]
}

// telling reports whether a value may be a number to some reader.
func telling(data []byte) bool {
	return bytes.ContainsFunc(data[:min(len(data), headBytes)], func(c rune) bool { return '0' <= c && c <= '9' || c >= 0x80 })
}

// FirstUserText returns at most n bytes of the first text that a user said: what
// a conversation can be known by while it grows. Nil where there is none.
func (r *Request) FirstUserText(n int) []byte {
	for _, m := range r.Messages {
		if m.Role != "user" {
			continue
		}
		var text []byte
		for _, p := range m.Parts {
			text = append(text, p.Text[:min(len(p.Text), n-len(text))]...)
		}
		return text
	}
	for _, s := range r.spans {
		if s.origin == FromMessage && s.role == plainText {
			text := r.data(s)
			return text[:min(len(text), n)]
		}
	}
	return nil
}
