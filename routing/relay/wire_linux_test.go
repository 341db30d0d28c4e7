package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sys/unix"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/residency"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// cpu is the time that the process has worked.
func cpu(b testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWire is everything from the engine's socket to the changes that
// subscribers are told, once 100,000 blocks are held: each batch evicts prompts
// and stores others, as an engine's step does. One operation is one batch of 500
// blocks. The publisher's share is in the time.
func BenchmarkWire(b *testing.B) {
	for _, form := range []kvevents.Form{kvevents.FormMap, kvevents.FormArray} {
		b.Run([]string{"map", "array"}[form], func(b *testing.B) { benchWire(b, form) })
	}
}

func benchWire(b *testing.B, form kvevents.Form) {
	const held, perBatch, blocks = 4000, 10, 25
	evs := prompts(2 * held)
	for i := range evs {
		evs[i].Extra = make([][]kvevents.ExtraKey, blocks)
		evs[i].Extra[0] = []kvevents.ExtraKey{{Kind: kvevents.SaltKey, ID: evs[i].Salt}}
	}
	payload := func(i int) []byte { // stores prompts, and evicts those stored before the held ones
		batch := kvevents.Batch{TS: 1, Rank: 0}
		for k := i * perBatch; k < (i+1)*perBatch; k++ {
			if k >= held {
				batch.Events = append(batch.Events, gone16(uint64((k-held)%len(evs)+1), seqDown(blocks)...))
			}
			batch.Events = append(batch.Events, evs[k%len(evs)])
		}
		return kvevents.AppendBatch(nil, &batch, form)
	}
	const filled, cycle = held / perBatch, 2 * held / perBatch
	var payloads [filled + cycle][]byte
	for i := range payloads {
		payloads[i] = payload(i)
	}
	endpoint := "ipc://" + b.TempDir() + "/e"
	pub, err := kvevents.NewPublisher(kvevents.PublisherConfig{Listen: endpoint, HWM: 256})
	if err != nil {
		b.Fatal(err)
	}
	defer pub.Close()
	h := newHub(1, false, mirrorConfig{blockSize: 16, capacity: 200_000, resolve: ours}, nil)
	sub, _ := h.subscribe()
	go func() {
		for {
			select {
			case c := <-sub.changes:

				sub.waiting.Add(-int64(c.size()))
			case <-sub.behind:
				b.Error("the subscriber fell behind")
				return
			case <-b.Context().Done():

				return
			}
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := &follower{hub: h, events: endpoint, log: slog.New(slog.DiscardHandler)}
	go f.run(ctx)
	next := func() (n uint64) {
		h.update(0, func(s *stream) { n = s.next })
		return n
	}
	for deadline := time.Now().Add(10 * time.Second); next() == 0; time.Sleep(time.Millisecond) { // until it is subscribed
		if err := pub.Publish("", 0, payloads[0]); err != nil || time.Now().After(deadline) {
			b.Fatal("no subscription", err)
		}
	}
	seq := uint64(0)
	send := func(p []byte) {
		seq++
		if seq%32 == 0 {
			for next()+128 < seq {
				time.Sleep(50 * time.Microsecond)
			}
		}
		if err := pub.Publish("", seq, p); err != nil {
			b.Fatal(err)
		}
	}
	for _, p := range payloads[1:filled] {
		send(p)
	}
	began, i := cpu(b), 0
	for b.Loop() {
		send(payloads[filled+i%cycle])
		i++
	}
	for deadline := time.Now().Add(10 * time.Second); next() != seq+1; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			b.Fatalf("batch %d never came; at %d", seq, next())
		}
	}
	ops := float64(i * perBatch * blocks * 2)
	b.ReportMetric(ops/b.Elapsed().Seconds(), "block-ops/s")
	b.ReportMetric(ops/(cpu(b)-began).Seconds(), "block-ops/cpu-s")
	if s := h.summaries()[0]; s.blocks < held*blocks*9/10 || s.restarts > 0 {
		b.Fatalf("%+v", s)
	}
	cancel()
}

// tenGateways, in the environment of a process of this test, makes it the ten
// gateways of BenchmarkTenGateways: address of the relay, socket of their
// identity and verifier key of their log, one a line.
const tenGateways = "SALLYPORT_TEN_GATEWAYS"

// TestTenGateways is not a test but the other process of the benchmark. It says
// "watching" once each gateway has its snapshot, and ends with its input.
func TestTenGateways(t *testing.T) {
	conf := strings.Split(os.Getenv(tenGateways), "\n")
	if len(conf) != 3 {
		t.Skip("only within BenchmarkTenGateways")
	}
	source, err := workload.NewSource(t.Context(), workload.SourceConfig{Socket: conf[1]})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	watching := make(chan struct{})
	for range 10 {
		conn, err := residency.Connect(t.Context(), conf[0], workload.ClientConfig(source, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0"))))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			_ = conn.Watch(t.Context(), residency.Request{BlockKey: [16]byte{7}, KeyID: "k", LogVKey: conf[2]}, func(f *residencyv1.Frame) error {
				if f.GetSnapshotEnd() != nil {
					watching <- struct{}{}
				}
				return nil
			})
		}()
	}
	for range 10 {
		<-watching
	}
	fmt.Println("watching")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkTenGateways is a relay of 100,000 blocks that tells ten gateways,
// which are another process, of 3,000 block changes a second, and of a load that
// each of the 60 requests a second behind them changes. What it costs is
// the time that this process worked, all told: the mirror, ids in ten keys,
// frames, TLS, and what the benchmark itself does to make the changes.
func BenchmarkTenGateways(b *testing.B) {
	const perSecond, every, span = 3000, 10 * time.Millisecond, 2 * time.Second
	w, _ := watchWorld(b, false)
	const held = 4000
	evs := prompts(2 * held)
	w.relay.hub.update(0, func(s *stream) {
		s.m, _ = bigMirror(held)
		s.m.cfg.resolve = ours
	})
	socket, err := w.auth.Socket(spiffeid.RequireFromPath(domain, "/gateway/a"))
	if err != nil {
		b.Fatal(err)
	}
	others := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestTenGateways$")
	others.Env = append(os.Environ(), tenGateways+"="+w.relay.Addr()+"\n"+socket+"\n"+w.key.vkey)
	stdin, err := others.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := others.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := others.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = stdin.Close(); _ = others.Wait() }()
	said := bufio.NewScanner(stdout)
	for said.Scan() && said.Text() != "watching" {
	}
	k := 0
	var atWork []*work
	request := func() { // one begins, and one of the 32 before it ends
		now := time.Now()
		wk := newWork(&ticket.Ticket{Tokens: 400}, 2000, true, now)
		w.relay.load.start(gatewayLog{"another", "log"}, uint64(k+1), wk)
		if atWork = append(atWork, wk); len(atWork) > 32 {
			w.relay.load.answer(atWork[16])
			w.relay.load.end(atWork[0])
			atWork = atWork[1:]
		}
	}
	for b.Loop() {
		before := cpu(b)
		began, ops := time.Now(), 0
		for time.Since(began) < span {
			if time.Duration(ops)*time.Second/perSecond > time.Since(began) {
				time.Sleep(every / 2)
				continue
			}
			in, out := (held+k)%len(evs), k%len(evs)
			w.relay.hub.update(0, func(s *stream) {
				s.m.apply(batchOf(gone16(uint64(out+1), seqDown(25)...), evs[in]))
			})
			request()
			k++
			ops += 50
		}
		b.ReportMetric(100*(cpu(b)-before).Seconds()/time.Since(began).Seconds(), "%core")
	}
	if n := w.relay.hub.subscribers(); n != 10 {
		b.Fatalf("%d gateways still watch", n)
	}
}
