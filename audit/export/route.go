package export

import (
	"fmt"
	"slices"

	"github.com/sallyport-ai/sallyport/audit"
)

// Filter describes records by what they are about. An empty list is about
// nothing.
type Filter struct {
	Tenants []string `yaml:"tenants"`
	Labels  []string `yaml:"labels"`
	Classes []string `yaml:"classes"`
	Kinds   []string `yaml:"kinds"`
}

// labels are those that a request can have.
var labels = []string{"public", "internal", "confidential", "restricted"}

// Classes are those that a request can be of.
var Classes = []string{"unclassified", "discovery", "chat", "embedding", "rag", "agent_tool_call"}

// check refuses names that no record has: a sink would wait for them in vain, or
// hold what it was to be spared.
func (f *Filter) check(at string) error {
	if slices.Contains(f.Tenants, "") {
		return fmt.Errorf("%s.tenants: no tenant is called \"\"", at)
	}
	for _, c := range f.Classes {
		if !slices.Contains(Classes, c) {
			return fmt.Errorf("%s.classes: no class %q", at, c)
		}
	}
	for _, l := range f.Labels {
		if !slices.Contains(labels, l) {
			return fmt.Errorf("%s.labels: no label %q", at, l)
		}
	}
	for _, k := range f.Kinds {
		if !slices.Contains(audit.Kinds, audit.Kind(k)) {
			return fmt.Errorf("%s.kinds: no kind of record %q", at, k)
		}
	}
	return nil
}

// subject is what routes go by.
type subject struct{ tenant, label, class, kind string }

// nobodys stands for the tenant of an outcome that the log itself wrote, after a
// crash. No tenant is called so, and no list can name it.
const nobodys = "\x00"

// subjectOf takes a request whose label is not known for restricted and one
// whose class is not known for unclassified. Records about no request, such as a
// heartbeat, have neither tenant, label nor class.
func subjectOf(r *audit.Record) subject {
	s := subject{kind: string(r.Kind)}
	switch {
	case r.Caller != nil:
		s.tenant = r.Caller.Tenant
	case r.Kind == audit.KindOutcome:
		s.tenant = nobodys
	default:
		return s
	}
	s.label, s.class = "restricted", "unclassified"
	if r.Label != nil && slices.Contains(labels, r.Label.Level) {
		s.label = r.Label.Level
	}
	if r.Class != nil && r.Class.Name != "" {
		s.class = r.Class.Name
	}
	return s
}

// wants says whether a record goes to the sink. What has no tenant, label or
// class goes to every sink, but by its kind.
func (c *SinkConfig) wants(r *audit.Record) bool {
	s := subjectOf(r)
	for _, rule := range []struct {
		only, except []string
		value        string
	}{
		{c.Only.Tenants, c.Except.Tenants, s.tenant},
		{c.Only.Labels, c.Except.Labels, s.label},
		{c.Only.Classes, c.Except.Classes, s.class},
		{c.Only.Kinds, c.Except.Kinds, s.kind},
	} {
		if rule.value == "" {
			continue
		}
		if len(rule.only) > 0 && !slices.Contains(rule.only, rule.value) || slices.Contains(rule.except, rule.value) {
			return false
		}
	}
	return true
}
