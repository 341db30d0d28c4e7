package residency

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// checker holds one Watch to the protocol.
type checker struct {
	seq   uint64
	epoch string
	hello *residencyv1.Hello
	whole bool // the snapshot has ended
}

// frame returns why f is not what may come next.
func (c *checker) frame(f *residencyv1.Frame) error {
	c.seq++
	switch {
	case f.GetSeq() != c.seq:
		return fmt.Errorf("sequence %d expected", c.seq)
	case f.GetEpoch() == "":
		return errors.New("no epoch")
	case c.seq == 1:
		c.epoch = f.GetEpoch()
	case f.GetEpoch() != c.epoch:
		return fmt.Errorf("epoch %q after %q", f.GetEpoch(), c.epoch)
	}
	if f.GetBody() == nil {
		return nil
	}
	hello := f.GetHello()
	if (hello != nil) != (c.hello == nil) {
		return errors.New("hello must come first and once")
	}
	if hello != nil {
		c.hello = hello
		return checkHello(hello)
	}
	return c.body(f)
}

func (c *checker) body(f *residencyv1.Frame) error {
	switch b := f.GetBody().(type) {
	case *residencyv1.Frame_Snapshot:
		if c.whole {
			return errors.New("snapshot after its end")
		}
		for _, s := range b.Snapshot.GetNodes() {
			if err := c.stored(s); err != nil {
				return err
			}
		}
	case *residencyv1.Frame_SnapshotEnd:
		if c.whole {
			return errors.New("second end of snapshot")
		}
		c.whole = true
	case *residencyv1.Frame_Stored:
		return cmp.Or(c.changes(), c.stored(b.Stored))
	case *residencyv1.Frame_Removed:
		return cmp.Or(c.changes(), c.removed(b.Removed))
	case *residencyv1.Frame_Cleared:
		return cmp.Or(c.changes(), c.rank(b.Cleared.GetRank()))
	case *residencyv1.Frame_State:
		return c.rank(b.State.GetRank())
	}
	return nil
}

func (c *checker) changes() error {
	if !c.whole {
		return errors.New("change before the end of the snapshot")
	}
	return nil
}

func (c *checker) rank(r uint32) error {
	if r >= c.hello.GetRanks() {
		return fmt.Errorf("rank %d of %d", r, c.hello.GetRanks())
	}
	return nil
}

func (c *checker) stored(s *residencyv1.Stored) error {
	switch n := len(s.GetIds()); {
	case n == 0:
		return errors.New("stored nothing")
	case s.GetNode() == 0 || uint64(s.GetNode())+uint64(n)-1 > math.MaxUint32:
		return fmt.Errorf("stored %d blocks at node %d", n, s.GetNode())
	}
	return cmp.Or(c.rank(s.GetRank()), checkTier(s.GetTier()))
}

func (c *checker) removed(r *residencyv1.Removed) error {
	for _, n := range r.GetNodes() {
		if n == 0 {
			return errors.New("removed node 0")
		}
	}
	return cmp.Or(c.rank(r.GetRank()), checkTier(r.GetTier()))
}

func checkTier(t uint32) error {
	if t >= MaxTiers {
		return fmt.Errorf("tier %d", t)
	}
	return nil
}

func checkHello(h *residencyv1.Hello) error {
	switch {
	case h.GetReplica() == "":
		return errors.New("hello without replica")
	case h.GetRanks() < 1 || h.GetRanks() > MaxRanks:
		return fmt.Errorf("hello with %d ranks", h.GetRanks())
	case h.GetBlockSize() > math.MaxUint16:
		return fmt.Errorf("hello with blocks of %d tokens", h.GetBlockSize())
	case h.GetNumBlocks() > MaxBlocks:
		return fmt.Errorf("hello with %d blocks", h.GetNumBlocks())
	}
	return nil
}
