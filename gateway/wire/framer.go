package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Event is one server-sent event. Its bytes are valid until the next call of
// [Framer.Next].
type Event struct {
	Raw  []byte // exactly as received, blank line included
	Type string // of its event field, empty for none
	Data []byte // of its data fields, joined by line feeds; nil for none
	Open bool   // the stream ended before the blank line

	aside bool // Raw has lines besides those of data and event
}

// ErrEventTooLarge says that one event is longer than the framer's bound.
var ErrEventTooLarge = errors.New("server-sent event too large")

// defaultEventBytes bounds one event. Whole images and long tool arguments come
// in one.
const defaultEventBytes = 16 << 20

// Framer cuts a stream of server-sent events (WHATWG HTML, section 9.2) into
// events without changing a byte: the Raw of all events together are the
// stream, however the stream was cut into reads.
//
// Lines end with CR, LF or CR LF. An event is returned as soon as its blank line
// is complete. A CR that ends a blank line is taken to be the whole ending where
// the line before ended so too, and to be half of CR LF where that did, so that
// neither kind of stream waits for a byte that does not come.
type Framer struct {
	r   io.Reader
	max int

	buf     []byte
	used    int // length of the event returned last, at the start of buf
	scanned int // bytes of buf already looked at
	line    int // start of the current line
	ending  ending
	began   bool // the first bytes, which may be a byte order mark, have passed
	err     error
}

type ending int

const (
	noEnding ending = iota
	lf
	cr
	crlf
)

// NewFramer returns a framer over r that accepts events of up to most bytes; 0
// means 16 MiB.
func NewFramer(r io.Reader, most int) *Framer {
	if most <= 0 {
		most = defaultEventBytes
	}
	return &Framer{r: r, max: most}
}

// Next returns the next event. At the end of the stream it first returns what is
// left, marked Open, and then io.EOF or the reader's error.
func (f *Framer) Next() (Event, error) {
	f.buf = f.buf[f.used:]
	f.used, f.scanned, f.line, f.ending = 0, 0, 0, noEnding
	for {
		if end := f.scan(); end > 0 {
			return f.event(end, false), nil
		}
		if f.err != nil {
			if len(f.buf) > 0 {
				return f.event(len(f.buf), true), nil
			}
			return Event{}, f.err
		}
		if len(f.buf) >= f.max {
			return Event{}, fmt.Errorf("read event: %w: over %d bytes", ErrEventTooLarge, f.max)
		}
		f.fill()
	}
}

func (f *Framer) event(end int, open bool) Event {
	f.used = end
	e := Event{Raw: f.buf[:end:end], Open: open}
	e.parse(!f.began)
	f.began = true
	return e
}

const leastRead = 4 << 10

func (f *Framer) fill() {
	if cap(f.buf)-len(f.buf) < leastRead {
		grown := make([]byte, len(f.buf), max(2*cap(f.buf), 4*leastRead))
		copy(grown, f.buf)
		f.buf = grown
	}
	n, err := f.r.Read(f.buf[len(f.buf):cap(f.buf)])
	f.buf = f.buf[:len(f.buf)+n]
	if err != nil {
		f.err = err
	}
}

// scan looks for the end of the first event and returns its length, or 0. What
// has been looked at is not looked at again.
func (f *Framer) scan() int {
	for {
		i := bytes.IndexAny(f.buf[f.scanned:], "\r\n")
		if i < 0 {
			f.scanned = len(f.buf)
			return 0
		}
		i += f.scanned
		kind, next, known := f.endingAt(i)
		if !known {
			f.scanned = i
			return 0
		}
		blank := i == f.line && f.ending != noEnding
		f.scanned, f.line, f.ending = next, next, kind
		if blank {
			return next
		}
	}
}

// endingAt tells which line ending stands at i; known is false where the next
// byte is needed and not there yet.
func (f *Framer) endingAt(i int) (kind ending, next int, known bool) {
	if f.buf[i] == '\n' {
		return lf, i + 1, true
	}
	if i == f.line && f.ending == cr { // blank line of a CR stream
		return cr, i + 1, true
	}
	if i+1 < len(f.buf) {
		if f.buf[i+1] == '\n' {
			return crlf, i + 2, true
		}
		return cr, i + 1, true
	}
	return cr, i + 1, f.err != nil
}

var byteOrderMark = []byte("\xEF\xBB\xBF")

// parse reads the fields of the event.
func (e *Event) parse(first bool) {
	raw := e.Raw
	if first && bytes.HasPrefix(raw, byteOrderMark) {
		raw, e.aside = raw[len(byteOrderMark):], true
	}
	for len(raw) > 0 {
		var line []byte
		line, _, raw = cutLine(raw)
		switch name, value := cutField(line); {
		case string(name) == "event":
			e.Type = string(value)
		case string(name) != "data":
			e.aside = e.aside || len(line) > 0
		case e.Data == nil:
			e.Data = value[:len(value):len(value)] // appending must not reach into Raw
		default:
			e.Data = append(append(e.Data, '\n'), value...)
		}
	}
}

// cutLine returns the first line of raw, its ending and the rest.
func cutLine(raw []byte) (line, ending, rest []byte) {
	i := bytes.IndexAny(raw, "\r\n")
	if i < 0 {
		return raw, nil, nil
	}
	n := 1
	if raw[i] == '\r' && i+1 < len(raw) && raw[i+1] == '\n' {
		n = 2
	}
	return raw[:i], raw[i : i+n], raw[i+n:]
}

// cutField returns name and value of a line; a comment has an empty name.
func cutField(line []byte) (name, value []byte) {
	name, value, found := bytes.Cut(line, []byte(":"))
	if !found {
		return line, []byte{}
	}
	return name, bytes.TrimPrefix(value, []byte(" "))
}

// plain returns the bytes of e for the client: the raw ones, unless there is
// something besides data and event.
func (e Event) plain() []byte {
	if !e.aside {
		return e.Raw
	}
	return e.rewrite(func(out, line, ending []byte) []byte { return append(append(out, line...), ending...) })
}

// rewrite returns the raw bytes of e without what an engine says on the side:
// the text of comments, which keep a connection alive without it, and fields
// that no client of a POST reads (id, retry, unknown ones). data appends what
// stands for a data line.
func (e Event) rewrite(data func(out, line, ending []byte) []byte) []byte {
	out := make([]byte, 0, len(e.Raw))
	for raw := e.Raw; len(raw) > 0; {
		var line, ending []byte
		line, ending, raw = cutLine(raw)
		line = bytes.TrimPrefix(line, byteOrderMark)
		switch name, _ := cutField(line); {
		case string(name) == "data":
			out = data(out, line, ending)
		case len(line) == 0, string(name) == "event":
			out = append(append(out, line...), ending...)
		case len(name) == 0: // a comment
			out = append(append(out, ':'), ending...)
		}
	}
	return out
}

// withData returns the bytes of e for the client with data, a JSON value, in
// place of its data lines.
func (e Event) withData(data []byte) []byte {
	written := false
	return e.rewrite(func(out, _, ending []byte) []byte {
		if !written {
			written = true
			// In JSON a raw line feed can only be white space.
			out = append(out, "data: "...)
			out = append(out, bytes.ReplaceAll(data, []byte("\n"), []byte(" "))...)
			out = append(out, ending...)
		}
		return out
	})
}
