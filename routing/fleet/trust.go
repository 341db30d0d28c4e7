package fleet

import (
	"errors"
	"fmt"
	"time"
)

// Authentication proves who speaks, not that it is true. What a replica claims
// is held against what it said before, against what its engine reports, and
// against the time that its answers take.

// Doubt is why a replica's residency earns no credit although its stream is
// live. The zero value is none.
type Doubt string

// The doubts.
const (
	OverClaims Doubt = "over_claims" // it claims more blocks than it says it has
	MissClaims Doubt = "miss_claims" // what it claims to hold keeps not being there
	Floods     Doubt = "floods"      // it tells of more changes than an engine can make
	BreaksWord Doubt = "protocol"    // it breaks the residency protocol
)

// Notice says that a replica lost credit, or has it again.
type Notice struct {
	Replica string // SPIFFE ID
	Pool    string
	Epoch   string // its relay process
	Doubt   Doubt
	Over    bool // the doubt is over
	Detail  string
}

const (
	// blockRate is how many block changes a second a replica may tell of: ten
	// times what the fastest engine makes. blockBurst is how many it may be
	// ahead, beyond tellTimes the blocks that it has: slower tiers are larger.
	blockRate  = 100_000
	blockBurst = 1 << 20
	tellTimes  = 20

	// penalty is how long a replica is not listened to that claims too much or
	// floods, and how long it must have kept to the rules to earn credit again.
	penalty = time.Minute
)

// errAnew ends a session so that the next one begins with a new snapshot.
var errAnew = errors.New("what the replica holds is asked for anew")

// doubted sets or ends a doubt of r. The caller holds f.mu; the notice goes out
// once it does not, by send.
func (f *Fleet) doubted(r *replica, d Doubt, detail string) {
	was := r.doubt
	if was == d {
		return
	}
	r.doubt = d
	r.gen++
	n := Notice{Replica: r.id, Pool: r.target.Pool, Epoch: r.epoch, Doubt: d, Detail: detail}
	if d == "" {
		n.Doubt, n.Over = was, true
	} else {
		r.doubts++
	}
	f.notices = append(f.notices, n)
}

// send hands out the notices that are due. The caller does not hold f.mu.
func (f *Fleet) send() {
	f.mu.Lock()
	due := f.notices
	f.notices = nil
	f.mu.Unlock()
	for _, n := range due {
		f.log.Warn("replica in doubt", "pool", n.Pool, "replica", n.Replica, "doubt", n.Doubt, "over", n.Over, "detail", n.Detail)
		if f.cfg.Notify != nil {
			f.cfg.Notify(n)
		}
	}
}

// judge holds a claim against what came of it. The caller holds f.mu.
func (f *Fleet) judge(r *replica, predicted, actual int) {
	r.claims.Judge(predicted, actual)
	switch doubted := r.claims.Doubted(); {
	case r.doubt == "" && doubted:
		f.doubted(r, MissClaims, fmt.Sprintf("%d per mille of what it claimed was there", r.claims.PerMille()))
	case r.doubt == MissClaims && !doubted:
		f.doubted(r, "", fmt.Sprintf("%d per mille of what it claimed was there", r.claims.PerMille()))
	}
}

// bucket limits how many block changes a session may tell of.
type bucket struct {
	level float64
	at    time.Time
}

// take says whether n more are within the limit.
func (b *bucket) take(n, numBlocks int, now time.Time) bool {
	b.level = max(0, b.level-now.Sub(b.at).Seconds()*blockRate) + float64(n)
	b.at = now
	if numBlocks == 0 {
		numBlocks = blockBurst
	}
	return b.level <= float64(blockBurst+tellTimes*numBlocks)
}

// mute stops listening to what the replica says it holds, for a while.
func (s *session) mute(d Doubt, detail string) {
	s.muted = true
	for _, st := range s.r.streams {
		st.Begin()
	}
	s.f.mu.Lock()
	s.r.blocks = 0
	s.f.doubted(s.r, d, detail)
	s.f.mu.Unlock()
	s.f.send()
	s.close()
	s.after = time.AfterFunc(s.f.cfg.Penalty, func() { s.cancel(errAnew) })
}

// clean ends a doubt about a replica that has kept to the rules since the
// snapshot. One about its claims ends when they come true.
func (s *session) clean() {
	defer s.f.send() // after the lock is given back
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.r.doubt != MissClaims {
		s.f.doubted(s.r, "", "it has kept to the rules since")
	}
}

// weigh counts the block changes of a frame and looks whether the replica
// claims more than it has.
func (s *session) weigh(changes int) {
	if s.muted {
		return
	}
	if !s.told.take(changes, s.total, time.Now()) {
		s.mute(Floods, fmt.Sprintf("more than %d block changes a second", blockRate))
		return
	}
	if !s.ownBudget {
		return
	}
	for _, st := range s.r.streams {
		if st.Stats().Over > 0 {
			s.mute(OverClaims, fmt.Sprintf("more than the %d blocks that it has", s.total))
			return
		}
	}
}
