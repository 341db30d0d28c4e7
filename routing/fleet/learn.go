package fleet

import "time"

// priorPS is the prefill rate before anything is known: 16,000 tokens/s, in
// picoseconds per token.
const priorPS = 62_500_000

// Samples of the prefill rate come from first tokens of requests that had at
// least this much to compute and nothing ahead of them; with less, round trips
// and scheduling would count as prefill.
const minSampleTokens = 1024

// rate is a learned prefill rate.
type rate struct {
	ps      float64 // picoseconds per token, smoothed
	samples int
}

// add learns from a first token that came after d for so many tokens.
func (r *rate) add(tokens int64, d time.Duration) {
	r.learn(float64(d.Nanoseconds()) * 1000 / float64(tokens))
}

// learn takes a sample in picoseconds per token. No single one is believed that
// is a thousand times off what is usual.
func (r *rate) learn(ps float64) {
	ps = min(max(ps, priorPS/1000), priorPS*1000)
	if r.samples == 0 {
		r.ps = ps
	}
	r.ps += (ps - r.ps) / 8
	r.samples++
}

// over is the rate as far as it is known, else the pool's, else the prior: a
// replica that was never measured is taken to be like its peers.
func (r *rate) over(pool *rate) int64 {
	const trust = 8 // samples that weigh as much as what was assumed before
	assumed := float64(priorPS)
	for _, x := range [...]*rate{pool, r} {
		n := float64(min(x.samples, 8*trust))
		assumed = (assumed*trust + x.ps*n) / (trust + n)
	}
	return int64(assumed)
}

// confidence is the smoothed share of predicted cached tokens that were.
type confidence float64

const full confidence = 1

func (c *confidence) add(predicted, actual int) {
	share := min(float64(max(actual, 0))/float64(predicted), 1)
	*c += confidence(share-float64(*c)) / 8
}

func (c confidence) perMille() int { return int(c*1000 + 0.5) }
