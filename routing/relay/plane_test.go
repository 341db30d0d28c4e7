package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// The plane is everything between an engine's cache and a gateway's credit:
// encoded batches, the follower and its stream, the mirror, the hub, residency
// frames over gRPC and TLS, and the gateway's fleet with its index. Only the
// ZeroMQ socket is left out, so that a test decides which batches arrive, and
// the timers, so that it decides when everything has arrived.

// tb is what tests and property tests have in common.
type tb interface {
	rapid.TB
	Cleanup(func())
}

// prefix is a whole prefix in its namespace; a block is a letter.
type prefix struct {
	ns    namespace
	names string
}

// reference is the model of one engine rank: how many copies it holds of the
// last block of each whole prefix, and everything that it ever published.
type reference struct {
	salts func(domain string) string
	rank  int
	boot  uint32 // of the process; hashes differ between processes
	form  kvevents.Form
	held  map[prefix]int
	log   []kvevents.Message
	kept  int // batches that a replay still has
}

// foreign is a domain whose salt the relay has never given out, and unsalted
// one whose requests carried none.
const foreign, unsalted = "foreign", ""

func (e *reference) restart() {
	e.boot++
	e.held, e.log = make(map[prefix]int), nil
}

// depth is how many blocks of a prompt the engine can serve from its cache, to
// requests that came through its relay.
func (e *reference) depth(ns namespace, names string) int {
	if ns.domain == foreign || ns.domain == unsalted {
		return 0
	}
	for i := range names {
		if e.held[prefix{ns, names[:i+1]}] == 0 {
			return i
		}
	}
	return len(names)
}

func (e *reference) hash(p prefix) kvevents.Hash {
	f := fnv.New64a()
	fmt.Fprintf(f, "%d/%+v", e.boot, p)
	return kvevents.IntHash(f.Sum64() | 1)
}

// store takes blocks from..to of a prompt into the cache and returns the event
// that says so.
func (e *reference) store(ns namespace, names string, from, to int) kvevents.Event {
	ev := kvevents.Event{
		Type: kvevents.Stored, BlockSize: testBlock, Tokens: tokensOf([]byte(names[from:to])...), Adapter: ns.adapter,
		Medium: "GPU", LoRAID: kvevents.None, Group: 0, SpecKind: "full_attention",
	}
	if from == 0 {
		ev.Salt = e.salts(ns.domain)
	} else {
		ev.Parent = e.hash(prefix{ns, names[:from]})
	}
	for i := from; i < to; i++ {
		p := prefix{ns, names[:i+1]}
		e.held[p]++
		ev.Hashes = append(ev.Hashes, e.hash(p))
	}
	return ev
}

// evict gives up one copy of the last block of each prefix.
func (e *reference) evict(ps ...prefix) kvevents.Event {
	ev := kvevents.Event{Type: kvevents.Removed, Medium: "GPU", Group: 0, LoRAID: kvevents.None}
	for _, p := range ps {
		if e.held[p] > 0 {
			e.held[p]--
			ev.Hashes = append(ev.Hashes, e.hash(p))
		}
	}
	return ev
}

func (e *reference) clear() kvevents.Event {
	clear(e.held)
	return kvevents.Event{Type: kvevents.Cleared}
}

// batch publishes events and returns the batch's number.
func (e *reference) batch(evs ...kvevents.Event) int {
	seq := len(e.log)
	// The time of day is what makes batches of two processes differ.
	b := kvevents.Batch{TS: float64(uint64(e.boot)<<20 + uint64(seq)), Rank: e.rank, Events: evs}
	e.log = append(e.log, kvevents.Message{Seq: uint64(seq), Payload: kvevents.AppendBatch(nil, &b, e.form)})
	return seq
}

// replay is the engine's replay socket.
func (e *reference) replay(_ context.Context, from uint64, each func(kvevents.Message) error) error {
	for seq := max(int(from), len(e.log)-e.kept); seq < len(e.log); seq++ {
		if err := each(e.log[seq]); err != nil {
			return err
		}
	}
	return nil
}

