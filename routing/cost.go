package routing

import (
	"math"
	"math/bits"
)

// outputReserve is how many tokens of the answer must have room when the
// request is placed. Answers are mostly far shorter than their limit, and
// engines allocate as they go.
const outputReserve = 512

// score computes what c would cost q.
func score(q *Query, c *Candidate) scored {
	n := int64(max(q.PromptTokens, 0))
	e := scored{}
	if q.TokensExact && c.Stream.Credits() && c.BlockSize > 0 && n > 0 {
		confidence := int64(min(max(c.Confidence, 0), 1000))
		e.predicted = usable(n, c.Depth, c.BlockSize)
		e.hit = max(e.predicted, usable(n, c.Overlay, c.BlockSize))
		e.hit = mulDiv(e.hit, confidence, 1000)
	}
	if q.Region != "" && c.Region != q.Region {
		e.penalty = regionPenaltyNS
	}
	tokens := addSat(max(c.WaitingTokens, 0), n-e.hit)
	e.cost = addSat(mulDiv(tokens, max(c.PrefillPS, 0), 1000), max(c.DecodeNS, 0))
	e.cost = addSat(e.cost, e.penalty)
	return e
}

// usable is how many of n prompt tokens depth blocks can spare the engine: it
// always computes the last token, and reuses whole blocks only.
func usable(n int64, depth, block int) int64 {
	b := int64(block)
	return min(int64(max(depth, 0)), (n-1)/b) * b
}

// headroom says whether c has room for what q needs beyond its hit.
func headroom(q *Query, c *Candidate, hit int64) bool {
	if c.KVTotal <= 0 || c.BlockSize <= 0 {
		return true
	}
	b := int64(c.BlockSize)
	tokens := addSat(int64(max(q.PromptTokens, 0)), int64(min(max(q.MaxOutput, 0), outputReserve)))
	need := tokens / b
	if tokens%b > 0 {
		need++
	}
	return need-hit/b <= c.KVFree && need <= c.KVTotal
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
		c := &s.Candidates[eligible[i].index]
		if !c.Stream.Credits() {
			lacking = worse(lacking, reasonOf(c))
			continue
		}
		crediting = true
		if eligible[i].predicted > 0 && basis != KVEvents {
			b, partial := creditOf(c)
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
