package routing

import (
	"math"
	"math/bits"
)

// outputReserve is how many tokens of the answer must have room when the
// request is placed. Answers are mostly far shorter than their limit, and
// engines allocate as they go.
const outputReserve = 512

// sizes is what a query needs of a cache with blocks of one size, kept because
// candidates mostly share it.
type sizes struct {
	block int64
	most  int64 // tokens that a cached prefix can spare the engine
	need  int64 // blocks
}

// of makes z what q needs in blocks of that size.
func (z *sizes) of(q *Query, block int) {
	b := int64(block)
	if z.block == b {
		return
	}
	n := int64(max(q.PromptTokens, 0))
	z.block = b
	z.most = max(n-1, 0) / b * b // the engine always computes the last token
	tokens := addSat(n, int64(min(max(q.MaxOutput, 0), outputReserve)))
	z.need = tokens / b
	if tokens%b > 0 {
		z.need++
	}
}

// usable is how many prompt tokens depth blocks can spare the engine.
func (z *sizes) usable(depth int) int64 {
	if int64(depth) > z.most/z.block {
		return z.most
	}
	return int64(max(depth, 0)) * z.block
}

// score computes in place (copies of e would cost more) what q would wait at c.
func (e *scored) score(q *Query, c *Candidate, z *sizes) {
	n := int64(max(q.PromptTokens, 0))
	*e = scored{}
	if c.BlockSize > 0 {
		z.of(q, c.BlockSize)
	}
	if c.Stream.Credits() {
		e.credits = true
		if q.TokensExact && c.BlockSize > 0 && c.Depth|c.Overlay|c.Lower > 0 {
			e.credit(c, z)
		}
	}
	if q.Region != "" && c.Region != q.Region {
		e.penalty = regionPenaltyNS
	}
	e.computed = n - e.hit - e.lower
	tokens := addSat(addSat(max(c.WaitingTokens, 0), e.computed), lacking(c, z, e.hit))
	e.wait = addSat(milli(tokens, c.PrefillPS), max(c.DecodeNS, 0))
	if e.lower > 0 {
		e.wait = addSat(e.wait, milli(e.lower, c.LowerPS))
	}
	e.cost = addSat(e.wait, e.penalty)
}

// credit is what c's cache is believed to spare.
func (e *scored) credit(c *Candidate, z *sizes) {
	confidence := int64(min(max(c.Confidence, 0), 1000))
	e.predicted = z.usable(c.Depth)
	gpu := max(e.predicted, z.usable(c.Overlay))
	e.hit = milli(gpu, confidence)
	if c.LowerPS > 0 && c.LowerPS < c.PrefillPS { // else the engine had better compute
		e.lower = milli(max(z.usable(c.Lower), gpu), confidence) - e.hit
	}
}

// milli is a*b/1000, saturating, for a not negative and b taken as 0 where it
// is: nanoseconds of tokens at a rate in picoseconds, or a share per mille.
func milli(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(max(b, 0)))
	if hi == 0 {
		return int64(lo / 1000)
	}
	return mulDiv(a, max(b, 0), 1000)
}

// fits says whether c could ever hold what q needs. z is of c's block size.
func fits(c *Candidate, z *sizes) bool {
	return c.KVTotal <= 0 || c.BlockSize <= 0 || z.need <= c.KVTotal
}

// lacking is for how many tokens of q c has no memory now. Room for a token comes
// back no sooner than one is computed, because in the long run as many leave as
// come, so that is what it is taken to cost. z is of c's block size.
func lacking(c *Candidate, z *sizes, hit int64) int64 {
	if c.KVTotal <= 0 || c.BlockSize <= 0 {
		return 0
	}
	short := z.need - hit/z.block - max(c.KVFree, 0)
	if short <= 0 {
		return 0
	}
	return mulDiv(short, z.block, 1)
}

// basisOf says what knowledge the choice among eligible rests on.
func basisOf(q *Query, s Snapshot, eligible []scored) (Basis, BasisReason) {
	if !q.TokensExact {
		return fallback(q), TokensEstimated
	}
	var basis Basis
	var why, lacking BasisReason
	crediting := false
	for i := range eligible {
		e := &eligible[i]
		if !e.credits {
			lacking = worse(lacking, reasonOf(&s.Candidates[e.index]))
			continue
		}
		crediting = true
		if e.predicted > 0 && basis != KVEvents {
			b, partial := creditOf(&s.Candidates[e.index])
			basis, why = b, worse(why, partial)
		}
	}
	switch {
	case basis == Partial:
		return basis, why
	case basis != "":
		return basis, ""
	case crediting:
		return Load, lacking
	default:
		return fallback(q), lacking
	}
}

// fallback is the basis where residency cannot be known.
func fallback(q *Query) Basis {
	if q.Affinity == [32]byte{} {
		return Load
	}
	return Affinity
}

// creditOf is the basis that credit from c is.
func creditOf(c *Candidate) (Basis, BasisReason) {
	if c.Stream == StreamLive {
		return KVEvents, ""
	}
	if c.StreamReason != "" {
		return Partial, c.StreamReason
	}
	return Partial, PartialStream
}

func reasonOf(c *Candidate) BasisReason {
	switch {
	case c.StreamReason != "":
		return c.StreamReason
	case c.Stream == StreamNone:
		return NoEvents
	default:
		return SuspectStream
	}
}

// severity orders the reasons of several candidates: one is reported.
var severity = [...]BasisReason{SuspectStream, SaltHidden, IndexBudget, NoEvents, PartialStream, TokensEstimated}

func worse(a, b BasisReason) BasisReason {
	for _, r := range severity {
		if a == r || b == r {
			return r
		}
	}
	return a
}

// prefer says whether a goes before b in the order that the query's affinity
// digest gives (rendezvous hashing), and by ID where that ties.
func prefer(q *Query, a, b *Candidate) bool {
	return before(rendezvous(q, b.ID), a.ID, rendezvous(q, a.ID), b.ID)
}

// drawn says whether a goes before b in the order that the query's seed gives,
// and by ID where that ties. The seed is recorded, so that the draw can be
// repeated.
func drawn(q *Query, a, b *Candidate) bool {
	return before(hashID(q.Seed, a.ID), a.ID, hashID(q.Seed, b.ID), b.ID)
}

func rendezvous(q *Query, id string) uint64 {
	d := &q.Affinity
	return hashID(word(d[0:8])^mix(word(d[8:16]))^mix(mix(word(d[16:24])))^mix(mix(mix(word(d[24:32])))), id)
}

func word(b []byte) uint64 {
	var w uint64
	for _, x := range b {
		w = w<<8 | uint64(x)
	}
	return w
}

// hashID spreads id by seed: FNV-1a, then two rounds of a 64-bit finalizer. It
// need not resist an adversary, who chooses neither IDs nor, through a SHA-256
// digest, the seed; it must be the same everywhere and for ever.
func hashID(seed uint64, id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	return mix(mix(h) ^ seed)
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// addSat is a+b, at most MaxInt64, for a, b not negative.
func addSat(a, b int64) int64 {
	if s := a + b; s >= 0 {
		return s
	}
	return math.MaxInt64
}

// mulDiv is a*b/d with a 128-bit product, at most MaxInt64, for a, b not
// negative and d positive.
func mulDiv(a, b, d int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(d) {
		return math.MaxInt64
	}
	quo, _ := bits.Div64(hi, lo, uint64(d))
	return int64(min(quo, math.MaxInt64))
}
