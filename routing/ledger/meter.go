package ledger

import "time"

const (
	// A sample is taken of at least sampleTokens, and of requests that had at
	// least MinSampleTokens each to compute on average: with less, round trips
	// and scheduling would count as computing.
	sampleTokens = 4096

	// MinSampleTokens is the least that a request must have to compute for its
	// first token to tell how fast that is.
	MinSampleTokens = 1024

	// longest is more than any prompt takes: an engine that hangs is not slow.
	longest = 10 * time.Minute
)

// Meter measures how many prompt tokens an engine computes in a second, by the
// times at which requests come and have their first token.
//
// An engine is never idle while prompts wait, and computes them in the order in
// which they came. So from one first token to the next it has computed the
// prompt of the second, or from when that came if nothing waited. The zero Meter
// is ready.
type Meter struct {
	waiting int       // requests without a first token
	since   time.Time // the last first token, or when the first of those waiting came
	spoiled bool      // there has been such a one since nothing waited

	tokens   int64 // computed since the last sample
	took     time.Duration
	requests int64
	rate     float64 // tokens a second, smoothed; 0: not known
}

// Start says that a request came. Its prompt has so many tokens to compute; 0
// says that this is not known, or that its first token will not be seen.
func (m *Meter) Start(at time.Time, tokens int64) {
	if m.waiting == 0 {
		m.since, m.spoiled = at, false
	}
	m.waiting++
	m.spoiled = m.spoiled || tokens <= 0
}

// First says that the same request has its first token.
func (m *Meter) First(at time.Time, tokens int64) {
	took := at.Sub(m.since)
	m.since = at
	m.spoiled = m.spoiled || m.waiting == 0
	m.waiting = max(m.waiting-1, 0)
	if m.spoiled || took < 0 || took > longest {
		m.tokens, m.took, m.requests = 0, 0, 0
		return
	}
	m.tokens += tokens
	m.took += took
	m.requests++
	if m.tokens < sampleTokens || m.took <= 0 {
		return
	}
	if m.tokens >= m.requests*MinSampleTokens {
		sample := float64(m.tokens) / m.took.Seconds()
		if m.rate == 0 {
			m.rate = sample
		}
		m.rate += (sample - m.rate) / 8
	}
	m.tokens, m.took, m.requests = 0, 0, 0
}

// Gone says that a request which came has ended without a first token. How much
// of it was computed is not known.
func (m *Meter) Gone() {
	m.waiting = max(m.waiting-1, 0)
	m.spoiled = true
}

// Rate is tokens a second; 0: not known.
func (m *Meter) Rate() uint64 { return uint64(m.rate) }
