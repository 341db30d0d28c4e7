package dpop

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrFull says that more proofs are in use than can be remembered.
var ErrFull = errors.New("too many proofs to remember")

// MaxRemembered is how many proofs a [Memory] holds unless it is told
// otherwise: some 4,000 a second, in about 40 MB.
const MaxRemembered = 1 << 19

// Memory remembers the proofs that this process has seen. It forgets none
// before its time: when it is full, it takes no more.
type Memory struct {
	max   int
	clock func() time.Time

	mu    sync.Mutex // guards what follows
	held  int
	slots map[int64]map[[32]byte]struct{} // by when they end
	swept int64                           // slots before it are gone
}

// slotOf is the number of the slot in which a proof is kept. A proof is always
// kept until the same time, and so in the same slot.
func slotOf(until time.Time) int64 { return until.Unix()/10 + 1 }

// NewMemory returns a memory of at most max proofs, 0 meaning [MaxRemembered],
// by a clock, nil being time.Now.
func NewMemory(max int, clock func() time.Time) *Memory {
	if max <= 0 {
		max = MaxRemembered
	}
	if clock == nil {
		clock = time.Now
	}
	return &Memory{max: max, clock: clock, slots: make(map[int64]map[[32]byte]struct{})}
}

// Spend is the [Spend] of one process.
func (m *Memory) Spend(_ context.Context, proof [32]byte, until time.Time) (first bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep(m.clock())
	at := slotOf(until)
	if at < m.swept {
		return false, nil // its time is over, and what was used then is forgotten
	}
	slot := m.slots[at]
	if _, seen := slot[proof]; seen {
		return false, nil
	}
	if m.held >= m.max {
		return false, ErrFull
	}
	if slot == nil {
		slot = make(map[[32]byte]struct{})
		m.slots[at] = slot
	}
	slot[proof] = struct{}{}
	m.held++
	return true, nil
}

// sweep forgets what nobody may use any more.
func (m *Memory) sweep(now time.Time) {
	current := now.Unix() / 10
	if current <= m.swept {
		return
	}
	for at, slot := range m.slots {
		if at < current {
			m.held -= len(slot)
			delete(m.slots, at)
		}
	}
	m.swept = current
}

// Held is how many proofs are remembered.
func (m *Memory) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}
