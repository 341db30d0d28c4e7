package ledger

import "time"

// PriorPS is the prefill rate before anything is known: 16,000 tokens/s, in
// picoseconds per token.
const PriorPS = 62_500_000

const (
	// leastGap is the least difference between computing a prompt and finding
	// it cached that a first token can tell, and timedAfter the number of
	// samples without which a rate tells nothing.
	leastGap   = 50 * time.Millisecond
	timedAfter = 8
)

// Rate is a learned prefill rate. The zero Rate has learned nothing.
type Rate struct {
	ps      float64 // picoseconds per token, smoothed
	samples int
}

// First learns from a first token that came after took, of a request with
// nothing ahead of it that was expected to compute so many tokens and to find
// predicted ones. It reports whether that belies the prediction: whether the
// token came as late as if nothing had been found. The pool's rate learns too.
func (r *Rate) First(pool *Rate, computed, predicted int64, took time.Duration) (belied bool) {
	if took <= 0 {
		return false
	}
	belied = predicted > 0 && r.belies(computed+predicted, predicted, took)
	// A claim that is not true must not make the rate look worse than it is.
	if computed >= max(MinSampleTokens, predicted) && !belied {
		ps := float64(took.Nanoseconds()) * 1000 / float64(computed)
		r.learn(ps)
		pool.learn(ps)
	}
	return belied
}

// Told learns from a rate that was measured elsewhere, in tokens a second.
func (r *Rate) Told(pool *Rate, perSecond uint64) {
	if perSecond == 0 {
		return
	}
	r.learn(1e12 / float64(perSecond))
	pool.learn(1e12 / float64(perSecond))
}

// belies says whether a first token after took came as late as if nothing of
// the prompt had been cached, although predicted tokens should have been.
func (r *Rate) belies(tokens, predicted int64, took time.Duration) bool {
	if r.samples < timedAfter {
		return false
	}
	computed := time.Duration(float64(tokens) * r.ps / 1000)
	saved := time.Duration(float64(predicted) * r.ps / 1000)
	return saved > leastGap && took > computed-saved/4
}

// learn takes a sample in picoseconds per token. No single one is believed that
// is a thousand times off what is usual.
func (r *Rate) learn(ps float64) {
	ps = min(max(ps, PriorPS/1000), PriorPS*1000)
	if r.samples == 0 {
		r.ps = ps
	}
	r.ps += (ps - r.ps) / 8
	r.samples++
}

// Over is the rate as far as it is known, else the pool's, else the prior: a
// replica that was never measured is taken to be like its peers.
func (r *Rate) Over(pool *Rate) int64 {
	const trust = 8 // samples that weigh as much as what was assumed before
	assumed := float64(PriorPS)
	for _, x := range [...]*Rate{pool, r} {
		n := float64(min(x.samples, 8*trust))
		assumed = (assumed*trust + x.ps*n) / (trust + n)
	}
	return int64(assumed)
}
