package kvindex

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// fairLock is a read-write lock for sections of microseconds. A sync.RWMutex
// puts whoever has to wait to sleep, and waking up takes longer than a match;
// here they look a few times first.
//
// It is the phase-fair lock of Brandenburg and Anderson ("Reader-writer
// synchronization for shared-memory multiprocessor real-time systems", 2009):
// readers and writers take turns, so that a reader waits for one writer at
// most, and a writer for the readers that were there before it. Writers queue
// up in a mutex. The zero value is unlocked.
type fairLock struct {
	in   atomic.Uint32 // readers that came, in units of oneReader, and the writer's bits
	out  atomic.Uint32 // readers that left
	mu   sync.Mutex    // held by the writer
	turn uint32        // guarded by mu; tells one writer's bits from the next one's
}

const (
	writerHere = 2
	writerTurn = 1
	writerBits = writerHere | writerTurn
	oneReader  = 4
)

func (l *fairLock) RLock() {
	writer := l.in.Add(oneReader) & writerBits
	for n := 0; writer != 0 && l.in.Load()&writerBits == writer; n++ {
		wait(n)
	}
}

func (l *fairLock) RUnlock() { l.out.Add(oneReader) }

func (l *fairLock) Lock() {
	l.mu.Lock()
	bits := writerHere | l.turn&writerTurn
	l.turn++
	before := l.in.Add(bits) - bits
	for n := 0; l.out.Load() != before; n++ {
		wait(n)
	}
}

func (l *fairLock) Unlock() {
	l.in.And(^uint32(writerBits))
	l.mu.Unlock()
}

// wait passes a little time: the more, the longer it has been in vain, since
// whoever is waited for may not be running.
func wait(n int) {
	switch {
	case n < 10_000: // some microseconds
	case n < 10_100:
		runtime.Gosched()
	default:
		time.Sleep(20 * time.Microsecond)
	}
}
