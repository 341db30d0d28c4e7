package export

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// ours counts the goroutines that are in code of this package or its sinks.
func ours() (n int) {
	buf := make([]byte, 4<<20)
	for _, g := range bytes.Split(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
		if bytes.Contains(g, []byte("audit/export.(*")) || bytes.Contains(g, []byte("audit/export/sink.")) || bytes.Contains(g, []byte("net/http.(*persistConn)")) {
			n++
		}
	}
	return n
}

// TestAnExporterThatWasStoppedLeavesNoGoroutine stops exporters in the middle:
// of a sink that takes all, of one that nobody listens to, and of one that does
// not answer.
func TestAnExporterThatWasStoppedLeavesNoGoroutine(t *testing.T) {
	before := ours()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // what it accepts nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	hec := func(name, address string) SinkConfig {
		return SinkConfig{Name: name, To: sink.Config{HEC: &sink.HECConfig{URL: "http://" + address, TokenFile: token}}}
	}
	for range 3 {
		w := newWorld(t)
		x, stop := w.start(nil, anyFile(t, "file"), hec("gone", "127.0.0.1:1"), hec("dumb", silent.Addr().String()))
		w.append(50)
		w.until("one has all, and one has failed", func() bool {
			s := x.Status()
			return s[0].Lag == 0 && s[1].Errors > 0
		})
		stop()
	}
	for end := time.Now().Add(10 * time.Second); ours() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines where %d were:\n%s", ours(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}
