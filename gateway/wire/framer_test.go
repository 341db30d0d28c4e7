package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// frame reads all events of a stream that comes in the given pieces.
func frame(t testing.TB, r io.Reader) []Event {
	t.Helper()
	f := NewFramer(r, 0)
	var events []Event
	for {
		e, err := f.Next()
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		e.Raw, e.Data = bytes.Clone(e.Raw), bytes.Clone(e.Data)
		events = append(events, e)
	}
}

// pieces reads one piece of a stream at a time.
type pieces [][]byte

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; len((*p)[0]) == 0 {
		*p = (*p)[1:]
	}
	return n, nil
}

func TestFramer(t *testing.T) {
	cases := []struct {
		claim  string
		stream string
		data   []string // "-" for an event without data
	}{
		{"line feeds", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"carriage returns", "data: a\r\rdata: b\r\r", []string{"a", "b"}},
		{"both", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"all in one stream", "data: a\n\r\ndata: b\r\ndata: c\r\rdata: d\n\n", []string{"a", "b\nc", "d"}},
		{"no space after the colon", "data:a\n\n", []string{"a"}},
		{"only one space is dropped", "data:  a\n\n", []string{" a"}},
		{"several data lines are one text", "data: a\ndata\ndata: b\n\n", []string{"a\n\nb"}},
		{"a comment is an event without data", ": ping\n\n", []string{"-"}},
		{"an empty data line is data", "data:\n\n", []string{""}},
		{"a byte order mark is no part of a name", "\xEF\xBB\xBFdata: a\n\n", []string{"a"}},
		{"an event may lack its blank line", "data: a\n\ndata: [DONE]", []string{"a", "[DONE]"}},
		{"an event may lack its last line feed", "data: a\n", []string{"a"}},
		{"a field that only begins like data is another", "database: a\n\n", []string{"-"}},
		{"cut characters stay whole", "data: 好🙂\n\n", []string{"好🙂"}},
		{"nothing is no event", "", nil},
	}
	for _, c := range cases {
		for cut, read := range map[string]func(io.Reader) io.Reader{"whole": same, "by bytes": iotest.OneByteReader, "error with data": iotest.DataErrReader} {
			t.Run(c.claim+" "+cut, func(t *testing.T) {
				var data []string
				var raw strings.Builder
				for _, e := range frame(t, read(strings.NewReader(c.stream))) {
					raw.Write(e.Raw)
					if e.Data == nil {
						data = append(data, "-")
					} else {
						data = append(data, string(e.Data))
					}
				}
				if !reflect.DeepEqual(data, c.data) {
					t.Errorf("got %q, want %q", data, c.data)
				}
				if raw.String() != c.stream {
					t.Errorf("bytes changed: %q", raw.String())
				}
			})
		}
	}
}

func same(r io.Reader) io.Reader { return r }

// TestFramerDoesNotWait gives the framer one event and no more: it must come
// out although the stream stays open.
func TestFramerDoesNotWait(t *testing.T) {
	for _, event := range []string{"data: a\n\n", "data: a\r\r", "data: a\r\n\r\n", ": ping\n\n"} {
		r, w := io.Pipe()
		go func() {
			// Both errors mean that the reader is done, which the test checks.
			_, _ = io.WriteString(w, event)
		}()
		if e, err := NewFramer(r, 0).Next(); err != nil || string(e.Raw) != event {
			t.Errorf("%q came out as %q, %v", event, e.Raw, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFramerBoundsOneEvent(t *testing.T) {
	big := "data: " + strings.Repeat("x", 3<<20) + "\n\n"
	if e, err := NewFramer(strings.NewReader(big), 4<<20).Next(); err != nil || string(e.Raw) != big {
		t.Errorf("an event under the bound: %d bytes, %v", len(e.Raw), err)
	}
	if _, err := NewFramer(strings.NewReader(big), 1<<20).Next(); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("an event over the bound: %v", err)
	}
}

func TestFramerPassesTheReadersError(t *testing.T) {
	broken := errors.New("reset")
	f := NewFramer(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)), 0)
	for _, want := range []struct {
		data string
		open bool
	}{{"a", false}, {"b", true}} {
		if e, err := f.Next(); err != nil || string(e.Data) != want.data || e.Open != want.open {
			t.Errorf("got %q, open %v, %v; want %+v", e.Data, e.Open, err, want)
		}
	}
	if _, err := f.Next(); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

// FuzzFramer cuts a stream at random and expects the same events.
func FuzzFramer(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\n: c\n\ndata: 好\r\rdata"), uint64(1))
	f.Add([]byte("\xEF\xBB\xBFevent: x\r\ndata:\n\n\n\r\r\n\r"), uint64(2))
	f.Add([]byte("\r\n\r\r\n\n\r\rdata: [DONE]\n\n"), uint64(3))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		whole := frame(t, bytes.NewReader(stream))
		var raw []byte
		for _, e := range whole {
			raw = append(raw, e.Raw...)
		}
		if !bytes.Equal(raw, stream) {
			t.Fatalf("%q came out as %q", stream, raw)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		var cut pieces
		for rest := stream; len(rest) > 0; {
			n := 1 + r.IntN(min(len(rest), 9))
			cut, rest = append(cut, rest[:n]), rest[n:]
		}
		if got := frame(t, &cut); !reflect.DeepEqual(got, whole) {
			t.Fatalf("%q cut up: %+v, whole: %+v", stream, got, whole)
		}
	})
}

// BenchmarkFramer frames and reads a stream of chunks of different sizes.
func BenchmarkFramer(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 3))
	var stream bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&stream, `data: {"id":"chatcmpl-%08x","object":"chat.completion.chunk","created":1,"model":"small","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}`+"\n\n",
			r.Uint32(), strings.Repeat("w", 1+r.IntN(40)))
		if i%500 == 499 {
			fmt.Fprintf(&stream, ": ping %d\n\n", i)
		}
	}
	b.SetBytes(int64(stream.Len()))
	b.ReportAllocs()
	for b.Loop() {
		f := NewFramer(bytes.NewReader(stream.Bytes()), 0)
		var a Answer
		for {
			e, err := f.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			if _, err := a.Event(e); err != nil {
				b.Fatal(err)
			}
		}
	}
}
