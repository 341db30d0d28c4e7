package ledger

import (
	"github.com/sallyport-ai/sallyport/routing"
)

const (
	// DecodeNS is by how much one request that is being answered slows down the
	// prefill of another: its share of the engine's steps meanwhile. A prior.
	DecodeNS = 250_000

	// LowerPS is what it takes to load the KV of a token from a slower tier:
	// 256 KiB at 13 GB/s. A prior.
	LowerPS = 20_000_000
)

// Told is what a replica's relay tells of its work, which is everybody's.
type Told struct {
	WaitingTokens int64 // to compute, of prompts without a first token
	Waiting       int64 // such requests
	Running       int64 // requests that are being answered
	UsedBlocks    int64 // of memory
}

// Work is a replica's work: what was told, and what was sent to it that it has
// not told of. The zero Work is none.
type Work struct {
	Told Told

	counter uint64   // the highest number given out
	unused  []uint64 // numbers of requests that were never sent
	sent    map[uint64]int64
	tokens  int64 // their sum
}

// Dispatch gives the next number, from 1, to a request with so many tokens to
// compute.
func (w *Work) Dispatch(tokens int64) uint64 {
	if w.sent == nil {
		w.sent = make(map[uint64]int64)
	}
	n := w.next()
	w.sent[n] = tokens
	w.tokens += tokens
	return n
}

// next is a number that was given back, so that the relay does not wait for it,
// or else a new one. A relay that has waited too long for a number may go on
// without it, and would take it for seen before it comes: it is given no more.
func (w *Work) next() uint64 {
	for k := len(w.unused); k > 0; k = len(w.unused) {
		n := w.unused[k-1]
		w.unused = w.unused[:k-1]
		if !w.passable(n) {
			return n
		}
	}
	w.counter++
	return w.counter
}

// MaxBeyond is how many numbers a relay names one by one beyond those that it has
// seen without a gap. It may pass over the gap once there are more.
const MaxBeyond = 256

// passable reports whether the relay may have passed over n without seeing it.
func (w *Work) passable(n uint64) bool { return w.counter-n > MaxBeyond }

// Seen says that what was told, or what is known otherwise, covers request n.
func (w *Work) Seen(n uint64) {
	if tokens, ok := w.sent[n]; ok {
		delete(w.sent, n)
		w.tokens -= tokens
	}
}

// Acknowledged says that what was told covers all requests up to a number, and
// those beyond. A request that the relay may only have passed over counts as unseen
// until it is known otherwise: too much work is on the books then, never too
// little.
func (w *Work) Acknowledged(upTo uint64, beyond []uint64) {
	for _, n := range beyond {
		w.Seen(n)
	}
	for n := range w.sent {
		if n <= upTo && !w.passable(n) {
			w.Seen(n)
		}
	}
}

// Unused gives back the number of a request that was never sent.
func (w *Work) Unused(n uint64) {
	if !w.passable(n) {
		w.unused = append(w.unused, n)
	}
}

// Unseen is how many requests were sent that are not seen, and their tokens.
func (w *Work) Unseen() (requests int, tokens int64) { return len(w.sent), w.tokens }

// Reset forgets what was sent: the replica's relay is another process.
func (w *Work) Reset() {
	w.counter, w.unused, w.tokens = 0, nil, 0
	clear(w.sent)
}

// Fill sets the numbers of c that are about load. BlockSize and KVTotal must be
// set.
func (w *Work) Fill(c *routing.Candidate) {
	unseen := int64(len(w.sent))
	block := int64(max(c.BlockSize, 1))
	c.WaitingTokens = w.Told.WaitingTokens + w.tokens
	c.Waiting = w.Told.Waiting + unseen
	c.Running = w.Told.Running + c.Waiting
	c.DecodeNS = c.Running * DecodeNS
	c.KVFree = max(0, c.KVTotal-w.Told.UsedBlocks-(w.tokens+block-1)/block)
	c.Load = c.WaitingTokens + w.Told.UsedBlocks*block
}