// prefixes lists what is held, in a fixed order.
func (e *reference) prefixes() (out []prefix) {
	for p, n := range e.held {
		if n > 0 {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b prefix) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return out
}

// side is the relay beside one engine.
type side struct {
	residencyv1.UnimplementedResidencyServer
	relay   *Relay
	engines []*reference // by rank
	follow  []*follower
	blocks  int // capacity that hello tells
	server  *grpc.Server

	mu    sync.Mutex
	watch *open
}

// open is a Watch that waits for its orders.
type open struct {
	drain chan chan uint64 // send what is queued, and say how many frames were sent
	cut   chan struct{}
}

func (s *side) Watch(req *residencyv1.WatchRequest, out grpc.ServerStreamingServer[residencyv1.Frame]) error {
	o := &open{make(chan chan uint64), make(chan struct{})}
	w := &watch{
		r: s.relay, out: out, gateway: gatewayLog{"g", "log"}, key: blockid.Key(req.GetBlockKey()),
		info: &info{name: "vllm", models: []string{"m"}, adapters: []string{"lora"}, blockSize: testBlock, numBlocks: s.blocks, routes: []route{chatRoute}},
	}
	sub, pics := s.relay.hub.subscribe()
	defer s.relay.hub.unsubscribe(sub)
	if err := w.begin(pics); err != nil {
		return err
	}
	s.mu.Lock()
	s.watch = o
	s.mu.Unlock()
	for {
		select {
		case done := <-o.drain:
			for len(sub.changes) > 0 {
				c := <-sub.changes
				if err := w.change(c); err != nil {
					return err
				}
				sub.waiting.Add(-int64(c.size()))
			}
			if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Heartbeat{Heartbeat: &residencyv1.Heartbeat{}}}); err != nil {
				return err
			}
			done <- w.seq
		case <-o.cut:
			return status.Error(codes.Unavailable, "cut")
		case <-out.Context().Done():
			return nil
		}
	}
}

// sent flushes everything and returns the number of the last frame, or 0 while
// nobody watches.
func (s *side) sent() uint64 {
	s.relay.hub.flush()
	s.mu.Lock()
	o := s.watch
	s.mu.Unlock()
	if o == nil {
		return 0
	}
	done := make(chan uint64, 1)
	select {
	case o.drain <- done:
		return <-done
	case <-time.After(10 * time.Second):
		return 0
	}
}

// cut ends the gateway's Watch.
func (s *side) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.watch.cut)
	s.watch = nil
}

// plane is a gateway and the replicas that it watches.
type plane struct {
	t     tb
	sides []*side
	fleet *fleet.Fleet
}

// shape is what a plane is made of. The zero shape is one engine of one rank
// that keeps everything for replay.
type shape struct {
	replicas, ranks int
	kind            Kind // empty: vLLM
	noReplay        bool
	once            bool // full reports
	kept            int  // batches; 0: all
	form            kvevents.Form
	blocks          int // capacity; 0 unknown
}

// planeSVIDs prove the identity of each side, by common name.
var planeSVIDs = sync.OnceValue(func() (out [8]tls.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	for i := range out {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: planeID(i)}}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			panic(err)
		}
		out[i] = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	return out
})

func planeID(i int) string { return fmt.Sprintf("spiffe://example.org/pool/general/r%d", i) }

func newSide(t tb, i int, sh shape) *side {
	if sh.kind == "" {
		sh.kind = VLLM
	}
	salts, err := newSalter("")
	if err != nil {
		t.Fatal(err)
	}
	s := &side{blocks: sh.blocks, relay: &Relay{
		cfg: Config{Pool: "general", Engine: Engine{Kind: sh.kind, Ranks: sh.ranks, Events: Events{FullReports: sh.once}}},
		id:  planeID(i), epoch: fmt.Sprint("epoch ", i), log: slog.New(slog.DiscardHandler), load: newLoad(), counts: newCounters(), salts: salts,
	}}
	s.relay.hub = newHub(sh.ranks, !sh.noReplay, s.relay.mirrorConfig(testBlock, sh.blocks), nil)
	for rank := range sh.ranks {
		e := &reference{rank: rank, form: sh.form, kept: sh.kept, salts: func(domain string) string {
			switch domain {
			case unsalted:
				return ""
			case foreign:
				return salts.secret(foreign, "m")
			}
			return salts.salt(domain, "m")
		}}
		if e.kept == 0 {
			e.kept = 1 << 30
		}
		e.restart()
		f := &follower{hub: s.relay.hub, rank: rank, log: s.relay.log}
		if !sh.noReplay {
			f.replay = e.replay
		}
		s.engines, s.follow = append(s.engines, e), append(s.follow, f)
	}
	return s
}

