package lab

import (
	"fmt"

	"github.com/sallyport-ai/sallyport/routing/kvindex"
)

// residency is what gateways know from events about who holds which blocks: one
// index, because every gateway is told the same.
type residency struct {
	trace   *Trace
	index   *kvindex.Index
	streams []*kvindex.Stream
	ids     []uint64 // by block, as the index knows it
	scratch []kvindex.Match
	asked   []uint64
	run     []uint64
	gone    []uint32
}

func newResidency(t *Trace, replicas, blocks int) (*residency, error) {
	index, err := kvindex.New(kvindex.Config{Replicas: replicas})
	if err != nil {
		return nil, err
	}
	v := &residency{trace: t, index: index, ids: make([]uint64, t.Blocks())}
	for i := range v.ids {
		v.ids[i] = mix(uint64(i))
	}
	for r := range replicas {
		// Blocks serve as node numbers, of which a stream has 16 for each block
		// of its budget.
		s, err := index.Stream(r, max(blocks, t.Blocks()/16+1))
		if err != nil {
			return nil, err
		}
		s.Commit()
		v.streams = append(v.streams, s)
	}
	return v, nil
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (v *residency) namespace(block int32) uint64 { return uint64(v.trace.tenants[block]) + 1 }

// apply tells the stream of a replica what changed, in runs.
func (v *residency) apply(replica int, changes []change) error {
	s := v.streams[replica]
	for len(changes) > 0 {
		n := 1
		if !changes[0].stored {
			v.gone = append(v.gone[:0], uint32(changes[0].content)+1)
			for n < len(changes) && !changes[n].stored {
				v.gone = append(v.gone, uint32(changes[n].content)+1)
				n++
			}
			if err := s.Remove(v.gone, 0); err != nil {
				return fmt.Errorf("replica %d: %w", replica, err)
			}
			changes = changes[n:]
			continue
		}
		b := changes[0].content
		v.run = append(v.run[:0], v.ids[b])
		for n < len(changes) && changes[n].stored && changes[n].content == b+int32(n) && v.trace.parents[b+int32(n)] == b+int32(n)-1 {
			v.run = append(v.run, v.ids[b+int32(n)])
			n++
		}
		if err := s.Store(v.namespace(b), uint32(v.trace.parents[b]+1), uint32(b)+1, v.run, 0); err != nil {
			return fmt.Errorf("replica %d: %w", replica, err)
		}
		changes = changes[n:]
	}
	return nil
}

// name appends the ids of a request's blocks.
func (v *residency) name(dst []uint64, r *Request) []uint64 {
	for _, b := range r.Blocks {
		dst = append(dst, v.ids[b])
	}
	return dst
}

// depths sets, for each replica, how many of the request's blocks it holds as
// far as events told.
func (v *residency) depths(dst []int, r *Request) {
	clear(dst)
	if len(r.Blocks) == 0 {
		return
	}
	v.asked = v.name(v.asked[:0], r)
	v.scratch = v.index.Match(v.scratch[:0], v.namespace(r.Blocks[0]), v.asked)
	for _, m := range v.scratch {
		dst[m.Replica] = m.Depth
	}
}
