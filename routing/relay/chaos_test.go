package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

const (
	chaosPrompts = 24
	chaosBlocks  = 20 // of a prompt
	chaosDomains = 3
)

// cacheEngine is an engine's event side and the cache that it tells of. Prompt
// p belongs to domain p%chaosDomains.
type cacheEngine struct {
	t     *testing.T
	dir   string
	r     *rand.Rand
	salts [chaosDomains]string
	gen   uint64 // of salts: blocks under another salt have other hashes
	pub   *kvevents.Publisher
	rep   *kvevents.ReplayServer
	seq   uint64
	clock time.Duration // by how much its clock is wrong

	copies [chaosPrompts][chaosBlocks]int // of blocks under the present salts
}

func (e *cacheEngine) endpoint() string { return "ipc://" + e.dir + "/e" }
func (e *cacheEngine) replay() string   { return "ipc://" + e.dir + "/r" }

func (e *cacheEngine) start() {
	e.t.Helper()
	var err error
	if e.rep, err = kvevents.NewReplayServer(kvevents.ReplayConfig{Listen: e.replay(), TopicFrame: true}); err != nil {
		e.t.Fatal(err)
	}
	if e.pub, err = kvevents.NewPublisher(kvevents.PublisherConfig{Listen: e.endpoint()}); err != nil {
		e.t.Fatal(err)
	}
	e.seq = 0
	clear(e.copies[:])
}

func (e *cacheEngine) stop() {
	e.t.Helper()
	if err := e.pub.Close(); err != nil {
		e.t.Error(err)
	}
	if err := e.rep.Close(); err != nil {
		e.t.Error(err)
	}
}

// say publishes a batch, or loses it on the way.
func (e *cacheEngine) say(lost bool, evs ...kvevents.Event) {
	e.t.Helper()
	ts := time.Now().Add(e.clock)
	payload := kvevents.AppendBatch(nil, &kvevents.Batch{TS: float64(ts.UnixNano()) / 1e9, Rank: 0, Events: evs}, kvevents.FormMap)
	e.rep.Append(kvevents.Message{Seq: e.seq, Payload: payload})
	if !lost {
		if err := e.pub.Publish("", e.seq, payload); err != nil {
			e.t.Fatal(err)
		}
	}
	e.seq++
}

func (e *cacheEngine) hash(p, block int) kvevents.Hash {
	return kvevents.IntHash(e.gen<<40 | uint64(p)<<20 | uint64(block) + 1)
}

// step stores a part of a prompt below what is held of it, or evicts something.
func (e *cacheEngine) step() kvevents.Event {
	p := e.r.IntN(chaosPrompts)
	if depth := e.depth(p); e.r.IntN(3) > 0 {
		from := e.r.IntN(depth + 1) // what is below is stored again
		to := min(from+1+e.r.IntN(chaosBlocks), chaosBlocks)
		all := block16(e.salts[p%chaosDomains], nil, uint64(p), 0, chaosBlocks)
		ev := kvevents.Event{Type: kvevents.Stored, BlockSize: 16, Medium: "GPU", LoRAID: kvevents.None, Group: 0, SpecKind: "full_attention"}
		ev.Tokens = all.Tokens[16*from : 16*to]
		if from == 0 {
			ev.Salt = all.Salt
		} else {
			ev.Parent = e.hash(p, from-1)
		}
		for i := from; i < to; i++ {
			ev.Hashes = append(ev.Hashes, e.hash(p, i))
			e.copies[p][i]++
		}
		return ev
	}
	ev := kvevents.Event{Type: kvevents.Removed, Medium: "GPU", Group: 0, LoRAID: kvevents.None}
	for range 6 {
		if i := e.r.IntN(chaosBlocks); e.copies[p][i] > 0 {
			e.copies[p][i]--
			ev.Hashes = append(ev.Hashes, e.hash(p, i))
		}
	}
	return ev
}

// depth is how much of a prompt the cache can serve, in blocks.
func (e *cacheEngine) depth(p int) int {
	for i, n := range e.copies[p] {
		if n == 0 {
			return i
		}
	}
	return chaosBlocks
}

// link is the network between a gateway and a relay. It can be cut, and it can
// hold back what is sent without saying so.
type link struct {
	lis net.Listener
	to  string
	mu  sync.Mutex // guards what follows
	all []net.Conn
	gap chan struct{} // not nil while it holds back; closed to go on
}

func newLink(t *testing.T, to string) *link {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{lis: lis, to: to}
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go l.carry(c)
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); l.cut() })
	return l
}

func (l *link) carry(near net.Conn) {
	far, err := net.Dial("tcp", l.to)
	if err != nil {
		_ = near.Close()
		return
	}
	l.mu.Lock()
	l.all = append(l.all, near, far)
	l.mu.Unlock()
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			_, _ = io.Copy(way[0], &held{way[1], l})
			_ = way[0].Close()
			_ = way[1].Close()
		}()
	}
}

// held is a connection whose data waits while the link holds back.
type held struct {
	net.Conn
	l *link
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.l.mu.Lock()
	gap := h.l.gap
	h.l.mu.Unlock()
	if gap != nil {
		<-gap
	}
	return n, err
}

// cut breaks every connection.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gap != nil {
		close(l.gap)
		l.gap = nil
	}
	for _, c := range l.all {
		_ = c.Close()
	}
	l.all = nil
}

func (l *link) holdBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gap == nil {
		l.gap = make(chan struct{})
	}
}

func (l *link) goOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gap != nil {
		close(l.gap)
		l.gap = nil
	}
}

