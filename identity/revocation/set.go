package revocation

import (
	"time"

	"github.com/sallyport-ai/sallyport/identity"
)

// set is the entries in force at some time, found by the narrowest name that
// each has. It does not change.
type set struct {
	all map[string]Entry // by ID
	by  map[name][]Entry
}

// name is one name of a caller, by its kind.
type name struct{ kind, value string }

// narrowest is the name that an entry is found by.
func narrowest(e *Entry) name {
	switch {
	case e.wide: // whatever else it names
	case e.TokenID != "":
		return name{"jti", e.TokenID}
	case e.Subject != "":
		return name{"subject", e.Subject}
	case e.Client != "":
		return name{"client", e.Client}
	}
	if e.Tenant != "" {
		return name{"tenant", e.Tenant}
	}
	return name{"issuer", e.Issuer}
}

// with is the set of these entries and more, without those that have ended. It
// returns those that s had not.
func (s *set) with(more []Entry, now time.Time) (next *set, fresh []Entry) {
	next = &set{all: make(map[string]Entry), by: make(map[name][]Entry)}
	add := func(e Entry) bool {
		if _, ok := next.all[e.ID]; ok || e.Ended(now) {
			return false
		}
		next.all[e.ID] = e
		key := narrowest(&e)
		next.by[key] = append(next.by[key], e)
		return true
	}
	for _, e := range s.all {
		add(e)
	}
	for _, e := range more {
		if add(e) {
			fresh = append(fresh, e)
		}
	}
	return next, fresh
}

// missing are the entries of s that others lack.
func (s *set) missing(others []Entry) []Entry {
	there := make(map[string]bool, len(others))
	for _, e := range others {
		there[e.ID] = true
	}
	var missing []Entry
	for id, e := range s.all {
		if !there[id] {
			missing = append(missing, e)
		}
	}
	return missing
}

// withdrawn finds an entry that withdraws the caller's token.
func (s *set) withdrawn(p identity.Principal, tenant string) (Entry, bool) {
	if len(s.all) == 0 {
		return Entry{}, false
	}
	for _, key := range [...]name{
		{"jti", p.TokenID}, {"subject", p.Subject}, {"client", p.ClientID}, {"tenant", tenant}, {"issuer", p.Issuer},
	} {
		if e, ok := s.under(key, p, tenant); ok {
			return e, true
		}
	}
	for _, actor := range p.Chain {
		for _, key := range [...]name{{"subject", actor.Subject}, {"issuer", actor.Issuer}} {
			if e, ok := s.under(key, p, tenant); ok {
				return e, true
			}
		}
	}
	return Entry{}, false
}

// under looks among the entries that are found by a name.
func (s *set) under(key name, p identity.Principal, tenant string) (Entry, bool) {
	for _, e := range s.by[key] {
		if e.withdraws(p, tenant) {
			return e, true
		}
	}
	return Entry{}, false
}
