package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/ledger"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// picturebook is what a subscriber knows, built from frames alone.
type picturebook struct {
	t     testing.TB
	seq   uint64
	epoch string
	ready bool // after snapshot_end
	hello *residencyv1.Hello
	state map[uint32]residencyv1.State_Stream
	load  *residencyv1.Load
	nodes map[uint32]*page
	beats int

	draining bool
}

type page struct {
	parent uint32
	tiers  uint8
	path   string
}

func newPicturebook(t testing.TB) *picturebook {
	return &picturebook{t: t, state: map[uint32]residencyv1.State_Stream{}, nodes: map[uint32]*page{}}
}

func (p *picturebook) take(f *residencyv1.Frame) {
	p.t.Helper()
	p.seq++
	if f.GetSeq() != p.seq || f.GetEpoch() == "" || p.epoch != "" && f.GetEpoch() != p.epoch {
		p.t.Fatalf("frame %d of %q, want %d of %q", f.GetSeq(), f.GetEpoch(), p.seq, p.epoch)
	}
	p.epoch = f.GetEpoch()
	switch b := f.GetBody().(type) {
	case *residencyv1.Frame_Hello:
		p.hello = b.Hello
	case *residencyv1.Frame_Snapshot:
		if p.ready {
			p.t.Fatal("a snapshot after its end")
		}
		for _, s := range b.Snapshot.GetNodes() {
			p.stored(s)
		}
	case *residencyv1.Frame_SnapshotEnd:
		p.ready = true
	case *residencyv1.Frame_Stored:
		p.stored(b.Stored)
	case *residencyv1.Frame_Removed:
		for _, n := range b.Removed.GetNodes() {
			if x := p.nodes[n]; x == nil || x.tiers&(1<<b.Removed.GetTier()) == 0 {
				p.t.Fatalf("node %d removed from a tier it is not in", n)
			}
			p.nodes[n].tiers &^= 1 << b.Removed.GetTier()
		}
	case *residencyv1.Frame_Cleared:
		clear(p.nodes)
	case *residencyv1.Frame_State:
		p.state[b.State.GetRank()] = b.State.GetState()
	case *residencyv1.Frame_Load:
		p.load = b.Load
	case *residencyv1.Frame_Heartbeat:
		p.beats++
	case *residencyv1.Frame_Drain:
		p.draining = b.Drain.GetDraining()
	}
}

func (p *picturebook) stored(s *residencyv1.Stored) {
	p.t.Helper()
	parent, path := s.GetParentNode(), fmt.Sprintf("%x", s.GetNs())
	if parent != 0 {
		if p.nodes[parent] == nil {
			p.t.Fatalf("parent %d of node %d is not known", parent, s.GetNode())
		}
		path = p.nodes[parent].path
	}
	for i, id := range s.GetIds() {
		n := s.GetNode() + uint32(i)
		path = fmt.Sprintf("%s/%x", path, id)
		if old := p.nodes[n]; old != nil && old.path == path {
			old.tiers |= 1 << s.GetTier()
		} else {
			p.nodes[n] = &page{parent, 1 << s.GetTier(), path}
		}
		parent = n
	}
}

func (p *picturebook) paths() map[string]bool {
	out := map[string]bool{}
	for _, x := range p.nodes {
		if x.tiers != 0 {
			out[x.path] = true
		}
	}
	return out
}

// mirrorPaths is what the mirror's snapshot would be in a key.
func mirrorPaths(r *Relay, key blockid.Key) map[string]bool {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	out, paths := map[string]bool{}, map[uint32]string{}
	for _, s := range r.hub.streams[0].m.snapshot() {
		path := paths[s.parent]
		if s.parent == 0 {
			ns := s.space.namespace()
			path = fmt.Sprintf("%x", blockid.Namespace(&key, ns.model, ns.adapter, ns.domain))
		}
		paths[s.node] = fmt.Sprintf("%s/%x", path, blockid.Tokens(&key, s.tokens, s.extra))
		out[paths[s.node]] = true
	}
	return out
}

