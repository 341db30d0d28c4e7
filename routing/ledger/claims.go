package ledger

// Claims are in doubt when fewer than doubtBelow of them come true, after
// doubtAfter of them; and no longer once more than trustAbove do.
const (
	doubtBelow = 0.25
	trustAbove = 0.5
	doubtAfter = 8
)

// Claims is how much of what a replica claims to hold is there. The zero Claims
// trusts.
type Claims struct {
	missing float64 // share of what was claimed that was not there, smoothed
	judged  int
	doubted bool
}

// Judge holds a claim of predicted tokens, at least 1, against what was there.
func (c *Claims) Judge(predicted, actual int) {
	found := min(float64(max(actual, 0))/float64(predicted), 1)
	c.missing += (1 - found - c.missing) / 8
	c.judged++
	switch share := 1 - c.missing; {
	case c.judged >= doubtAfter && share < doubtBelow:
		c.doubted = true
	case share > trustAbove:
		c.doubted = false
	}
}

// PerMille is the share that comes true.
func (c *Claims) PerMille() int { return int((1-c.missing)*1000 + 0.5) }

// Doubted says whether claims keep missing.
func (c *Claims) Doubted() bool { return c.doubted }
