package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stream is an answer that has begun.
type stream struct {
	id     string // of the decision
	events *bufio.Scanner
}

// begin asks for a stream and returns once its first event is there.
func begin(t *testing.T, client *http.Client, url, token string) stream {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+completions, bytes.NewReader(chat("Say all that there is to say.", true, 200)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() }) // it has been read to its end, or the test has failed
	events := bufio.NewScanner(resp.Body)
	if resp.StatusCode != http.StatusOK || !events.Scan() {
		t.Fatalf("status %d, %v", resp.StatusCode, events.Err())
	}
	return stream{resp.Header.Get("Sallyport-Decision-Id"), events}
}

// last reads to the end and returns the data of the last event.
func (s stream) last(t *testing.T) (data string) {
	t.Helper()
	for s.events.Scan() {
		if d, ok := strings.CutPrefix(s.events.Text(), "data: "); ok {
			data = d
		}
	}
	if err := s.events.Err(); err != nil {
		t.Error(err)
	}
	return data
}

func TestAStreamWhoseEngineDiesIsNotMadeToLookFinished(t *testing.T) {
	w := newWorld(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	_, url := w.serve(t)
	awaitOK(t, client, url, token)

	s := begin(t, client, url, token)
	for _, r := range w.replicas {
		r.engine.kill()
	}
	var event struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	last := s.last(t)
	if err := json.Unmarshal([]byte(last), &event); err != nil || event.Error.Code != "upstream_error" {
		t.Errorf("the stream ends with %q, want an error event", last)
	}
	_, outcome := recordsOf(t, w.logDir, s.id)
	if o := outcome.Outcome; o.Status != "error" || o.ErrorClass != "upstream_error" || o.HTTP != http.StatusOK {
		t.Errorf("the outcome is %+v", o)
	}

	a, err := ask(t.Context(), client, url, token, chat("Is anybody left?", false, 4))
	if err != nil || a.status != http.StatusServiceUnavailable && a.status != http.StatusBadGateway {
		t.Errorf("without engines: %d %q, %v", a.status, a.code, err)
	}
}

func TestAGatewayThatIsAskedToEndFinishesItsStreams(t *testing.T) {
	w := newWorld(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	gateway, url := w.serve(t)
	awaitOK(t, client, url, token)

	s := begin(t, client, url, token)
	gateway.terminate(t)
	if last := s.last(t); last != "[DONE]" {
		t.Errorf("the stream ends with %q", last)
	}
	gateway.await(t)
	_, outcome := recordsOf(t, w.logDir, s.id)
	if outcome.Outcome.Status != "ok" || outcome.Outcome.Finish != "stop" {
		t.Errorf("the outcome is %+v", outcome.Outcome)
	}
}

func TestAGatewayThatIsAskedToEndEndsTheStreamsThatDoNot(t *testing.T) {
	w := newWorld(t)
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.config, string(text)+"\nlimits: {drain: 300ms}\n")
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	gateway, url := w.serve(t)
	awaitOK(t, client, url, token)

	s := begin(t, client, url, token)
	for _, r := range w.replicas {
		if err := r.engine.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it will not go on
			t.Fatal(err)
		}
		defer func() { _ = r.engine.cmd.Process.Signal(syscall.SIGCONT) }()
	}
	began := time.Now()
	gateway.terminate(t)
	if last := s.last(t); !strings.Contains(last, `"code":"not_ready"`) {
		t.Errorf("the stream ends with %q, want an error event", last)
	}
	gateway.await(t)
	if took := time.Since(began); took < 250*time.Millisecond || took > startTime {
		t.Errorf("it ended after %v", took)
	}
	_, outcome := recordsOf(t, w.logDir, s.id)
	if outcome.Outcome.Status != "error" || outcome.Reason != "stopping" || outcome.Outcome.HTTP != http.StatusOK {
		t.Errorf("the outcome is %s, %+v", outcome.Reason, outcome.Outcome)
	}
}