func equalSets(a, b map[string]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}

// publisher is an engine's event side.
type publisher struct {
	t      testing.TB
	pub    *kvevents.Publisher
	replay *kvevents.ReplayServer
	seq    uint64
}

func newPublisher(t testing.TB) *publisher {
	t.Helper()
	pub, err := kvevents.NewPublisher(kvevents.PublisherConfig{Listen: "tcp://127.0.0.1:0", HWM: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := kvevents.NewReplayServer(kvevents.ReplayConfig{Listen: "tcp://127.0.0.1:0", TopicFrame: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pub.Close(); err != nil {
			t.Error(err)
		}
		if err := rep.Close(); err != nil {
			t.Error(err)
		}
	})
	return &publisher{t: t, pub: pub, replay: rep}
}

func (p *publisher) publish(send bool, evs ...kvevents.Event) {
	p.t.Helper()
	b := &kvevents.Batch{TS: float64(time.Now().UnixNano()) / 1e9, Rank: 0, Events: evs}
	payload := kvevents.AppendBatch(nil, b, kvevents.FormMap)
	p.replay.Append(kvevents.Message{Seq: p.seq, Payload: payload})
	if send {
		if err := p.pub.Publish("", p.seq, payload); err != nil {
			p.t.Fatal(err)
		}
	}
	p.seq++
}

func watchWorld(t testing.TB, replay bool) (*world, *publisher) {
	f := newFaulty(t)
	p := newPublisher(t)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Engine.BlockSize = 16
		c.Engine.Events = Events{Endpoint: p.pub.Addr()}
		if replay {
			c.Engine.Events.Replay = p.replay.Addr()
		}
	})
	w.ready()
	// A subscription is not acknowledged, and what is published before it has
	// come is a hole that only the next batch shows.
	eventually(t, "the relay's subscription", func() bool { return p.pub.Subscribers() > 0 })
	return w, p
}

// follow watches until ok, or the stream's end.
func follow(stream residencyv1.Residency_WatchClient, book *picturebook, ok func() bool) error {
	for !ok() {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		book.take(f)
	}
	return nil
}

func (w *world) watch(ctx context.Context) residencyv1.Residency_WatchClient {
	w.t.Helper()
	stream, err := w.residency(w.gateway).Watch(ctx, w.watchRequest())
	if err != nil {
		w.t.Fatal(err)
	}
	return stream
}

// block16 makes an event of n blocks of 16 tokens.
func block16(salt string, r *rand.Rand, prompt uint64, from, to int) kvevents.Event {
	ev := kvevents.Event{Type: kvevents.Stored, BlockSize: 16, Medium: "GPU", LoRAID: kvevents.None, Group: 0, SpecKind: "full_attention"}
	g := rand.New(rand.NewPCG(prompt, 1))
	for i := range to {
		h := kvevents.IntHash(prompt<<20 | uint64(i) + 1)
		tokens := make([]uint32, 16)
		for j := range tokens {
			tokens[j] = g.Uint32N(150_000)
		}
		if i == from-1 {
			ev.Parent = h
		}
		if i >= from {
			ev.Hashes = append(ev.Hashes, h)
			ev.Tokens = append(ev.Tokens, tokens...)
		}
	}
	if from == 0 {
		ev.Salt = salt
	}
	return ev
}

func gone16(prompt uint64, blocks ...int) kvevents.Event {
	ev := kvevents.Event{Type: kvevents.Removed, Medium: "GPU", Group: kvevents.None}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kvevents.IntHash(prompt<<20|uint64(b)+1))
	}
	return ev
}

func live(s residencyv1.State_Stream) bool {
	return s == residencyv1.State_LIVE || s == residencyv1.State_LIVE_PARTIAL
}

