package dpop

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrFull says that more proofs of a holder are in use than can be remembered.
var ErrFull = errors.New("too many proofs to remember")

// MaxRemembered is how many proofs a [Memory] holds unless it is told
// otherwise: some 4,000 a second, in about 40 MB.
const MaxRemembered = 1 << 19

// Holder is who used a proof.
type Holder struct {
	Tenant string
	Key    string // thumbprint of the key that signed it
}

// Memory remembers the proofs that this process has seen. It forgets none
// before its time: what it has no room for, it does not take.
//
// The room is shared so that nobody can fill it for others. A tenant may hold as
// many proofs as there is room left, and one key as many as its tenant may hold
// still: alone, a tenant has half of the room and a key a third; of n tenants
// that take all they can, each has 1/(n+1), and as much is left for the next.
// These are the dynamic thresholds that switches share their buffers by
// (Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998).
type Memory struct {
	max   int
	clock func() time.Time

	mu    sync.Mutex      // guards what follows
	slots map[int64]*slot // by when they end; a dozen, as proofs last two minutes at most
	swept int64           // slots before it are gone
}

// slot is the proofs that end within the same ten seconds, and how many there
// are of each holder. It goes away as a whole.
type slot struct {
	proofs  map[[32]byte]struct{}
	tenants map[string]int
	holders map[Holder]int
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
	return &Memory{max: max, clock: clock, slots: make(map[int64]*slot)}
}

// Spend is the [Spend] of one process.
func (m *Memory) Spend(_ context.Context, of Holder, proof [32]byte, until time.Time) (first bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep(m.clock())
	at := slotOf(until)
	if at < m.swept {
		return false, nil // its time is over, and what was used then is forgotten
	}
	s := m.slots[at]
	if s != nil {
		if _, seen := s.proofs[proof]; seen {
			return false, nil
		}
	}
	if !m.roomFor(of) {
		return false, ErrFull
	}
	if s == nil {
		s = &slot{make(map[[32]byte]struct{}), make(map[string]int), make(map[Holder]int)}
		m.slots[at] = s
	}
	s.proofs[proof] = struct{}{}
	s.tenants[of.Tenant]++
	s.holders[of]++
	return true, nil
}

// roomFor reports whether a holder may have one more proof remembered.
func (m *Memory) roomFor(of Holder) bool {
	var all, tenant, key int
	for _, s := range m.slots {
		all += len(s.proofs)
		tenant += s.tenants[of.Tenant]
		key += s.holders[of]
	}
	left := m.max - all
	return tenant < left && key < left-tenant
}

// sweep forgets what nobody may use any more.
func (m *Memory) sweep(now time.Time) {
	current := now.Unix() / 10
	if current <= m.swept {
		return
	}
	for at := range m.slots {
		if at < current {
			delete(m.slots, at)
		}
	}
	m.swept = current
}

// Held is how many proofs are remembered.
func (m *Memory) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := 0
	for _, s := range m.slots {
		held += len(s.proofs)
	}
	return held
}
