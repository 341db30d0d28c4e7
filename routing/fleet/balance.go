package fleet

// A replica is hot when it has more than hotRatio times the mean load of its
// pool, and more than one scheduler step of an engine takes, which is no queue.
const (
	hotRatio = 1.25
	hotFloor = 8192
)

// Events arrive and nothing matches: so many prompts in a row that overlap with
// nobody's cache, while replicas told of so many blocks, are taken for a prompt
// that is not made as the engines make it.
const (
	overlapLookups = 100
	overlapTold    = 1000
)

// overlaps is how the prompts of a pool fared in the index. Guarded by Fleet.mu.
type overlaps struct {
	lookups, matched uint64
	without          int    // lookups in a row that matched nothing
	told             uint64 // blocks told in the pool when the first of those was made
}

// PoolStatus is what a pool's replicas are together.
type PoolStatus struct {
	Name      string
	Hot       int    // replicas with far more load than the mean
	Lookups   uint64 // placed prompts that were looked up in the index
	Overlaps  uint64 // of these, that anybody holds a beginning of
	NoOverlap bool   // blocks are told of, and no prompt has overlapped for long
}

// Pools is the state of every pool that has replicas.
func (f *Fleet) Pools() []PoolStatus {
	hot := make(map[string]int)
	for _, s := range f.Replicas() {
		if s.Excluded == "" && s.LoadRatio > hotRatio && s.Load > hotFloor {
			hot[s.Target.Pool]++
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]PoolStatus, 0, len(f.pools))
	for name := range f.pools {
		p := PoolStatus{Name: name, Hot: hot[name]}
		if o := f.overlaps[name]; o != nil {
			p.Lookups, p.Overlaps = o.lookups, o.matched
			p.NoOverlap = o.without >= overlapLookups && f.told(name) >= o.told+overlapTold
		}
		out = append(out, p)
	}
	return out
}

// lookedUp notes whether a placed prompt overlapped with anybody's cache. The
// caller holds f.mu.
func (f *Fleet) lookedUp(pool string, look *lookup) {
	asked, matched := false, false
	for i := range look.sizes {
		asked = asked || len(look.sizes[i].ids) > 1 // the first block may be the template's alone
		matched = matched || len(look.sizes[i].matches) > 0
	}
	if !asked {
		return
	}
	o := f.overlaps[pool]
	if o == nil {
		o = &overlaps{}
		f.overlaps[pool] = o
	}
	o.lookups++
	switch {
	case matched:
		o.matched++
		o.without = 0
	default:
		if o.without == 0 {
			o.told = f.told(pool)
		}
		o.without++
	}
}

// told is how many blocks the pool's replicas told of. The caller holds f.mu.
func (f *Fleet) told(pool string) (n uint64) {
	for _, r := range f.pools[pool] {
		n += r.blocksIn
	}
	return n
}

// balance says how each replica compares with the mean of its pool.
func balance(all []Status) {
	type sum struct{ n, load, blocks int64 }
	pools := make(map[string]sum)
	for i := range all {
		if s := &all[i]; s.Excluded == "" {
			p := pools[s.Target.Pool]
			pools[s.Target.Pool] = sum{p.n + 1, p.load + s.Load, p.blocks + int64(s.Blocks)}
		}
	}
	for i := range all {
		s := &all[i]
		if p := pools[s.Target.Pool]; s.Excluded == "" {
			s.LoadRatio = ratio(s.Load, p.load, p.n)
			s.BlockRatio = ratio(int64(s.Blocks), p.blocks, p.n)
		}
	}
}

func ratio(x, sum, n int64) float64 {
	if sum == 0 {
		return 0
	}
	return float64(x) * float64(n) / float64(sum)
}
