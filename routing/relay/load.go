package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/routing/ledger"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// gatewayLog names a gateway: many processes may share a SPIFFE ID, but not a
// log.
type gatewayLog struct{ peer, log string }

// load counts the work at the engine. All its numbers change under one lock, so
// that a ticket is acknowledged exactly when its work is counted.
type load struct {
	mu       sync.Mutex
	work     map[*work]struct{}
	running  uint32 // of work, those that are answered
	waiting  uint32 // and those that are not
	tokens   uint64 // of the latter
	acks     map[gatewayLog]*acks
	kvBlocks uint64
	meters   map[int]*ledger.Meter // by rank: each computes prompts in its own order
}

// work is one request at the engine.
type work struct {
	tokens   uint64 // of its prompt that are not cached, as far as its gateway knows
	counted  int64  // the same, where that, its rank and its first token can be known; else 0
	rank     int
	stream   bool // its first byte will show that its prefill is done
	started  time.Time
	answered bool
}

func newLoad() *load {
	return &load{work: make(map[*work]struct{}), acks: make(map[gatewayLog]*acks), meters: make(map[int]*ledger.Meter)}
}

// newWork is what a ticket brings. A gateway that does not know the tokens of a
// prompt is taken to have sent four bytes for each; and nobody's word makes a
// prompt longer than its body.
func newWork(t *ticket.Ticket, bodyBytes int, stream bool, now time.Time) *work {
	w := &work{tokens: uint64(min(t.Tokens, bodyBytes)), stream: stream, started: now, rank: t.Rank}
	if w.tokens == 0 {
		w.tokens = uint64(bodyBytes+3) / 4
	} else if stream {
		w.counted = int64(w.tokens)
	}
	return w
}

// start counts a request and acknowledges its ticket.
func (l *load) start(g gatewayLog, n uint64, w *work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work[w] = struct{}{}
	l.waiting++
	l.tokens += w.tokens
	l.meter(w).Start(w.started, w.counted)
	l.acked(g, n)
}

// ack acknowledges a ticket that is no work: its request was not forwarded, or
// the engine computes nothing for it.
func (l *load) ack(g gatewayLog, n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked(g, n)
}

// acked notes a counter. The caller holds l.mu.
func (l *load) acked(g gatewayLog, n uint64) {
	a := l.acks[g]
	if a == nil {
		a = new(acks)
		l.acks[g] = a
	}
	a.add(n)
}

// register begins the counters of a gateway process anew if it is not the one
// that they belong to.
func (l *load) register(g gatewayLog, process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.acks[g]; a == nil || a.process != process {
		l.acks[g] = &acks{process: process}
	}
}

// answer notes the first byte of the engine's answer. Of what was never counted
// as work, on a route that counts prompts, it tells nothing.
func (l *load) answer(w *work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, counted := l.work[w]; counted {
		l.first(w, time.Now())
	}
}

// first ends the waiting of w. The caller holds l.mu.
func (l *load) first(w *work, at time.Time) {
	if !w.answered {
		w.answered = true
		l.waiting--
		l.tokens -= w.tokens
		l.running++
		l.meter(w).First(at, w.counted)
	}
}

// meter is that of the rank that w is for. The caller holds l.mu.
func (l *load) meter(w *work) *ledger.Meter {
	m := l.meters[w.rank]
	if m == nil {
		m = new(ledger.Meter)
		l.meters[w.rank] = m
	}
	return m
}

// rate is how many prompt tokens a second the ranks that were measured compute,
// each, on average; 0: not known. The caller holds l.mu.
func (l *load) rate() uint64 {
	sum, n := uint64(0), uint64(0)
	for _, m := range l.meters {
		if r := m.Rate(); r > 0 {
			sum, n = sum+r, n+1
		}
	}
	return sum / max(n, 1)
}

func (l *load) end(w *work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch _, known := l.work[w]; {
	case !known:
		return
	case w.answered:
		l.running--
	default:
		l.waiting--
		l.tokens -= w.tokens
		l.meter(w).Gone()
	}
	delete(l.work, w)
}

// scraped takes what the engine reported at a time. An engine in whose queue
// nothing waits is working on everything it had been sent by then; that is how
// the end of waiting shows for answers that come in one piece.
func (l *load) scraped(at time.Time, m metrics) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kvBlocks = m.usedBlocks()
	if !m.hasWaiting || m.waiting > 0 {
		return
	}
	for w := range l.work {
		if !w.stream && w.started.Before(at) {
			l.first(w, at)
		}
	}
}

// report is the load as subscriber g is told it. Each is told twenty times a
// second, so this looks at no work one by one.
func (l *load) report(g gatewayLog) *residencyv1.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &residencyv1.Load{
		Running: l.running, Waiting: l.waiting, WaitingPrefillTokens: l.tokens, KvUsedBlocks: l.kvBlocks, PrefillRate: l.rate(),
	}
	if a := l.acks[g]; a != nil {
		out.Ack = &residencyv1.Ack{NContiguous: a.upTo, NBeyond: slices.Clone(a.beyond)}
	} else {
		out.Ack = new(residencyv1.Ack)
	}
	return out
}

// acks is which counters of one gateway process have been seen.
type acks struct {
	process string   // key id of its Watch
	upTo    uint64   // all up to here
	beyond  []uint64 // and these, ascending
}

func (a *acks) add(n uint64) {
	if n <= a.upTo {
		return
	}
	i, found := slices.BinarySearch(a.beyond, n)
	if found {
		return
	}
	a.beyond = slices.Insert(a.beyond, i, n)
	if len(a.beyond) > ledger.MaxBeyond { // a ticket that never came must not hold it back for ever
		a.upTo = a.beyond[0]
	}
	k := 0
	for k < len(a.beyond) && a.beyond[k] <= a.upTo+1 {
		a.upTo = max(a.upTo, a.beyond[k])
		k++
	}
	a.beyond = slices.Delete(a.beyond, 0, k)
}
