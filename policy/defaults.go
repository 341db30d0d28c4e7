package policy

import (
	"fmt"
	"maps"

	"github.com/go-json-experiment/json"
	"github.com/open-policy-agent/opa/v1/util"
)

// defaultReauthorizeS is how long a stream may run before policy is asked
// again, in seconds.
const defaultReauthorizeS = 300

// withDefaults returns d with every field that was left out set to its default,
// and with a route for every label in every grant. The defaults stand in this
// one place, and Rego follows plain references.
func withDefaults(d Data) Data {
	d.Tenants = maps.Clone(d.Tenants)
	for id, t := range d.Tenants {
		d.Tenants[id] = tenantDefaults(t)
	}
	return d
}

func tenantDefaults(t Tenant) Tenant {
	setDefault(&t.LabelMax, Restricted.String())
	setDefault(&t.CacheDomain, "tenant")
	setDefault(&t.Durability, "strict")
	setDefault(&t.SubjectMode, "clear")
	if t.ReauthorizeS == 0 {
		t.ReauthorizeS = defaultReauthorizeS
	}
	classes := make(map[string]Grant, len(t.Classes))
	for class, grant := range t.Classes {
		classes[class] = grantDefaults(grant, t)
	}
	t.Classes = classes
	return t
}

func grantDefaults(g Grant, t Tenant) Grant {
	labels := make(map[string]Route, len(levelNames))
	for level := Public; level <= Restricted; level++ {
		route, ok := g.Labels[level.String()]
		if !ok {
			route = g.Route
		}
		labels[level.String()] = routeDefaults(route, t)
	}
	g.Route, g.Labels = routeDefaults(g.Route, t), labels
	return g
}

func routeDefaults(r Route, t Tenant) Route {
	setDefault(&r.CacheDomain, t.CacheDomain)
	setDefault(&r.Durability, t.Durability)
	if r.Inspect == nil {
		r.Inspect = &Inspect{Request: []string{}, Response: []string{}}
	}
	return r
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// document is d as Rego reads it at data.sallyport: no list is absent, and only
// tools_allow and max_output_tokens may be null.
func (d Data) document() (map[string]any, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode data.sallyport: %w", err)
	}
	var doc map[string]any
	if err := util.UnmarshalJSON(b, &doc); err != nil {
		return nil, fmt.Errorf("encode data.sallyport: %w", err)
	}
	tenants, _ := doc["tenants"].(map[string]any)
	for id, t := range d.Tenants {
		if fields, ok := tenants[id].(map[string]any); ok && t.ToolsAllow == nil {
			fields["tools_allow"] = nil
		}
	}
	return doc, nil
}
