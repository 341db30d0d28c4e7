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

func (f *Filter) check(at string) error {
	for _, l := range f.Labels {
		if !slices.Contains([]string{"public", "internal", "confidential", "restricted"}, l) {
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

// subjectOf takes a request whose label is not known for restricted and one
// whose class is not known for unclassified. Records of no caller, such as a
// heartbeat, have neither tenant, label nor class.
func subjectOf(r *audit.Record) subject {
	s := subject{kind: string(r.Kind)}
	if r.Caller == nil {
		return s
	}
	s.tenant, s.label, s.class = r.Caller.Tenant, "restricted", "unclassified"
	if r.Label != nil {
		s.label = r.Label.Level
	}
	if r.Class != nil {
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
