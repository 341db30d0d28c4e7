package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/roster"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing"
)

// fleetThen is the replicas of the permitted pools when a decision was made, by
// the fleet records of its log.
type fleetThen struct {
	Told     bool           `json:"told"` // false: no full fleet record stands before it
	Replicas []roster.Then  `json:"replicas"`
	Excluded []excludedThen `json:"excluded,omitempty"`
}

// excludedThen is the replicas that were excluded for one reason: all that the
// record counts are known by name, or the rest is among some.
type excludedThen struct {
	Reason string   `json:"reason"`
	Count  int      `json:"count"`
	Are    []string `json:"are,omitempty"`
	Among  []string `json:"among,omitempty"`
}

// fleets finds out what fleet each decision saw.
func fleets(path string, stories []*story) error {
	readers := make([]*roster.Reader, len(stories))
	last := stories[0]
	for i, s := range stories {
		readers[i] = roster.NewReader(s.Decision.Time.Wall)
		if s.Index > last.Index {
			last = s
		}
	}
	end := last.Decision.Time.Wall + roster.Late.Microseconds()
	for e, err := range records(path, 0) {
		if err != nil {
			return err
		}
		if !concernsFleet(e.Leaf) {
			if e.Index <= last.Index {
				continue
			}
			if at, err := timeOf(e.Leaf); err == nil && at.UnixMicro() > end {
				break
			}
			continue
		}
		rec, err := audit.Decode(e.Leaf)
		if err != nil {
			return err
		}
		for i, s := range stories {
			if err := readers[i].Add(rec, e.Index > s.Index); err != nil {
				return err
			}
		}
	}
	for i, s := range stories {
		all, told := readers[i].Members()
		s.Fleet = fleetOf(s.Decision, all, told)
	}
	return nil
}

// concernsFleet says whether a leaf is of a kind that a [roster.Reader] heeds. A
// record's fields have a fixed order.
func concernsFleet(leaf []byte) bool {
	rest, ok := bytes.CutPrefix(leaf, []byte(`{"v":1,"kind":"`))
	return ok && (bytes.HasPrefix(rest, []byte(audit.KindFleet+`"`)) || bytes.HasPrefix(rest, []byte(audit.KindBoot+`"`)))
}

// fleetOf holds the replicas there were against what a decision says of them.
func fleetOf(rec *audit.Record, all []roster.Then, told bool) *fleetThen {
	pools := poolsOf(rec)
	if len(pools) == 0 {
		return nil // nothing was to be placed
	}
	f := &fleetThen{Told: told, Replicas: slices.DeleteFunc(all, func(m roster.Then) bool { return !slices.Contains(pools, m.Pool) })}
	if told && rec.Placement != nil {
		f.Excluded = namesOf(rec.Placement, f.Replicas)
	}
	return f
}

// poolsOf are the pools that a decision permits.
func poolsOf(rec *audit.Record) []string {
	var d policy.Decision
	if json.Unmarshal(rec.Decision, &d) != nil || !d.Allow {
		return nil
	}
	return d.Pools
}

// namesOf says which replicas a placement excluded. What a replica's own state
// excludes it for is in the log; what the request did not suit is left for those
// that had nothing of the kind and are no candidates.
func namesOf(p *audit.Placement, all []roster.Then) (out []excludedThen) {
	candidates := make(map[string]bool)
	for _, c := range p.Candidates {
		candidates[c.Replica] = true
	}
	standing := make(map[string][]string)
	var lost, others []string
	for _, m := range all {
		name := m.Replica + m.Address
		switch {
		case candidates[m.Replica] && m.Replica != "":
		case m.Unsure || !accounted(p, m.Excluded): // which it may have been for a moment
			others = append(others, name)
		default:
			standing[m.Excluded] = append(standing[m.Excluded], name)
			if unreachable[m.Excluded] {
				lost = append(lost, name)
			}
		}
	}
	unsettled := 0 // reasons that no state accounts for
	for reason, n := range p.Excluded {
		if reason != string(routing.HolderDown) && len(standing[reason]) < n {
			unsettled++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(p.Excluded)) {
		x := excludedThen{Reason: reason, Count: p.Excluded[reason]}
		group := standing[reason]
		if reason == string(routing.HolderDown) { // one that cannot be reached is counted as that
			group = lost
		}
		rest := x.Count - len(group)
		switch {
		case rest == 0, rest == len(others) && unsettled == 1:
			x.Are = group
			if rest > 0 {
				x.Are = slices.Concat(group, others)
			}
		case rest < 0:
			x.Among = group
		default:
			x.Are, x.Among = group, others
		}
		out = append(out, x)
	}
	return out
}

// accounted says whether a placement excluded somebody for a state.
func accounted(p *audit.Placement, state string) bool {
	return p.Excluded[state] > 0 || unreachable[state] && p.Excluded[string(routing.HolderDown)] > 0
}

// unreachable are the states of a replica that may have held a prompt.
var unreachable = map[string]bool{string(routing.Unhealthy): true, string(routing.Breaker): true, string(routing.NoSVID): true}

// print tells which replicas there were, and which of them could not be chosen.
func (f *fleetThen) print(p *audit.Placement, line func(label, format string, args ...any)) {
	switch {
	case f == nil:
		return
	case !f.Told:
		line("fleet", "the log does not say which replicas there were: no full fleet record stands before this one")
	case p != nil && p.Considered != len(f.Replicas):
		line("fleet", "%d replicas in these pools, and %d were considered: it was just changing", len(f.Replicas), p.Considered)
	default:
		line("fleet", "%d replicas in these pools", len(f.Replicas))
	}
	for _, x := range f.Excluded {
		switch are := strings.Join(x.Are, ", "); {
		case len(x.Among) == 0:
			line("excluded", "%d: %s%s", x.Count, x.Reason, ifAny(": ", are))
		case len(x.Are) == 0:
			line("excluded", "%d: %s: among %s", x.Count, x.Reason, strings.Join(x.Among, ", "))
		default:
			line("excluded", "%d: %s: %s, and the others among %s", x.Count, x.Reason, are, strings.Join(x.Among, ", "))
		}
	}
	if p != nil {
		return
	}
	for _, m := range f.Replicas {
		state := m.Excluded
		if m.Unsure {
			state = "not known: it changed several times around then"
		}
		line("replica", "%s of pool %s%s%s", m.Replica+m.Address, m.Pool, ifAny(" in ", m.Region), ifAny(": ", state))
	}
}
