// Package rate bounds how often each of many may ask.
//
// Start at [Table.Take]. Each caller has a bucket that holds a burst and fills at a
// steady rate. The bucket is one number, the time at which it will be full (GCRA,
// ITU-T I.371 annex A), so a full bucket is as good as none, and is forgotten.
package rate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"
)

// Limit is how often one caller may ask. The zero Limit is no bound.
type Limit struct {
	PerSecond float64
	Burst     int // at once; 0 is what comes in two seconds, and at least 1
}

// Check says what is wrong with l, as "field: what".
func (l Limit) Check() error {
	switch {
	case math.IsNaN(l.PerSecond) || l.PerSecond < 0 || l.PerSecond > 1e6 || l.PerSecond > 0 && l.PerSecond < 1e-3:
		return fmt.Errorf("requests_per_second: want 0, for no bound, or between 0.001 and 1000000, got %v", l.PerSecond)
	case l.Burst < 0 || l.Burst > 1e6:
		return fmt.Errorf("burst: want between 0 and 1000000, got %d", l.Burst)
	case l.Burst > 0 && l.PerSecond == 0:
		return errors.New("burst: without requests_per_second there is no bound")
	}
	return nil
}

// every is the time in which a bucket gains one request.
func (l Limit) every() time.Duration { return time.Duration(float64(time.Second) / l.PerSecond) }

// depth is the time in which an empty bucket fills.
func (l Limit) depth() time.Duration {
	burst := l.Burst
	if burst == 0 {
		burst = max(int(2*l.PerSecond), 1)
	}
	return time.Duration(burst) * l.every()
}

// Key names a bucket. Nobody's buckets are shared with another group's.
type Key struct {
	Group string // a tenant
	Name  string // a caller of it
}

// MaxBuckets is how many buckets a [Table] holds unless it is told otherwise: some
// 20 MB, of names that are as long as most.
const MaxBuckets = 1 << 16

// Table holds buckets, as many as there is room for. A group has buckets of its own
// only as long as it has fewer than there is room for still; beyond that its callers
// share one. So no group can take the buckets of another. It is safe for concurrent
// use.
type Table struct {
	max int
	now func() time.Time

	mu     sync.Mutex // guards what follows
	own    buckets[Key]
	groups map[string]int // buckets of each
	shared buckets[string]
}

// buckets are some, by what they are of: when each will be full.
type buckets[K comparable] struct {
	full map[K]time.Time
	most int // that there were since the map was made
}

// NewTable returns a table of at most max buckets, 0 meaning [MaxBuckets], by a
// clock, nil being time.Now.
func NewTable(max int, now func() time.Time) *Table {
	if max <= 0 {
		max = MaxBuckets
	}
	if now == nil {
		now = time.Now
	}
	return &Table{
		max: max, now: now, groups: make(map[string]int),
		own: buckets[Key]{full: make(map[Key]time.Time)}, shared: buckets[string]{full: make(map[string]time.Time)},
	}
}

// Take takes a request out of a bucket. If it is empty, nothing is taken, and wait
// is when there will be one.
func (t *Table) Take(k Key, l Limit) (wait time.Duration, ok bool) {
	if l.PerSecond <= 0 {
		return 0, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.sweep(now)
	at := t.at(k, now)
	switch empty := now.Add(l.depth()); {
	case at.Before(now):
		at = now
	case at.After(empty): // by a limit that has been raised since
		at = empty
		t.put(k, at)
	}
	at = at.Add(l.every())
	if over := at.Sub(now) - l.depth(); over > 0 {
		return over, false
	}
	t.put(k, at)
	return 0, true
}

// Give puts a request back that was taken.
func (t *Table) Give(k Key, l Limit) {
	if l.PerSecond <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if at := t.at(k, now); at.After(now) {
		t.put(k, at.Add(-l.every()))
	}
}

// at is when the bucket of k is full. The caller holds t.mu.
func (t *Table) at(k Key, now time.Time) time.Time {
	if at, own := t.own.full[k]; own {
		return at
	}
	if t.room(k.Group) {
		return now
	}
	return t.shared.full[t.sharing(k.Group)]
}

// put sets it, where at looked. The caller holds t.mu.
func (t *Table) put(k Key, at time.Time) {
	if _, own := t.own.full[k]; !own {
		if !t.room(k.Group) {
			t.shared.full[t.sharing(k.Group)] = at
			return
		}
		t.groups[k.Group]++
	}
	t.own.full[k] = at
}

// room reports whether a group may have one more bucket.
func (t *Table) room(group string) bool { return t.groups[group] < t.max-len(t.own.full) }

// maxShared bounds the buckets that groups share; those of further ones share one.
const maxShared = 4096

// sharing is the group whose shared bucket a group has.
func (t *Table) sharing(group string) string {
	if _, there := t.shared.full[group]; !there && len(t.shared.full) >= maxShared {
		return ""
	}
	return group
}

// swept is how many buckets each request has looked through for full ones: more than
// the one that it may add.
const swept = 3

// sweep forgets some buckets that are full.
func (t *Table) sweep(now time.Time) {
	t.own.sweep(now, func(k Key) {
		if t.groups[k.Group]--; t.groups[k.Group] == 0 {
			delete(t.groups, k.Group)
		}
	})
	t.shared.sweep(now, func(string) {})
}

// sparse is how much of a map may be empty: a walk through it takes as long as when
// it was fullest, however few are left.
const sparse = 4

// sweep forgets some that are full, and tells of each.
func (b *buckets[K]) sweep(now time.Time, gone func(K)) {
	b.most = max(b.most, len(b.full))
	n := 0
	for k, at := range b.full {
		if n++; n > swept {
			break
		}
		if !at.After(now) {
			delete(b.full, k)
			gone(k)
		}
	}
	if b.most > sparse*(len(b.full)+swept) {
		rest := make(map[K]time.Time, len(b.full))
		maps.Copy(rest, b.full) // a clone would be as large as it is
		b.full, b.most = rest, len(rest)
	}
}

// Len is how many buckets there are.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.own.full)
}
