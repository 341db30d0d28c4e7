package ledger

import (
	"slices"
	"time"
)

const (
	// maxFlights and maxFlightBlocks bound what the overlay remembers of one
	// namespace, and so what looking costs.
	maxFlights      = 128
	maxFlightBlocks = 1024
	// maxNamespaces bounds the overlay as a whole.
	maxNamespaces = 4096
	// swept is how many namespaces each new flight has looked through for what is
	// over: more than the one that it may add, so that no more than half of those
	// kept are of the past.
	swept = 2
)

// Overlay is the prefixes whose prefill is in flight: where the next request
// with the same prefix had better go, before any event can say so. Target is
// where: a replica, or a part of one. The zero Overlay is empty.
type Overlay[Target any] struct {
	by map[flights][]*Flight[Target]
}

// flights is a namespace, and the block size that ids are cut at.
type flights struct {
	ns    uint64
	block int
}

// Flight is one prefix on its way.
type Flight[Target any] struct {
	To       Target
	key      flights
	ids      []uint64
	until    time.Time
	answered bool
}

// Add begins a flight whose first token is expected after wait. Until it comes,
// twice that and a second are allowed. The ids stay the caller's.
func (o *Overlay[T]) Add(ns uint64, block int, ids []uint64, to T, now time.Time, wait time.Duration) *Flight[T] {
	f := &Flight[T]{
		To: to, key: flights{ns, block}, ids: slices.Clone(ids[:min(len(ids), maxFlightBlocks)]),
		until: now.Add(time.Second + 2*min(wait, time.Minute)),
	}
	o.sweep(now)
	list, known := o.by[f.key]
	list = slices.DeleteFunc(list, func(f *Flight[T]) bool { return now.After(f.until) })
	if !known && len(o.by) >= maxNamespaces {
		return f
	}
	if len(list) >= maxFlights {
		list = append(list[:0], list[1:]...)
	}
	if o.by == nil {
		o.by = make(map[flights][]*Flight[T])
	}
	o.by[f.key] = append(list, f)
	return f
}

// sweep forgets what is over in some namespaces, whichever they are. Of many, a
// conversation's or a single request's, no prompt may ever be looked for again.
func (o *Overlay[T]) sweep(now time.Time) {
	n := 0
	for key, list := range o.by {
		if n++; n > swept {
			return
		}
		list = slices.DeleteFunc(list, func(f *Flight[T]) bool { return now.After(f.until) })
		if len(list) == 0 {
			delete(o.by, key)
		} else {
			o.by[key] = list
		}
	}
}

// Answered says that the first token has come: the prefix is in the cache, and
// the event that says so is on its way, which takes about lag.
func (f *Flight[T]) Answered(now time.Time, lag time.Duration) {
	f.answered, f.until = true, now.Add(min(2*lag+40*time.Millisecond, 500*time.Millisecond))
}

// Remove ends a flight.
func (o *Overlay[T]) Remove(f *Flight[T]) {
	list := o.by[f.key]
	for i, x := range list {
		if x != f {
			continue
		}
		if len(list) == 1 {
			delete(o.by, f.key)
			return
		}
		list[i] = list[len(list)-1]
		list[len(list)-1] = nil
		o.by[f.key] = list[:len(list)-1]
		return
	}
}

// Look calls found for each flight that shares blocks with ids and is not over, with
// how many and whether its first token has come. It changes nothing, so that several
// may look at once.
func (o *Overlay[T]) Look(ns uint64, block int, ids []uint64, now time.Time, found func(to T, depth int, answered bool)) {
	for _, f := range slices.Backward(o.by[flights{ns, block}]) {
		if now.After(f.until) {
			continue
		}
		n := min(len(f.ids), len(ids))
		depth := 0
		for depth < n && f.ids[depth] == ids[depth] {
			depth++
		}
		if depth > 0 {
			found(f.To, depth, f.answered)
		}
	}
}
