package fleet

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
)

// overlay is the prefixes whose prefill is in flight: where the next request
// with the same prefix had better go, before any event can say so. Guarded by
// Fleet.mu.
type overlay struct {
	by map[overlayKey][]*flight
}

// overlayKey is a namespace, and the block size that ids are cut at.
type overlayKey struct {
	ns    uint64
	block int
}

// flight is one prefix on its way.
type flight struct {
	key     overlayKey
	replica *replica
	epoch   string
	rank    int
	ids     []uint64
	until   time.Time
	// answered says that the first token has come: the prefix is in the cache,
	// and the event that says so is on its way.
	answered bool
}

func (o *overlay) add(f *flight) {
	f.ids = slices.Clone(f.ids[:min(len(f.ids), maxFlightBlocks)])
	list, known := o.by[f.key]
	if !known && len(o.by) >= maxNamespaces {
		return
	}
	if len(list) >= maxFlights {
		list = append(list[:0], list[1:]...)
	}
	o.by[f.key] = append(list, f)
}

func (o *overlay) remove(f *flight) {
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

// look calls found for each flight that shares blocks with ids, and removes
// those that are over.
func (o *overlay) look(key overlayKey, ids []uint64, now time.Time, found func(f *flight, depth int)) {
	list := o.by[key]
	for i := len(list) - 1; i >= 0; i-- {
		f := list[i]
		if now.After(f.until) {
			o.remove(f)
			continue
		}
		n := min(len(f.ids), len(ids))
		depth := 0
		for depth < n && f.ids[depth] == ids[depth] {
			depth++
		}
		if depth > 0 {
			found(f, depth)
		}
	}
}
