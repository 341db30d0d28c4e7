package lab

// nowhere ends a list.
const nowhere = -1

// cache is an engine's memory in physical blocks. Those that nobody uses keep
// their content until they are needed, the least recently used first. A content
// may have several copies: engines do not deduplicate.
type cache struct {
	slots      []slot
	first      []int32 // by content: its oldest copy
	head, tail int32   // free list: head is evicted next
	free       int
	changes    []change
}

// slot is one physical block. It is in the free list while uses is 0.
type slot struct {
	content    int32 // nowhere: nothing that could be found again
	uses       int32
	prev, next int32
	copy       int32 // the next copy of the same content
}

// change is that a content appeared, or that its last copy went.
type change struct {
	content int32
	stored  bool
}

func newCache(blocks, contents int) *cache {
	c := &cache{slots: make([]slot, blocks), first: make([]int32, contents), head: nowhere, tail: nowhere}
	for i := range c.first {
		c.first[i] = nowhere
	}
	for i := range c.slots {
		c.slots[i] = slot{content: nowhere, copy: nowhere}
		c.push(int32(i))
	}
	return c
}

// copyFrom makes c the same as o, without its changes.
func (c *cache) copyFrom(o *cache) {
	c.slots = append(c.slots[:0], o.slots...)
	c.first = append(c.first[:0], o.first...)
	c.head, c.tail, c.free, c.changes = o.head, o.tail, o.free, c.changes[:0]
}

func (c *cache) used() int { return len(c.slots) - c.free }

// held is how many of these blocks the cache holds, from the first on, and how
// many of those nobody uses.
func (c *cache) held(contents []int32) (n, idle int) {
	for _, b := range contents {
		s := c.first[b]
		if s == nowhere {
			break
		}
		n++
		if c.slots[s].uses == 0 {
			idle++
		}
	}
	return n, idle
}

// take claims the copies of contents, all of which are held.
func (c *cache) take(dst, contents []int32) []int32 {
	for _, b := range contents {
		s := c.first[b]
		if c.slots[s].uses == 0 {
			c.unlink(s)
		}
		c.slots[s].uses++
		dst = append(dst, s)
	}
	return dst
}

// allocate claims n blocks, evicting what they held. There must be as many.
func (c *cache) allocate(dst []int32, n int) []int32 {
	for range n {
		s := c.head
		c.unlink(s)
		c.evict(s)
		c.slots[s].uses = 1
		dst = append(dst, s)
	}
	return dst
}

// fill says that slot s now holds content.
func (c *cache) fill(s, content int32) {
	c.slots[s].content, c.slots[s].copy = content, nowhere
	at := &c.first[content]
	if *at == nowhere {
		c.changes = append(c.changes, change{content, true})
	}
	for *at != nowhere {
		at = &c.slots[*at].copy
	}
	*at = s
}

// release gives blocks back, the last first, so that a prompt's end is evicted
// before its beginning.
func (c *cache) release(slots []int32) {
	for i := len(slots) - 1; i >= 0; i-- {
		if s := &c.slots[slots[i]]; s.uses == 1 {
			s.uses = 0
			c.push(slots[i])
		} else {
			s.uses--
		}
	}
}

func (c *cache) evict(s int32) {
	content := c.slots[s].content
	if content == nowhere {
		return
	}
	at := &c.first[content]
	for *at != s {
		at = &c.slots[*at].copy
	}
	*at = c.slots[s].copy
	c.slots[s].content, c.slots[s].copy = nowhere, nowhere
	if c.first[content] == nowhere {
		c.changes = append(c.changes, change{content, false})
	}
}

func (c *cache) push(s int32) {
	c.slots[s].prev, c.slots[s].next = c.tail, nowhere
	if c.tail == nowhere {
		c.head = s
	} else {
		c.slots[c.tail].next = s
	}
	c.tail = s
	c.free++
}

func (c *cache) unlink(s int32) {
	b := &c.slots[s]
	if b.prev == nowhere {
		c.head = b.next
	} else {
		c.slots[b.prev].next = b.next
	}
	if b.next == nowhere {
		c.tail = b.prev
	} else {
		c.slots[b.next].prev = b.prev
	}
	c.free--
}