func newPlane(t tb, sh shape) *plane {
	sh.replicas, sh.ranks = max(sh.replicas, 1), max(sh.ranks, 1)
	p := &plane{t: t}
	var targets []fleet.Target
	for i := range sh.replicas {
		s := newSide(t, i, sh)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{planeSVIDs()[i]},
		})))
		residencyv1.RegisterResidencyServer(s.server, s)
		go s.server.Serve(lis)
		t.Cleanup(s.server.Stop)
		p.sides = append(p.sides, s)
		targets = append(targets, fleet.Target{Address: lis.Addr().String(), ID: planeID(i), Pool: "general"})
	}
	var err error
	p.fleet, err = fleet.New(fleet.Config{
		Targets: targets, BlockKey: [16]byte{1, 2, 3}, KeyID: "k",
		TLS: func(fleet.Target) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, nil
		},
		PeerID: func(s tls.ConnectionState) (string, error) { return s.PeerCertificates[0].Subject.CommonName, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.fleet.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for i := range p.sides {
		for rank := range sh.ranks {
			p.connect(i, rank)
		}
	}
	p.settle()
	return p
}

// engine is the only rank of a replica's engine.
func (p *plane) engine(i int) *reference { return p.sides[i].engines[0] }

// connect makes the relay's connection to an engine rank anew.
func (p *plane) connect(i, rank int) { p.sides[i].follow[rank].connected(context.Background()) }

// disconnect loses it.
func (p *plane) disconnect(i int) {
	p.sides[i].relay.hub.update(0, func(s *stream) { s.lost("test") })
}

// deliver gives the relay a batch.
func (p *plane) deliver(i, rank, seq int) {
	p.sides[i].follow[rank].receive(context.Background(), p.sides[i].engines[rank].log[seq])
}

// say publishes and delivers a batch of an engine of one rank.
func (p *plane) say(i int, evs ...kvevents.Event) {
	p.deliver(i, 0, p.engine(i).batch(evs...))
}

// settle waits until the gateway has applied everything that the relays know.
func (p *plane) settle() {
	p.t.Helper()
	for i, s := range p.sides {
		last := uint64(0)
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Microsecond) {
			if last == 0 {
				last = s.sent()
			}
			st := p.fleet.Replicas()[i]
			if last > 0 && st.Frames == last && st.Excluded == "" {
				break
			}
			if time.Now().After(deadline) {
				p.t.Fatalf("replica %d: %d frames of %d applied: %s %s", i, st.Frames, last, st.Excluded, st.Detail)
			}
		}
	}
}

// candidates is what a placement of a prompt looks at.
func (p *plane) candidates(ns namespace, names string) []routing.Candidate {
	_, s := p.fleet.Snapshot(fleet.Request{
		Pools: []string{"general"}, Model: ns.model, Adapter: ns.adapter, Domain: ns.domain, Operation: string(chatRoute),
		Tokens: tokensOf([]byte(names)...), TokensExact: true,
	})
	return s.Candidates
}

// credit is how many blocks of a prompt replica i is credited with.
func (p *plane) credit(i int, ns namespace, names string) int {
	c := p.candidates(ns, names)[i]
	if !c.Stream.Credits() {
		return 0
	}
	return c.Depth
}

// The prompts of the properties share beginnings, middles and ends.
var planePrompts = []string{"wxyzw", "wxyzy", "vxyz", "xwxy", "wvxyz", "wwwww", "w", "zyxwv", "wxvvv"}

var (
	nsA    = namespace{"m", "", "a"}
	nsB    = namespace{"m", "", "b"}
	nsLoRA = namespace{"m", "lora", "a"}

	planeSpaces  = []namespace{nsA, nsB, nsLoRA}
	engineSpaces = append([]namespace{{"m", "", foreign}, {"m", "", unsalted}}, planeSpaces...)
)

// diff says where credit is more than an engine holds or, if exact, not just
// that.
func (p *plane) diff(exact bool) string {
	for _, ns := range engineSpaces {
		for _, names := range planePrompts {
			for i, c := range p.candidates(ns, names) {
				credit, held := 0, p.sides[i].engines[0].depth(ns, names)
				if c.Stream.Credits() {
					credit = c.Depth
				}
				if credit > held || exact && credit < held {
					return fmt.Sprintf("replica %d is credited with %d blocks of %q in %+v, and holds %d (stream %v, %+v)",
						i, credit, names, ns, held, c.Stream, p.sides[i].relay.hub.streams[0].state)
				}
			}
		}
	}
	return ""
}

// sound fails the test where there is more credit than blocks.
func (p *plane) sound() {
	p.t.Helper()
	p.settle()
	if d := p.diff(false); d != "" {
		p.t.Fatal(d)
	}
}

// equal fails the test where credit is not exactly the blocks.
func (p *plane) equal() {
	p.t.Helper()
	p.settle()
	if d := p.diff(true); d != "" {
		p.t.Fatal(d)
	}
}

// draws of the properties

func drawPrompt(rt *rapid.T) string { return rapid.SampledFrom(planePrompts).Draw(rt, "prompt") }

