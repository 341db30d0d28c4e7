package ticket

import (
	"crypto/sha256"
	"sync"
	"time"
)

// ReplaySet remembers the tickets that have counted until they expire. It is
// bounded: a full set refuses, since forgetting early would let a ticket count
// twice. It is safe for concurrent use.
type ReplaySet struct {
	mu    sync.Mutex
	limit int
	seen  map[[sha256.Size]byte]struct{}
	byExp map[int64][][sha256.Size]byte // at most MaxAhead seconds of keys
	now   int64                         // latest time seen: a clock set back must not revive what was forgotten
}

// NewReplaySet returns a set of at most limit tickets; limit below 1 refuses
// every ticket.
func NewReplaySet(limit int) *ReplaySet {
	return &ReplaySet{
		limit: limit,
		seen:  make(map[[sha256.Size]byte]struct{}),
		byExp: make(map[int64][][sha256.Size]byte),
	}
}

// Use counts the ticket, once: later calls return [ErrReplayed] until it has
// expired and [ErrExpired] from then on. It returns [ErrReplayFull] if there is
// no room.
func (s *ReplaySet) Use(t Verified, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now.Unix())
	if t.Exp <= s.now {
		return ErrExpired
	}
	if _, ok := s.seen[t.Sum]; ok {
		return ErrReplayed
	}
	if len(s.seen) >= s.limit {
		return ErrReplayFull
	}
	s.seen[t.Sum] = struct{}{}
	s.byExp[t.Exp] = append(s.byExp[t.Exp], t.Sum)
	return nil
}

// forget drops what has expired by now.
func (s *ReplaySet) forget(now int64) {
	if now <= s.now {
		return
	}
	s.now = now
	for exp, sums := range s.byExp {
		if exp > now {
			continue
		}
		for _, sum := range sums {
			delete(s.seen, sum)
		}
		delete(s.byExp, exp)
	}
}
