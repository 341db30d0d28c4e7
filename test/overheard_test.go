package test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/exporttest"
)

// overheard is a world in which all that its processes write or send is kept:
// spans, exported records as they arrive at receivers, metrics, output, files.
type overheard struct {
	*world
	gateway *process
	url     string
	heard   map[string]*recorder // by what it hears
	kafka   *exporttest.Kafka
}

// recorder keeps what comes.
type recorder struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (r *recorder) keep(from io.Reader) {
	text, err := io.ReadAll(from)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.Write(text)
	if err != nil {
		fmt.Fprintf(&r.all, "\n(%v)\n", err)
	}
}

func (r *recorder) text() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.all.Bytes())
}

// httpRecorder takes everything that is posted to it.
func httpRecorder(t *testing.T, contentType, answer string) (*recorder, string) {
	t.Helper()
	rec := new(recorder)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			zr, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = zr
		}
		var head strings.Builder
		_ = r.Header.Write(&head) // to memory
		rec.keep(io.MultiReader(strings.NewReader(r.URL.String()+"\n"+head.String()), body))
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	return rec, server.URL
}

// tlsRecorder reads whatever comes over TLS.
func tlsRecorder(t *testing.T, a *exporttest.Authority) (*recorder, string) {
	t.Helper()
	a.Leaf("syslog.lab")
	own, err := tls.LoadX509KeyPair(filepath.Join(a.Dir, "syslog.lab.pem"), filepath.Join(a.Dir, "syslog.lab.key"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	rec := new(recorder)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go rec.stream(conn)
		}
	}()
	return rec, listener.Addr().String()
}

// stream keeps what comes as it comes.
func (r *recorder) stream(conn net.Conn) {
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		r.mu.Lock()
		r.all.Write(buf[:n])
		r.mu.Unlock()
		if err != nil {
			_ = conn.Close() // it was only read from
			return
		}
	}
}

var recordFormats = []string{"record", "ocsf", "ecs", "cef"}

// newOverheard starts everything. Each engine is reached through what between
// returns; nil: directly.
func newOverheard(t *testing.T, between func(engine string) string) *overheard {
	t.Helper()
	o := &overheard{world: newWorld(t), heard: make(map[string]*recorder)}
	var collector, splunk, logs, syslog string
	o.heard["spans"], collector = httpRecorder(t, "application/json", "{}")
	o.heard["HEC"], splunk = httpRecorder(t, "application/json", `{"text":"Success","code":0}`)
	o.heard["OTLP"], logs = httpRecorder(t, "application/x-protobuf", "")
	a := exporttest.NewAuthority(t)
	o.heard["syslog"], syslog = tlsRecorder(t, a)
	o.kafka = exporttest.NewKafka(t, a)
	token := writeFile(t, filepath.Join(t.TempDir(), "token"), "s3cret")
	var sinks []string
	for _, format := range recordFormats {
		sinks = append(sinks, fmt.Sprintf("{name: %[1]s, format: %[1]s, raw: true, to: {file: {path: sink/%[1]s.jsonl}}}", format))
	}
	ca := fmt.Sprintf("tls: {ca_file: %q}", a.CAFile)
	sinks = append(sinks,
		fmt.Sprintf("{name: hec, format: ecs, raw: true, to: {hec: {url: %q, token_file: %q}}}", splunk, token),
		fmt.Sprintf("{name: otlp, format: ocsf, raw: true, to: {otlp: {url: %q, token_file: %q}}}", logs, token),
		fmt.Sprintf("{name: syslog, to: {syslog: {address: %q, %s}}}", syslog, ca),
		fmt.Sprintf("{name: kafka, to: {kafka: {brokers: [%q], topic: %s, username: %s, password_file: %q, %s}}}",
			o.kafka.Config.Brokers[0], o.kafka.Config.Topic, o.kafka.Config.Username, o.kafka.Config.PasswordFile, ca),
	)
	config := strings.Replace(readFile(t, o.config), "segment: 1MiB}", "segment: 1MiB, export: ["+strings.Join(sinks, ",\n  ")+"]}", 1)
	config += fmt.Sprintf("admin: {address: \"127.0.0.1:0\"}\ntelemetry: {otlp_endpoint: %q, sample_ratio: 1, trust_traceparent: true}\n", collector)
	o.config = writeFile(t, o.config, config)
	if err := os.MkdirAll(filepath.Join(o.dir, "sink"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, r := range o.replicas {
		r.relay.stop(t)
		r.admin = fmt.Sprintf("127.0.0.1:%d", exporttest.FreePort(t))
		if between != nil {
			r.serves[0] = between(r.serves[0])
		}
		o.startRelay(t, r, r.addr)
	}
	o.gateway, o.url = o.serve(t)
	return o
}

var adminServes = regexp.MustCompile(`admin=(\S+)`)

// scrape reads the metrics at an admin listener.
func scrape(t *testing.T, address string) []byte {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) < 1000 {
		t.Fatalf("metrics: %d bytes, %v", len(text), err)
	}
	return text
}

// search ends all of it and looks for canaries everywhere. What stood in a place
// that begins with one of those on purpose may be in records.
func (o *overheard) search(t *testing.T, a *aviary, onPurpose []string) {
	t.Helper()
	look := func(where string, text []byte, least int, purposely []string) {
		t.Helper()
		if len(text) < least {
			t.Errorf("%s: only %d bytes to search", where, len(text))
		}
		for _, place := range a.leaks(text) {
			if !begins(place, purposely) {
				t.Errorf("%s holds what came as %s", where, place)
			}
		}
	}
	at := adminServes.FindStringSubmatch(o.gateway.output())
	if at == nil {
		t.Fatal("the gateway does not say where its admin listener is")
	}
	look("the gateway's metrics", scrape(t, at[1]), 1000, nil)
	for _, r := range o.replicas {
		look("a relay's metrics", scrape(t, r.admin), 1000, nil)
	}
	time.Sleep(1500 * time.Millisecond) // a checkpoint, and a round of the sinks
	o.gateway.stop(t)
	for _, r := range o.replicas {
		r.relay.stop(t)
	}

	files := 0
	err := filepath.WalkDir(o.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		files++
		look(strings.TrimPrefix(path, o.dir), text, 0, onPurpose)
		return err
	})
	if err != nil || files < 20 {
		t.Errorf("%d files searched, %v", files, err)
	}
	for _, format := range recordFormats {
		look("the sink "+format, []byte(readFile(t, filepath.Join(o.dir, "sink", format+".jsonl"))), 10_000, onPurpose)
	}
	for name, rec := range o.heard {
		purposely := onPurpose
		if name == "spans" {
			purposely = nil
		}
		look("what arrived as "+name, rec.text(), 10_000, purposely)
	}
	var held bytes.Buffer
	for _, m := range o.kafka.Held() {
		fmt.Fprintf(&held, "%s %v %s\n", m.Key, m.Header, m.Value)
	}
	look("what arrived at Kafka", held.Bytes(), 10_000, onPurpose)
	look("the output of the gateway", []byte(o.gateway.output()), 100, nil)
	tickets := 0 // all of them at one relay, as it may happen
	for _, r := range o.replicas {
		look("the output of a relay", []byte(r.relay.output()), 100, nil)
		tickets += len(r.served(t))
	}
	if tickets == 0 {
		t.Error("the logs of the relays hold no ticket")
	}
}

func begins(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
