package test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// idle are the flags of an engine that takes no time.
var idle = []string{"--step", "1ns", "--prefill", "1ns", "--decode", "1ns", "--blocks", "8192"}

// connections is how many callers are busy at once, each on its own connection.
const connections = 64

// TestSoak streams as often as SALLYPORT_SOAK says, closed loop, through the real
// binary; no stream may end without its end. A request that is refused, as when
// the disk of a busy machine is too slow for the log, is made again and counted.
func TestSoak(t *testing.T) {
	streams, err := strconv.Atoi(os.Getenv("SALLYPORT_SOAK"))
	if err != nil {
		t.Skip("set SALLYPORT_SOAK to a number of streams, such as 100000, and -timeout 1h")
	}
	w := newWorld(t, idle...)
	w.asInService(t)
	gateway, url := w.serve(t)
	token := w.token(t, "alice@acme.example", "acme")
	awaitOK(t, w.client(t, nil), url, token)
	began, before := time.Now(), w.cpu(t, gateway)
	c := run(t, w, url, token, streams, connections, func(n int) []byte { return ask16(n) })
	took, after := time.Since(began), w.cpu(t, gateway)
	t.Logf("%d streams in %v: %d whole, %d truncated; refused before they began: %v", streams, took.Round(time.Second), c.whole.Load(), c.truncated.Load(), c.others())
	t.Logf("cpu per stream: gateway %v, relays %v, engines %v", per(after[0]-before[0], streams), per(after[1]-before[1], streams), per(after[2]-before[2], streams))
	if c.truncated.Load() > 0 || c.whole.Load() != int64(streams) {
		t.Error("not all were whole")
	}
}

// ask16 is the n-th prompt, of a stream of at most 16 tokens.
func ask16(n int) []byte {
	return chat(fmt.Sprintf("What does paragraph %d of handbook %d say?", n, n%97), true, 16)
}

// counts is what became of requests.
type counts struct {
	whole, truncated, events atomic.Int64

	mu   sync.Mutex
	rest map[string]int
}

func (c *counts) others() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rest
}

// run makes n requests, so many at once, each caller on a connection of its own.
func run(t *testing.T, w *world, url, token string, n, callers int, body func(int) []byte) *counts {
	t.Helper()
	c := &counts{rest: map[string]int{}}
	var next atomic.Int64
	var clients sync.WaitGroup
	for range callers {
		client := w.client(t, nil)
		client.Timeout = time.Minute
		clients.Go(func() {
			for {
				i := int(next.Add(1))
				if i > n || t.Context().Err() != nil {
					return
				}
				b := body(i)
				stream := bytes.Contains(b, []byte(`"stream":true`))
				for {
					a, err := ask(t.Context(), client, url, token, b)
					if c.count(a, err, stream) || t.Context().Err() != nil {
						break
					}
					time.Sleep(50 * time.Millisecond) // as it was asked to
				}
			}
		})
	}
	clients.Wait()
	return c
}

// count takes an answer and reports whether it was one, whole or not.
func (c *counts) count(a answer, err error, stream bool) bool {
	c.events.Add(int64(strings.Count(a.body, "\n\n")))
	switch {
	case a.whole(stream) && err == nil:
		c.whole.Add(1)
	case a.status == http.StatusOK:
		c.truncated.Add(1)
	default:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rest[fmt.Sprint(a.status, " ", a.code, " ", err)]++
		return false
	}
	return true
}

// asInService has the gateway's log use segments as they are in service. Policy
// gets time: on a machine that is busy with the callers too, it would deny.
func (w *world) asInService(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.config, strings.NewReplacer("segment: 1MiB", "segment: 64MiB", "{bundle: policy}", "{bundle: policy, timeout: 5s}").Replace(string(text)))
}

// cpu is what the gateway, the relays and the engines have used.
func (w *world) cpu(t *testing.T, gateway *process) (used [3]time.Duration) {
	t.Helper()
	used[0] = gateway.used(t)
	for _, r := range w.replicas {
		used[1] += r.relay.used(t)
		used[2] += r.engine.used(t)
	}
	return used
}

// used is the CPU time of a process, in ticks of 10 ms.
func (p *process) used(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] { // user and system
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func per(d time.Duration, n int) time.Duration {
	return (d / time.Duration(max(n, 1))).Round(time.Microsecond)
}
