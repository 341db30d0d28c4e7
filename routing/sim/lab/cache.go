package lab

import "github.com/sallyport-ai/sallyport/routing/sim/blocks"

// nowhere ends a list.
const nowhere = -1

// cache is an engine's memory in physical blocks. A content may have several
// copies: engines do not deduplicate.
type cache struct {
	*blocks.Pool
	slots   []slot
	first   []int32 // by content: its oldest copy
	changes []change
}

// slot is what one physical block holds.
type slot struct {
	content int32 // nowhere: nothing that could be found again
	copy    int32 // the next copy of the same content
}

// change is that a content appeared, or that its last copy went.
type change struct {
	content int32
	stored  bool
}

func newCache(n, contents int) *cache {
	c := &cache{Pool: blocks.New(n), slots: make([]slot, n), first: make([]int32, contents)}
	for i := range c.first {
		c.first[i] = nowhere
	}
	for i := range c.slots {
		c.slots[i] = slot{nowhere, nowhere}
	}
	return c
}

// copyFrom makes c the same as o, without its changes.
func (c *cache) copyFrom(o *cache) {
	c.CopyFrom(o.Pool)
	c.slots = append(c.slots[:0], o.slots...)
	c.first = append(c.first[:0], o.first...)
	c.changes = c.changes[:0]
}

func (c *cache) used() int { return c.Len() - c.Idle() }

// held is how many of these blocks the cache holds, from the first on, and how
// many of those nobody uses.
func (c *cache) held(contents []int32) (n, idle int) {
	for _, b := range contents {
		s := c.first[b]
		if s == nowhere {
			break
		}
		n++
		if !c.Used(s) {
			idle++
		}
	}
	return n, idle
}

// take claims the copies of contents, all of which are held.
func (c *cache) take(dst, contents []int32) []int32 {
	for _, b := range contents {
		c.Share(c.first[b])
		dst = append(dst, c.first[b])
	}
	return dst
}

// allocate claims n blocks, evicting what they held. There must be as many.
func (c *cache) allocate(dst []int32, n int) []int32 {
	for range n {
		s := c.Next()
		c.evict(s)
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
