package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// The values of the answer's enumerations.
var (
	strategies   = []string{"probabilistic", "deterministic"}
	cacheDomains = []string{"tenant", "conversation", "none", "public"}
	durabilities = []string{"strict", "strict-2", "bounded"}
)

// decode reads Rego's answer. Every field must be there, be known and have its
// type; a pool must be one of the bundle's.
func (s *Snapshot) decode(value any) (Decision, error) {
	r := &fieldReader{}
	d := readDecision(r, value)
	for _, name := range d.Pools {
		if _, ok := s.registry.data.Pools[name]; !ok {
			r.fail("pools", "no pool %q", name)
		}
	}
	if r.err != nil {
		return Decision{}, r.err
	}
	return d, nil
}

func readDecision(r *fieldReader, value any) Decision {
	root := r.object("decision", value, "allow", "reasons", "pools", "strategy", "prefer", "cache_domain",
		"inspect", "tools_allow", "limits", "durability", "expose_cached_tokens", "reauthorize_s")
	prefer := r.object("prefer", root["prefer"], "region", "warm")
	inspect := r.object("inspect", root["inspect"], "request", "response")
	limits := r.object("limits", root["limits"], "max_output_tokens")
	d := Decision{
		Allow:              r.boolean("allow", root["allow"]),
		Reasons:            r.list("reasons", root["reasons"]),
		Pools:              r.list("pools", root["pools"]),
		Strategy:           r.oneOf("strategy", root["strategy"], strategies),
		Prefer:             Prefer{Region: r.text("prefer.region", prefer["region"]), Warm: r.boolean("prefer.warm", prefer["warm"])},
		CacheDomain:        r.oneOf("cache_domain", root["cache_domain"], cacheDomains),
		Inspect:            Inspect{Request: r.list("inspect.request", inspect["request"]), Response: r.list("inspect.response", inspect["response"])},
		Durability:         r.oneOf("durability", root["durability"], durabilities),
		ExposeCachedTokens: r.boolean("expose_cached_tokens", root["expose_cached_tokens"]),
		ReauthorizeS:       r.positive("reauthorize_s", root["reauthorize_s"]),
	}
	if root["tools_allow"] != nil {
		d.ToolsAllow = r.list("tools_allow", root["tools_allow"])
	}
	if limit := limits["max_output_tokens"]; limit != nil {
		n := r.positive("limits.max_output_tokens", limit)
		d.Limits.MaxOutputTokens = &n
	}
	return d
}

// fieldReader keeps the first error, so that readDecision reads as a list.
type fieldReader struct{ err error }

func (r *fieldReader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+field+": "+format, append([]any{ErrMalformed}, args...)...)
	}
}

// object returns the fields of v, which must be exactly these.
func (r *fieldReader) object(field string, v any, names ...string) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		r.fail(field, "not an object")
		return nil
	}
	for _, name := range names {
		if _, ok := m[name]; !ok {
			r.fail(field, "no field %q", name)
		}
	}
	if len(m) > len(names) {
		for _, name := range sortedKeys(m) {
			if !slices.Contains(names, name) {
				r.fail(field, "unknown field %q", name)
			}
		}
	}
	return m
}

func (r *fieldReader) boolean(field string, v any) bool {
	b, ok := v.(bool)
	if !ok {
		r.fail(field, "not a boolean")
	}
	return b
}

func (r *fieldReader) text(field string, v any) string {
	s, ok := v.(string)
	if !ok {
		r.fail(field, "not a string")
	}
	return s
}

func (r *fieldReader) oneOf(field string, v any, allowed []string) string {
	s := r.text(field, v)
	if !slices.Contains(allowed, s) {
		r.fail(field, "%q is not one of %s", s, strings.Join(allowed, ", "))
	}
	return s
}

func (r *fieldReader) list(field string, v any) []string {
	items, ok := v.([]any)
	if !ok {
		r.fail(field, "not an array")
		return nil
	}
	list := make([]string, len(items))
	for i, item := range items {
		list[i] = r.text(field, item)
	}
	return list
}

// positive reads a whole number of at least 1.
func (r *fieldReader) positive(field string, v any) int64 {
	number, ok := v.(json.Number)
	if !ok {
		r.fail(field, "not a number")
		return 0
	}
	n, err := number.Int64()
	if err != nil || n < 1 {
		r.fail(field, "%s is not a whole number of at least 1", number)
	}
	return n
}
