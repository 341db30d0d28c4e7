package export

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sallyport-ai/sallyport/audit/export/exporttest"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// receiver is an HTTP receiver over TLS that a test makes fail. It counts
// requests from 1.
type receiver struct {
	*httptest.Server
	caFile, tokenFile string

	mu    sync.Mutex
	calls int
	got   []uint64 // indexes of records, in the order of arrival
}

func newReceiver(t *testing.T, serve func(r *receiver, call int, w http.ResponseWriter, req *http.Request, body []byte)) *receiver {
	t.Helper()
	r := new(receiver)
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls++
		serve(r, r.calls, w, req, body)
	}))
	t.Cleanup(r.Close)
	dir := t.TempDir()
	r.caFile, r.tokenFile = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	for name, text := range map[string][]byte{r.caFile: ca, r.tokenFile: []byte("s3cret\n")} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *receiver) indexes() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// cutOff ends the connection without an answer.
func cutOff(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// otlpReceiver takes logs as https://opentelemetry.io/docs/specs/otlp/ has it,
// and fails in turn.
func otlpReceiver(t *testing.T) *receiver {
	return newReceiver(t, func(r *receiver, call int, w http.ResponseWriter, req *http.Request, body []byte) {
		if req.URL.Path != "/v1/logs" || req.Header.Get("Authorization") != "Bearer s3cret" || req.Header.Get("Content-Type") != "application/x-protobuf" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		switch {
		case call%9 == 2:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case call%9 == 4:
			w.Header().Set("Retry-After", time.Now().UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusTooManyRequests)
			return
		case call%9 == 6:
			cutOff(w)
			return
		}
		var in v1.ExportLogsServiceRequest
		if err := proto.Unmarshal(body, &in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		rejected := 0
		for _, rec := range in.ResourceLogs[0].ScopeLogs[0].LogRecords {
			index := uint64(0)
			for _, a := range rec.Attributes {
				if a.Key == "sallyport.log.index" {
					index = uint64(a.Value.GetIntValue())
				}
			}
			switch {
			case rec.EventName == "sallyport.audit.anchor":
			case index == 33:
				rejected++
			default:
				r.got = append(r.got, index)
			}
		}
		if call%9 == 8 { // taken, and the answer is lost
			cutOff(w)
			return
		}
		out := new(v1.ExportLogsServiceResponse)
		if rejected > 0 {
			out.PartialSuccess = &v1.ExportLogsPartialSuccess{RejectedLogRecords: int64(rejected), ErrorMessage: "bad record"}
		}
		b, err := proto.Marshal(out)
		if err == nil {
			_, _ = w.Write(b)
		}
	})
}

func TestOTLPLosesNothingToPartialSuccessAndLostAnswers(t *testing.T) {
	r := otlpReceiver(t)
	w := newWorld(t)
	c := SinkConfig{Name: "otlp", Format: "ocsf", To: sink.Config{OTLP: &sink.OTLPConfig{URL: r.URL, TokenFile: r.tokenFile, TLS: sink.TLSConfig{CAFile: r.caFile}}}}
	w.append(100)
	x, stop := w.start(func(x *Exporter) { small(&x.followers[0].kind) }, c)
	for range 4 {
		w.append(50)
		w.caughtUp(x)
	}
	stop()
	got := firsts(r.indexes())
	if s := x.Status()[0]; s.Dead != 1 || s.Errors < 4 {
		t.Errorf("status %+v", s)
	}
	if len(got) != len(w.leaves())-1 || !slices.IsSorted(got) || slices.Contains(got, 33) {
		t.Errorf("%d of %d records, in order: %v", len(got), len(w.leaves()), slices.IsSorted(got))
	}
}

// hecReceiver is written after the documentation of Splunk's collector.
func hecReceiver(t *testing.T, ack bool) *receiver {
	next := 0
	asked := make(map[int]int)
	return newReceiver(t, func(r *receiver, call int, w http.ResponseWriter, req *http.Request, body []byte) {
		say := func(status int, v any) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v)
		}
		channel := req.Header.Get("X-Splunk-Request-Channel")
		if req.Header.Get("Authorization") != "Splunk s3cret" || channel == "" {
			say(http.StatusForbidden, map[string]any{"text": "Invalid token", "code": 4})
			return
		}
		if req.URL.Path == "/services/collector/ack" {
			var q struct{ Acks []int }
			if json.Unmarshal(body, &q) != nil || req.URL.Query().Get("channel") != channel {
				say(http.StatusBadRequest, map[string]any{"text": "Invalid data format", "code": 6})
				return
			}
			acks := make(map[string]bool)
			for _, id := range q.Acks {
				asked[id]++
				acks[strconv.Itoa(id)] = id%4 != 3 && asked[id] > 1 // one in four is lost, the others take a while
			}
			say(http.StatusOK, map[string]any{"acks": acks})
			return
		}
		switch {
		case call%7 == 3:
			say(http.StatusServiceUnavailable, map[string]any{"text": "Server is busy", "code": 9})
			return
		case call%7 == 5:
			cutOff(w)
			return
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		var indexes []uint64
		for n := 0; dec.More(); n++ {
			var e struct {
				Time   json.Number
				Fields map[string]string
				Event  json.RawMessage
			}
			if err := dec.Decode(&e); err != nil || !bytes.Contains(e.Event, []byte(`"kind"`)) {
				say(http.StatusBadRequest, map[string]any{"text": "Invalid data format", "code": 6, "invalid-event-number": n})
				return
			}
			index, err := strconv.ParseUint(e.Fields["log_index"], 10, 64)
			if err != nil || index == 33 && !bytes.Contains(e.Event, []byte(`"anchor"`)) {
				say(http.StatusBadRequest, map[string]any{"text": "Invalid data format", "code": 6, "invalid-event-number": n})
				return
			}
			if !bytes.Contains(e.Event, []byte(`"kind":"anchor"`)) {
				indexes = append(indexes, index)
			}
		}
		r.got = append(r.got, indexes...)
		out := map[string]any{"text": "Success", "code": 0}
		if ack {
			out["ackId"] = next
			next++
		}
		say(http.StatusOK, out)
	})
}

func TestHECLosesNothingWithAndWithoutAcknowledgements(t *testing.T) {
	for _, ack := range []bool{false, true} {
		t.Run(fmt.Sprintf("ack %v", ack), func(t *testing.T) {
			r := hecReceiver(t, ack)
			w := newWorld(t)
			c := SinkConfig{Name: "hec", To: sink.Config{HEC: &sink.HECConfig{
				URL: r.URL, TokenFile: r.tokenFile, Ack: ack, AckTimeout: 600 * time.Millisecond, TLS: sink.TLSConfig{CAFile: r.caFile},
			}}}
			x, stop := w.start(func(x *Exporter) { small(&x.followers[0].kind) }, c)
			w.append(120)
			w.caughtUp(x)
			stop()
			got := firsts(r.indexes())
			if s := x.Status()[0]; s.Dead != 1 || s.Errors == 0 {
				t.Errorf("status %+v", s)
			}
			if len(got) != len(w.leaves())-1 || !slices.IsSorted(got) {
				t.Errorf("%d of %d records, in order: %v", len(got), len(w.leaves()), slices.IsSorted(got))
			}
		})
	}
}

func TestCredentialsOfAReceiverAreReadAgainAndNeverGiveUpRecords(t *testing.T) {
	r := hecReceiver(t, false)
	w := newWorld(t)
	if err := os.WriteFile(r.tokenFile, []byte("expired"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := SinkConfig{Name: "hec", To: sink.Config{HEC: &sink.HECConfig{URL: r.URL, TokenFile: r.tokenFile, TLS: sink.TLSConfig{CAFile: r.caFile}}}}
	x, stop := w.start(nil, c)
	w.append(20)
	w.until("refused", func() bool { s := x.Status()[0]; return s.Errors > 2 && strings.Contains(s.LastError, "Invalid token") })
	if err := os.WriteFile(r.tokenFile, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.caughtUp(x)
	stop()
	contiguous(t, firsts(r.indexes()), len(w.leaves()))
}

func TestAReceiverThatIsNotWhoItShouldBeGetsNothing(t *testing.T) {
	r, other := otlpReceiver(t), exporttest.NewAuthority(t)
	w := newWorld(t)
	c := SinkConfig{Name: "otlp", To: sink.Config{OTLP: &sink.OTLPConfig{URL: r.URL, TokenFile: r.tokenFile, TLS: sink.TLSConfig{CAFile: other.CAFile}}}}
	x, stop := w.start(nil, c)
	w.until("it failed", func() bool { return x.Status()[0].Errors > 1 })
	stop()
	if s := x.Status()[0]; !strings.Contains(s.LastError, "unknown authority") || len(r.indexes()) > 0 {
		t.Errorf("status %+v", s)
	}
}
