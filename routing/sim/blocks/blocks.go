// Package blocks is an engine's memory in physical blocks: which are in use, and
// in which order the others are given out again. What a block holds is for its
// user to know, and stays until the block is given out.
package blocks

// nowhere ends the list.
const nowhere = -1

// Pool is a fixed number of blocks, known by number from 0. Those that nobody
// uses are given out again, the least recently used first.
type Pool struct {
	blocks     []block
	head, tail int32 // of the list of those that nobody uses: head is given out next
	idle       int
}

// block is in the list while uses is 0.
type block struct {
	uses       int32
	prev, next int32
}

// New returns a pool of n blocks that nobody uses.
func New(n int) *Pool {
	p := &Pool{blocks: make([]block, n), head: nowhere, tail: nowhere}
	for i := range p.blocks {
		p.push(int32(i))
	}
	return p
}

// Len is how many blocks there are.
func (p *Pool) Len() int { return len(p.blocks) }

// Idle is how many of them nobody uses.
func (p *Pool) Idle() int { return p.idle }

// Used says whether somebody uses block i.
func (p *Pool) Used(i int32) bool { return p.blocks[i].uses > 0 }

// Share gives block i one more user.
func (p *Pool) Share(i int32) {
	if p.blocks[i].uses == 0 {
		p.unlink(i)
	}
	p.blocks[i].uses++
}

// Next gives out the block that nobody has used for the longest. There must be
// one.
func (p *Pool) Next() int32 {
	i := p.head
	p.Share(i)
	return i
}

// Release takes one user from each block, the last first, so that a prompt's end
// is given out before its beginning.
func (p *Pool) Release(list []int32) {
	for k := len(list) - 1; k >= 0; k-- {
		b := &p.blocks[list[k]]
		if b.uses--; b.uses == 0 {
			p.push(list[k])
		}
	}
}

// CopyFrom makes p the same as o.
func (p *Pool) CopyFrom(o *Pool) {
	p.blocks = append(p.blocks[:0], o.blocks...)
	p.head, p.tail, p.idle = o.head, o.tail, o.idle
}

func (p *Pool) push(i int32) {
	p.blocks[i].prev, p.blocks[i].next = p.tail, nowhere
	if p.tail == nowhere {
		p.head = i
	} else {
		p.blocks[p.tail].next = i
	}
	p.tail = i
	p.idle++
}

func (p *Pool) unlink(i int32) {
	b := &p.blocks[i]
	if b.prev == nowhere {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == nowhere {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	p.idle--
}