func drawSpace(rt *rapid.T) namespace { return rapid.SampledFrom(engineSpaces).Draw(rt, "namespace") }

func (p *plane) drawReplica(rt *rapid.T) int {
	return rapid.IntRange(0, len(p.sides)-1).Draw(rt, "replica")
}

// prefill is what an engine says when it computes a prompt: the blocks that it
// does not hold, or some of those that it does once more, in one or two events.
func (e *reference) prefill(rt *rapid.T, ns namespace, names string) (evs []kvevents.Event) {
	from := 0
	for from < len(names) && e.held[prefix{ns, names[:from+1]}] > 0 {
		from++
	}
	if from > 0 && rapid.IntRange(0, 3).Draw(rt, "copies") == 0 {
		from = rapid.IntRange(0, from-1).Draw(rt, "again from")
	}
	if from == len(names) {
		return nil
	}
	cut := rapid.IntRange(from, len(names)).Draw(rt, "cut")
	if cut > from && cut < len(names) {
		return []kvevents.Event{e.store(ns, names, from, cut), e.store(ns, names, cut, len(names))}
	}
	return []kvevents.Event{e.store(ns, names, from, len(names))}
}

// work is what engines do all day: prefill, evict, and seldom clear.
func (p *plane) work(space func(*rapid.T) namespace, replica func(*rapid.T) int) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"prefill": func(rt *rapid.T) {
			i := replica(rt)
			p.say(i, p.engine(i).prefill(rt, space(rt), drawPrompt(rt))...)
		},
		"prefill twice in a batch": func(rt *rapid.T) {
			i, ns := replica(rt), space(rt)
			p.say(i, append(p.engine(i).prefill(rt, ns, drawPrompt(rt)), p.engine(i).prefill(rt, ns, drawPrompt(rt))...)...)
		},
		"evict": func(rt *rapid.T) {
			i, ns := replica(rt), space(rt)
			held := slices.DeleteFunc(p.engine(i).prefixes(), func(x prefix) bool { return x.ns != ns })
			if len(held) == 0 {
				rt.Skip("nothing is held")
			}
			p.say(i, p.engine(i).evict(rapid.SliceOfN(rapid.SampledFrom(held), 1, 4).Draw(rt, "evicted")...))
		},
	}
}

// faults is what happens to engines, relays and the network between them.
func (p *plane) faults() map[string]func(*rapid.T) {
	quietly := func(rt *rapid.T, i int) { // unheard
		for range rapid.IntRange(0, 3).Draw(rt, "unheard") {
			p.engine(i).batch(p.engine(i).prefill(rt, drawSpace(rt), drawPrompt(rt))...)
		}
	}
	return map[string]func(*rapid.T){
		"clear": func(rt *rapid.T) {
			i := p.drawReplica(rt)
			p.say(i, p.engine(i).clear())
		},
		"a batch is lost, which the next one shows": func(rt *rapid.T) {
			i := p.drawReplica(rt)
			p.engine(i).batch(p.engine(i).evict(p.engine(i).prefixes()...))
			p.say(i, p.engine(i).prefill(rt, drawSpace(rt), drawPrompt(rt))...)
		},
		"a batch comes twice": func(rt *rapid.T) {
			if i := p.drawReplica(rt); len(p.engine(i).log) > 0 {
				p.deliver(i, 0, len(p.engine(i).log)-1)
			}
		},
		"the connection breaks": func(rt *rapid.T) {
			i := p.drawReplica(rt)
			p.disconnect(i)
			quietly(rt, i)
			p.connect(i, 0)
		},
		"the engine restarts, seen by its connection": func(rt *rapid.T) {
			i := p.drawReplica(rt)
			p.disconnect(i)
			p.overtake(rt, i)
			p.connect(i, 0)
		},
		"a batch cannot be decoded": func(rt *rapid.T) {
			i := p.drawReplica(rt)
			e := p.engine(i)
			seq := e.batch(e.evict(e.prefixes()...))
			e.log[seq].Payload = e.log[seq].Payload[:rapid.IntRange(1, len(e.log[seq].Payload)-1).Draw(rt, "bytes left")]
			p.deliver(i, 0, seq)
		},
	}
}

// overtake restarts an engine, whose numbers go on past the old ones, or not.
func (p *plane) overtake(rt *rapid.T, i int) {
	e := p.engine(i)
	before := len(e.log)
	e.restart()
	for range rapid.IntRange(0, before+2).Draw(rt, "batches since") {
		e.batch(e.prefill(rt, drawSpace(rt), drawPrompt(rt))...)
	}
}

func merged(ms ...map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	out := make(map[string]func(*rapid.T))
	for _, m := range ms {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}
