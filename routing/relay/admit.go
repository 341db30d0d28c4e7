package relay

import "github.com/sallyport-ai/sallyport/routing/kvevents"

// tiers is how many kinds of memory are told apart.
const tiers = 3

// tierNames names them; a tier's number is its index.
var tierNames = [tiers]string{"GPU", "CPU", "STORAGE"}

// tierOf maps what engines call their kinds of memory. Early engines name none
// and have only the GPU.
var tierOf = map[string]uint8{
	"": 0, "GPU": 0,
	"CPU": 1, "CPU_PINNED": 1,
	"STORAGE": 2, "DISK": 2, "FS": 2, "OBJ": 2, "EXTERNAL": 2,
}

// fullAttention are the kinds of attention for which a block, once stored, is
// useful to every longer prompt.
var fullAttention = map[string]bool{"full_attention": true, "mla_attention": true, "sink_full_attention": true}

// admit decides whether a stored event says anything that we can use, and in
// which tier. Leaving one out only makes the mirror say less.
func (m *mirror) admit(ev *kvevents.Event) (tier uint8, ok bool, f fault) {
	tier, known := tierOf[ev.Medium]
	full, f := m.groups.learn(ev)
	var why string
	switch {
	case f != "":
		return 0, false, f
	case !full:
		why = "group"
	case !known:
		why = "medium"
	case ev.Locality == "REMOTE":
		why = "remote"
	case ev.SaltHidden:
		m.saltHidden = true
		why = "salt_hidden"
	case !ev.Dense():
		why = "not_dense"
	default:
		if m.cfg.blockSize == 0 {
			m.cfg.blockSize = ev.BlockSize
		}
		return tier, true, ""
	}
	m.skipped[why]++
	return 0, false, ""
}

// groups are the cache groups of an engine as its stores have shown them. The
// zero value has seen none.
type groups struct {
	full    map[int]bool // group → it is full attention
	primary int          // the group whose stores count, once there is one
	typed   bool         // the engine names kinds of attention
}

// learn learns of the event's group and says whether its stores count: those of
// the first full-attention group do. Another one holds the same blocks, and what
// either evicts is gone.
func (g *groups) learn(ev *kvevents.Event) (counts bool, f fault) {
	full := ev.SlidingWindow == 0 && (ev.SpecKind == "" || fullAttention[ev.SpecKind])
	if g.full == nil {
		g.full, g.primary = make(map[int]bool), kvevents.None
	}
	if _, seen := g.full[ev.Group]; !seen {
		if full && !g.full[g.primary] {
			g.primary = ev.Group
		}
		g.full[ev.Group] = full
		g.typed = g.typed || ev.SpecKind != ""
		if len(g.full) > 1 && !g.typed {
			return false, faultGroups
		}
	}
	return full && ev.Group == g.primary, ""
}

// evicts says whether what a group evicts is gone: it is, unless the group is
// known to be of another kind than full attention.
func (g *groups) evicts(group int) bool {
	full, seen := g.full[group]
	return full || !seen
}
