package fleet

import (
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

// Status is a replica as the console shows it.
type Status struct {
	Target     Target
	ID         string         // proven or configured
	Excluded   routing.Reason // why it takes no requests; empty: it does
	Detail     string         // what went wrong last
	Epoch      string
	Engine     string
	Models     []string
	Routes     []string // operations whose isolation is proven
	Stream     routing.Stream
	StreamWhy  routing.BasisReason
	BlockSize  int
	Blocks     int // resident on the GPU, as indexed
	KVTotal    int64
	KVUsed     int64
	Running    int64
	Waiting    int64 // prefill tokens, the relay's and our own
	Confidence int   // per mille
	PrefillPS  int64
	LagMS      int64
	Load       int64   // prefill tokens that wait, and tokens that running requests hold
	LoadRatio  float64 // Load over the mean of the pool's replicas that take requests; 0 where nobody has any
	BlockRatio float64 // Blocks over the mean of the same
	Frames     uint64  // number of the last frame of its Watch that was applied

	Doubt     Doubt  // why it earns no credit although its stream is live
	Doubts    uint64 // how often it came to be in doubt
	BlocksIn  uint64 // blocks that it told of, ever
	Predicted uint64 // cached tokens that were predicted, of requests whose engine reported
	Cached    uint64 // what the engine reported of the same requests
	Prompt    uint64 // their prompt tokens
}

// Replicas is the state of every target, in their configured order.
func (f *Fleet) Replicas() []Status {
	f.mu.RLock()
	defer f.mu.RUnlock()
	now := time.Now()
	out := make([]Status, len(f.replicas))
	for i, r := range f.replicas {
		c := r.candidate(&Request{}, 0, now)
		out[i] = Status{
			Target: r.target, ID: r.id, Excluded: r.state(now), Detail: r.detail, Epoch: r.epoch,
			Engine: r.hello.GetEngine(), Models: r.hello.GetModels(), Routes: r.hello.GetRoutesIsolated(),
			Stream: c.Stream, StreamWhy: c.StreamReason, BlockSize: c.BlockSize, Blocks: r.blocks,
			KVTotal: c.KVTotal, KVUsed: clamp(r.load.GetKvUsedBlocks()), Running: c.Running, Waiting: c.WaitingTokens,
			Confidence: c.Confidence, PrefillPS: c.PrefillPS, LagMS: c.LagMS, Load: c.Load, Frames: r.frames.Load(),
			Doubt: r.doubt, Doubts: r.doubts, BlocksIn: r.blocksIn, Predicted: r.predicted, Cached: r.cached, Prompt: r.prompt,
		}
	}
	balance(out)
	return out
}

// Member is a replica as whoever writes the fleet down sees it.
type Member struct {
	Target   Target
	ID       string // proven or configured
	Epoch    string
	Excluded routing.Reason // why it takes no requests of any kind; empty: it does
}

// Members is what there is of every target, in their configured order, at little
// cost.
func (f *Fleet) Members() []Member {
	f.mu.RLock()
	defer f.mu.RUnlock()
	now := time.Now()
	out := make([]Member, len(f.replicas))
	for i, r := range f.replicas {
		out[i] = Member{Target: r.target, ID: r.id, Epoch: r.epoch, Excluded: r.state(now)}
	}
	return out
}

// IndexBytes is how much memory the residency index has allocated.
func (f *Fleet) IndexBytes() int64 { return f.index.Bytes() }