// chaos is an engine, its relay, and a gateway's fleet behind a network.
type chaos struct {
	t      *testing.T
	engine *cacheEngine
	http   *faulty
	auth   *workloadtest.Authority
	world  *world
	vkey   string
	link   *link
	fleet  *fleet.Fleet
}

// startRelay starts a relay process at an address; it knows none of the salts
// of the one before.
func (c *chaos) startRelay(address string) {
	c.world = newWorldOf(c.t, c.auth, func(conf *Config) {
		conf.Listen = address
		if c.vkey != "" {
			conf.Gateways[0].LogVKey = c.vkey
		}
		conf.Engine.URL, conf.Engine.BlockSize = c.http.URL, 16
		conf.Engine.Events = Events{Endpoint: c.engine.endpoint(), Replay: c.engine.replay()}
	})
	if c.vkey == "" {
		c.vkey = c.world.key.vkey
	}
	c.engine.gen++
	clear(c.engine.copies[:]) // what is there is of no use to anybody any more
	for d := range c.engine.salts {
		c.engine.salts[d] = c.world.relay.salts.salt(fmt.Sprint("d", d), "small")
	}
}

func newChaos(t *testing.T, seed uint64) *chaos {
	dir, err := os.MkdirTemp("", "sp") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &chaos{
		t: t, http: newFaulty(t), auth: authority(t, time.Hour),
		engine: &cacheEngine{t: t, dir: dir, r: rand.New(rand.NewPCG(seed, 1))},
	}
	c.http.blocks = 100_000
	c.engine.start()
	t.Cleanup(c.engine.stop)
	c.startRelay("127.0.0.1:0")
	c.link = newLink(t, c.world.relay.Addr())
	id := spiffeid.RequireFromPath(domain, "/pool/general/r0")
	gateway := c.world.gateway
	c.fleet, err = fleet.New(fleet.Config{
		Targets: []fleet.Target{{Address: c.link.lis.Addr().String(), ID: id.String(), Pool: "general"}},
		TLS: func(fleet.Target) (*tls.Config, error) {
			return workload.ClientConfig(gateway, workload.ExactID(id)), nil
		},
		PeerID: func(s tls.ConnectionState) (string, error) {
			peer, err := workload.PeerID(s)
			return peer.String(), err
		},
		BlockKey: [16]byte{1, byte(seed)}, KeyID: "k", LogVKey: c.vkey, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.fleet.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// credits is how much of each prompt a gateway credits the engine with.
func (c *chaos) credits() (out [chaosPrompts]int) {
	for p := range out {
		_, s := c.fleet.Snapshot(fleet.Request{
			Pools: []string{"general"}, Model: "small", Domain: fmt.Sprint("d", p%chaosDomains), Operation: string(chatRoute),
			Tokens: block16("", nil, uint64(p), 0, chaosBlocks).Tokens, TokensExact: true,
		})
		if s.Candidates[0].Stream.Credits() {
			out[p] = s.Candidates[0].Depth
		}
	}
	return out
}

func (c *chaos) truth() (out [chaosPrompts]int) {
	for p := range out {
		out[p] = c.engine.depth(p)
	}
	return out
}

// settles waits until what is credited is what the engine holds.
func (c *chaos) settles(after string) {
	c.t.Helper()
	eventually(c.t, "the index to be the engine's cache after "+after, func() bool { return c.credits() == c.truth() })
}

// TestAfterAnyFaultTheIndexIsWhatTheEngineHolds kills relays, restarts engines
// so that their numbers overtake the old ones unseen, loses batches, cuts and
// stalls the network and sets the engine's clock wrong. The engine can replay
// all that it said, so once all is quiet after each, the index is exactly its
// cache.
func TestAfterAnyFaultTheIndexIsWhatTheEngineHolds(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting
			runChaos(newChaos(t, seed))
		})
	}
}

func runChaos(c *chaos) {
	e, t := c.engine, c.t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("credited %v, held %v, stream %+v", c.credits(), c.truth(), c.world.relay.hub.streams[0].state)
		}
	})
	faults := []struct {
		name string
		do   func()
	}{
		{"a relay was killed", func() {
			address := c.world.relay.Addr()
			if err := c.world.stop(); err != nil {
				t.Error(err)
			}
			c.startRelay(address)
		}},
		{"the engine restarted", func() {
			before := e.seq
			e.stop()
			e.start()
			for range e.r.Uint64N(2*before + 2) { // past the old number or not, before anybody looks
				e.say(false, e.step())
			}
		}},
		{"a batch was lost", func() { e.say(true, e.step()) }},
		{"the network was cut", c.link.cut},
		{"the network stalled", func() {
			c.link.holdBack()
			for range 5 {
				e.say(false, e.step())
			}
			c.link.goOn()
		}},
		{"the clock jumped", func() { e.clock = time.Duration(e.r.IntN(3)-1) * time.Hour }},
		{"everything was cleared", func() {
			clear(e.copies[:])
			e.say(false, kvevents.Event{Type: kvevents.Cleared})
		}},
	}
	credited := 0
	for k := range 2 * len(faults) {
		for range 1 + e.r.IntN(15) {
			e.say(false, e.step())
		}
		f := faults[(k+e.r.IntN(2))%len(faults)]
		f.do()
		e.say(false, e.step())
		c.settles(f.name)
		for _, depth := range c.credits() {
			credited += depth
		}
	}
	if credited == 0 {
		t.Error("test shows nothing: nothing is credited")
	}
}
