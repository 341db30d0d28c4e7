package kvindex

import "sync/atomic"

// meter counts the bytes that the index has allocated. Allocation itself never
// fails; the gate in front of each store keeps the sum within the budget.
type meter struct{ bytes atomic.Int64 }

func (m *meter) add(n int64) { m.bytes.Add(n) }

// slabItems is how many items a slab of nodes or partial holders has.
const slabItems = 256

// arena hands out items of T by index, in slabs that never move. Index 0 is
// never handed out. T must hold no pointers, so that the collector does not
// look inside. Freed items are chained through link.
type arena[T any] struct {
	slabs [][]T
	used  uint32 // items ever handed out, and index 0
	free  uint32
	live  int
	size  int64 // bytes of an item
	link  func(*T) *uint32
}

func (a *arena[T]) at(i uint32) *T { return &a.slabs[i/slabItems][i%slabItems] }

func (a *arena[T]) alloc(m *meter) uint32 {
	a.live++
	if i := a.free; i != 0 {
		a.free = *a.link(a.at(i))
		var zero T
		*a.at(i) = zero
		return i
	}
	if a.used == 0 {
		a.used = 1
	}
	if int(a.used)/slabItems == len(a.slabs) {
		a.slabs = append(a.slabs, make([]T, slabItems))
		m.add(a.size * slabItems)
	}
	a.used++
	return a.used - 1
}

func (a *arena[T]) release(i uint32) {
	a.live--
	*a.link(a.at(i)) = a.free
	a.free = i
}

// drop gives all memory back. Nothing may be in use.
func (a *arena[T]) drop(m *meter) {
	m.add(-a.size * slabItems * int64(len(a.slabs)))
	a.slabs, a.used, a.free = nil, 0, 0
}

// words hands out arrays of 1<<class words, for runs of ids and for bitsets.
// Slot 0 of each class is never handed out. The first word of a free array is
// the next free slot.
type words struct{ classes [wordClasses]wordClass }

type wordClass struct {
	slabs [][]uint64
	used  uint32
	free  uint32
}

const (
	wordClasses = 11   // up to 1024 words, which is 65,536 replicas
	slabWords   = 1024 // of a slab
)

// classFor is the smallest class with room for n words.
func classFor(n int) uint8 {
	c := uint8(0)
	for 1<<c < n {
		c++
	}
	return c
}

func (w *words) at(class uint8, slot uint32) []uint64 {
	per := uint32(slabWords) >> class
	size := uint32(1) << class
	at := slot % per * size
	return w.classes[class].slabs[slot/per][at : at+size : at+size]
}

func (w *words) alloc(m *meter, class uint8) uint32 {
	c := &w.classes[class]
	if s := c.free; s != 0 {
		a := w.at(class, s)
		c.free = uint32(a[0])
		clear(a)
		return s
	}
	per := uint32(slabWords) >> class
	if c.used == 0 {
		c.used = 1
	}
	for int(c.used/per) >= len(c.slabs) {
		c.slabs = append(c.slabs, make([]uint64, slabWords))
		m.add(slabWords * 8)
	}
	c.used++
	return c.used - 1
}

func (w *words) release(class uint8, slot uint32) {
	c := &w.classes[class]
	w.at(class, slot)[0] = uint64(c.free)
	c.free = slot
}

func (w *words) drop(m *meter) {
	for i := range w.classes {
		m.add(-slabWords * 8 * int64(len(w.classes[i].slabs)))
		w.classes[i] = wordClass{}
	}
}