func TestHelloSaysWhatTheEngineIs(t *testing.T) {
	w, _ := watchWorld(t, true)
	book := newPicturebook(t)
	if err := follow(w.watch(t.Context()), book, func() bool { return book.load != nil && book.beats > 0 && live(book.state[0]) }); err != nil {
		t.Fatal(err)
	}
	h := book.hello
	if h.GetReplica() != "spiffe://example.org/pool/general/r0" || h.GetPool() != "general" || h.GetEngine() != "vllm" ||
		fmt.Sprint(h.GetModels(), h.GetAdapters()) != "[small] [lora]" || h.GetBlockSize() != 16 || h.GetNumBlocks() != 512 || h.GetRanks() != 1 ||
		fmt.Sprint(h.GetRoutesIsolated()) != "[POST /v1/chat/completions POST /v1/completions]" || !h.GetSaltVisible() {
		t.Errorf("hello %v", h)
	}
	if book.epoch != w.relay.Epoch() || book.state[0] != residencyv1.State_LIVE {
		t.Errorf("epoch %q, state %v", book.epoch, book.state)
	}
	eventually(t, "KV use in the load", func() bool {
		return follow(w.watch(t.Context()), newPicturebook(t), func() bool { return true }) == nil && w.relay.load.report(gatewayLog{}).GetKvUsedBlocks() == 128
	})
}

// Whenever a subscriber comes, it ends up with what the mirror holds.
func TestAnySubscriberAtAnyTimeBelievesWhatTheMirrorHolds(t *testing.T) {
	w, p := watchWorld(t, true)
	key := blockid.Key(w.watchRequest().GetBlockKey())
	r := rand.New(rand.NewPCG(5, 6))
	salt := w.relay.salts.salt("domain-a", "small")
	foreign := w.relay.salts.secret("domain-b", "small") // never given out
	const last = uint64(4000)
	var subs sync.WaitGroup
	for i := range 60 {
		for range 5 {
			prompt := uint64(1 + r.IntN(300))
			s := salt
			if prompt%5 == 0 {
				s = foreign
			}
			if r.IntN(2) == 0 {
				p.publish(r.IntN(20) > 0, block16(s, r, prompt, 0, 1+r.IntN(8)))
			} else {
				p.publish(r.IntN(20) > 0, gone16(prompt, r.Perm(8)[:3]...))
			}
		}
		if i%12 != 0 {
			continue
		}
		stream := w.watch(t.Context())
		subs.Go(func() {
			book := newPicturebook(t)
			want := fmt.Sprintf("/%x", blockid.Tokens(&key, block16(salt, r, last, 0, 1).Tokens, nil))
			err := follow(stream, book, func() bool {
				for path := range book.paths() {
					if strings.HasSuffix(path, want) {
						return true
					}
				}
				return false
			})
			if err != nil {
				t.Errorf("subscriber ended: %v", err)
				return
			}
			if got := book.paths(); !equalSets(got, mirrorPaths(w.relay, key)) {
				t.Errorf("a subscriber believes in %d blocks, the mirror holds %d", len(got), len(mirrorPaths(w.relay, key)))
			}
		})
		time.Sleep(15 * time.Millisecond) // let flushes fall between
	}
	p.publish(true, block16(salt, r, last, 0, 1))
	subs.Wait()
	if n := len(mirrorPaths(w.relay, key)); n < 100 {
		t.Errorf("test shows nothing: %d blocks", n)
	}
}

