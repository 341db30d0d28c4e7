package ledger

import (
	"slices"

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
	n := w.counter + 1
	if k := len(w.unused); k > 0 {
		n, w.unused = w.unused[k-1], w.unused[:k-1]
	} else {
		w.counter = n
	}
	w.sent[n] = tokens
	w.tokens += tokens
	return n
}

// Seen says that what was told, or what is known otherwise, covers request n.
func (w *Work) Seen(n uint64) {
	if tokens, ok := w.sent[n]; ok {
		delete(w.sent, n)
		w.tokens -= tokens
	}
}

// Acknowledged says that what was told covers all requests up to a number, and
// those beyond.
func (w *Work) Acknowledged(upTo uint64, beyond []uint64) {
	for n := range w.sent {
		if n <= upTo || slices.Contains(beyond, n) {
			w.Seen(n)
		}
	}
}

// Unused gives back the number of a request that was never sent.
func (w *Work) Unused(n uint64) { w.unused = append(w.unused, n) }

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