func TestWatchRefuses(t *testing.T) {
	w, _ := watchWorld(t, false)
	other := newLogKey(t, "example.org/gateway/a")
	for _, c := range []struct {
		name   string
		change func(*residencyv1.WatchRequest)
		want   codes.Code
	}{
		{"version 2", func(r *residencyv1.WatchRequest) { r.Version = 2 }, codes.FailedPrecondition},
		{"no version", func(r *residencyv1.WatchRequest) { r.Version = 0 }, codes.FailedPrecondition},
		{"a short block key", func(r *residencyv1.WatchRequest) { r.BlockKey = r.BlockKey[1:] }, codes.FailedPrecondition},
		{"no log key", func(r *residencyv1.WatchRequest) { r.LogVkey = "" }, codes.FailedPrecondition},
		{"another log key than the pinned one", func(r *residencyv1.WatchRequest) { r.LogVkey = other.vkey }, codes.PermissionDenied},
		{"a log that is not pinned", func(r *residencyv1.WatchRequest) { r.LogVkey = newLogKey(t, "example.org/x").vkey }, codes.PermissionDenied},
	} {
		req := w.watchRequest()
		c.change(req)
		stream, err := w.residency(w.gateway).Watch(t.Context(), req)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestAnUnpinnedKeyIsReplacedOnlyWhenNoOneUsesIt(t *testing.T) {
	r := newRegister(pinned{}, true)
	a, b := mustKey(t, newLogKey(t, "o").vkey), mustKey(t, newLogKey(t, "o").vkey)
	if err := r.enter("p", a, blockid.Key{}); err != nil {
		t.Fatal(err)
	}
	if err := r.enter("p", b, blockid.Key{}); err == nil {
		t.Error("a second process took over a log in use")
	}
	if err := r.enter("q", b, blockid.Key{}); err != nil {
		t.Errorf("another ID's log of that name: %v", err)
	}
	if err := r.enter("p", a, blockid.Key{}); err != nil {
		t.Errorf("the same key, by a Watch that follows before the first has ended: %v", err)
	}
	r.leave("p", "o")
	if err := r.enter("p", b, blockid.Key{}); err == nil {
		t.Error("a second process took over a log that one of two Watches has left")
	}
	r.leave("p", "o")
	if err := r.enter("p", b, blockid.Key{}); err != nil {
		t.Errorf("after both left: %v", err)
	}
	for i := range logsPerGateway {
		err := r.enter("many", mustKey(t, newLogKey(t, fmt.Sprintf("log-%d", i)).vkey), blockid.Key{})
		if err != nil {
			t.Fatalf("log %d: %v", i, err)
		}
	}
	if err := r.enter("many", mustKey(t, newLogKey(t, "one-more").vkey), blockid.Key{}); err == nil {
		t.Errorf("one ID has more than %d logs", logsPerGateway)
	}
	if err := newRegister(pinned{}, false).enter("p", a, blockid.Key{}); err == nil {
		t.Error("a key was registered where keys are pinned")
	}
}

func TestASubscriberThatDoesNotReadIsEndedAndComesBack(t *testing.T) {
	w, p := watchWorld(t, false)
	r := rand.New(rand.NewPCG(8, 9))
	salt := w.relay.salts.salt("domain-a", "small")
	// A small window, so that little is enough to fill it.
	conf := workload.ClientConfig(w.gateway, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	conn, err := grpc.NewClient("passthrough:///"+w.relay.Addr(), grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watching, err := residencyv1.NewResidencyClient(conn).Watch(t.Context(), w.watchRequest())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watching.Recv(); err != nil {
		t.Fatal(err)
	}
	// 400 prompts stored and removed again, told each time: more than a queue holds.
	w.relay.hub.update(0, func(s *stream) { s.connected() })
	for prompt := range uint64(queueChanges + 400) {
		w.relay.hub.update(0, func(s *stream) {
			s.m.apply(batchOf(block16(salt, r, prompt+1, 0, 300)))
		})
		w.relay.hub.flush()
		w.relay.hub.update(0, func(s *stream) {
			s.m.clear()
		})
		w.relay.hub.flush()
	}
	book := newPicturebook(t)
	book.seq = 1
	err = follow(watching, book, func() bool { return false })
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("stream ended with %v", err)
	}
	p.publish(true, block16(salt, r, 1, 0, 3))
	again := newPicturebook(t)
	if err := follow(w.watch(t.Context()), again, func() bool { return again.ready }); err != nil {
		t.Errorf("the second watch: %v", err)
	}
	w.relay.hub.mu.Lock()
	defer w.relay.hub.mu.Unlock()
	if len(w.relay.hub.subs) > 1 {
		t.Errorf("%d subscribers are left", len(w.relay.hub.subs))
	}
}

func TestDivergeAnswersForTheCallersOwnTickets(t *testing.T) {
	w, p := watchWorld(t, true)
	key := blockid.Key(w.watchRequest().GetBlockKey())
	stream := w.watch(t.Context())
	book := newPicturebook(t)
	if err := follow(stream, book, func() bool { return live(book.state[0]) }); err != nil {
		t.Fatal(err)
	}
	tk := w.ticketFor(chatBody)
	if code, text := w.post(w.sign(tk), chatBody); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	ev := block16(w.relay.salts.salt("domain-a", "small"), nil, 77, 0, 4)
	p.publish(true, ev)
	if err := follow(stream, book, func() bool { return len(book.paths()) == 4 }); err != nil {
		t.Fatal(err)
	}
	ids := blockid.Append(nil, &key, ev.Tokens, 16)
	for _, c := range []struct {
		name   string
		ticket string
		change int // id that differs, -1 none
		known  bool
		want   uint32
	}{
		{"the same tokens", tk.ID, -1, true, 4},
		{"the third block differs", tk.ID, 2, true, 2},
		{"the first block differs", tk.ID, 0, true, 0},
		{"a ticket that was never served", "decision-x", -1, false, 0},
	} {
		asked := append([]uint64(nil), ids...)
		if c.change >= 0 {
			asked[c.change]++
		}
		got, err := w.residency(w.gateway).Diverge(t.Context(), &residencyv1.DivergeRequest{TicketId: c.ticket, Ids: asked})
		if err != nil || got.GetKnown() != c.known || got.GetIndex() != c.want {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestTheLoadAcknowledgesTheSubscribersOwnTickets(t *testing.T) {
	w, _ := watchWorld(t, true)
	stream := w.watch(t.Context())
	book := newPicturebook(t)
	// The counters of a process begin with its Watch.
	if err := follow(stream, book, func() bool { return book.load != nil }); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
	w.n++ // one is lost on its way
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	err := follow(stream, book, func() bool {
		a := book.load.GetAck()
		return a.GetNContiguous() == 3 && fmt.Sprint(a.GetNBeyond()) == "[5]"
	})
	if err != nil {
		t.Fatalf("%v, last load %v", err, book.load)
	}
	// Another process of the same gateway counts from 1 again.
	req := w.watchRequest()
	req.KeyId = "k2"
	second, err := w.residency(w.gateway).Watch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	fresh := newPicturebook(t)
	if err := follow(second, fresh, func() bool { return fresh.load != nil }); err != nil {
		t.Fatal(err)
	}
	if n := fresh.load.GetAck().GetNContiguous(); n != 0 {
		t.Errorf("a new process is told of %d tickets", n)
	}
}

func mustKey(t *testing.T, vkey string) ticket.Key {
	t.Helper()
	k, err := ticket.ParseKey(vkey)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestAcksNeverWaitForEverForALostTicket(t *testing.T) {
	var a acks
	for n := uint64(1); n <= 10_000; n++ {
		if n%1000 != 7 {
			a.add(n)
		}
		if len(a.beyond) > ledger.MaxBeyond {
			t.Fatalf("%d counters named", len(a.beyond))
		}
	}
	if a.upTo < 9000 {
		t.Errorf("contiguous up to %d", a.upTo)
	}
	a.add(3)
	a.add(10_000)
	if a.upTo+uint64(len(a.beyond)) > 10_000 {
		t.Errorf("counted twice: %d and %v", a.upTo, a.beyond)
	}
}
