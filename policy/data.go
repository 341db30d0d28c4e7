package policy

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Data is data.sallyport of a bundle: what the organisation grants. Its format
// is policies/schema/data.json; an unknown field fails activation.
type Data struct {
	Tenants    map[string]Tenant       `json:"tenants"`
	Workloads  map[string]Registration `json:"workloads"`
	Pools      map[string]Pool         `json:"pools"`
	Models     map[string]Model        `json:"models"`
	Exemptions map[string]Exemption    `json:"exemptions"`
}

// Tenant is what one tenant may do. In a [Snapshot] no field is empty but Region
// and Residency: one that a bundle leaves out has its default.
type Tenant struct {
	ID                 string           `json:"-"`
	LabelDefault       string           `json:"label_default"`
	LabelMax           string           `json:"label_max"` // default restricted
	Models             []string         `json:"models"`
	Classes            map[string]Grant `json:"classes"`
	FactsDeny          []string         `json:"facts_deny"`   // refused unless an exemption in force names the fact
	CacheDomain        string           `json:"cache_domain"` // default tenant
	Durability         string           `json:"durability"`   // default strict
	SubjectMode        string           `json:"subject_mode"` // clear (default) or pseudonym
	MaxOutputTokens    *int64           `json:"max_output_tokens"`
	ToolsAllow         []string         `json:"tools_allow"` // nil: no restriction
	ExposeCachedTokens bool             `json:"expose_cached_tokens"`
	Region             string           `json:"region"`        // preferred
	Residency          string           `json:"residency"`     // the only region that may serve
	ReauthorizeS       int64            `json:"reauthorize_s"` // seconds, default 300
	Extra              map[string]any   `json:"extra"`
}

// Route is where requests go and how they are placed there. CacheDomain and
// Durability default to the tenant's.
type Route struct {
	Pools       []string `json:"pools"` // in order of preference
	Strategy    string   `json:"strategy"`
	CacheDomain string   `json:"cache_domain"`
	Durability  string   `json:"durability"`
	Inspect     *Inspect `json:"inspect"`
}

// Grant permits one class. Labels replaces the route for a request of exactly
// that label; in a [Snapshot] it has all four.
type Grant struct {
	Route  `json:",inline"`
	Scopes []string         `json:"scopes"` // the caller must hold all
	Labels map[string]Route `json:"labels"`
}

// Registration describes a caller known by SPIFFE ID or OAuth client. Exactly
// one of SPIFFEID and ClientID is set. A SPIFFEID that ends in /* stands for
// every ID below it.
type Registration struct {
	Name       string   `json:"-"`
	SPIFFEID   string   `json:"spiffe_id"`
	ClientID   string   `json:"client_id"`
	Issuer     string   `json:"issuer"` // with ClientID: only this issuer; empty: any configured one
	Tenant     string   `json:"tenant"`
	Kind       string   `json:"kind"`
	Classes    []string `json:"classes"`     // all it may be used for
	Class      string   `json:"class"`       // raises every request to at least this class
	LabelFloor string   `json:"label_floor"` // raises every request to at least this level
	Residency  string   `json:"residency"`
	// MaxOutputTokens bounds an answer to it, beside what the tenant's does.
	MaxOutputTokens *int64         `json:"max_output_tokens"`
	Extra           map[string]any `json:"extra"`
}

// Pool is a set of replicas and what may run there. Its members and addresses
// are configuration.
type Pool struct {
	Name     string         `json:"-"`
	Region   string         `json:"region"`
	Kind     string         `json:"kind"` // internal or external
	Classes  []string       `json:"classes"`
	MaxLabel string         `json:"max_label"`
	Models   []string       `json:"models"`
	Extra    map[string]any `json:"extra"`
}

// Model is a model that tenants may be granted. An adapter is a model of its own,
// so that it is granted by its own name, to tenants and to pools alike.
type Model struct {
	Name          string         `json:"-"`
	Served        string         `json:"served"` // the name that engines know
	Base          string         `json:"base"`   // the model that this is a LoRA adapter of; empty: it is none
	Digest        string         `json:"digest"`
	ContextWindow int64          `json:"context_window"` // tokens; 0: unknown
	SafetyProfile string         `json:"safety_profile"`
	Aliases       []string       `json:"aliases"`
	Extra         map[string]any `json:"extra"`
}

// Exemption lifts a denial for a while, and says who approved it.
type Exemption struct {
	Approver string    `json:"approver"`
	Expires  time.Time `json:"expires"` // RFC 3339
	Scope    Scope     `json:"scope"`
	Reason   string    `json:"reason"`
}

// Scope is what an exemption covers.
type Scope struct {
	Tenant string         `json:"tenant"`
	Facts  []string       `json:"facts"`
	Extra  map[string]any `json:"extra"`
}

// parseData decodes data.sallyport strictly and checks every name in it, so
// that nothing dangling survives to a request.
func parseData(raw any) (Data, error) {
	var d Data
	if raw == nil {
		return d, nil
	}
	b, err := stdjson.Marshal(raw) // OPA's numbers are encoding/json's
	if err != nil {
		return Data{}, fmt.Errorf("encode data.sallyport: %w", err)
	}
	if err := json.Unmarshal(b, &d, json.RejectUnknownMembers(true)); err != nil {
		return Data{}, fmt.Errorf("decode data.sallyport: %w", err)
	}
	setNames(&d)
	return d, d.check()
}

func setNames(d *Data) {
	for id, t := range d.Tenants {
		t.ID = id
		d.Tenants[id] = t
	}
	for name, r := range d.Workloads {
		r.Name = name
		d.Workloads[name] = r
	}
	for name, p := range d.Pools {
		p.Name = name
		d.Pools[name] = p
	}
	for name, m := range d.Models {
		m.Name = name
		d.Models[name] = m
	}
}

// check reports every problem at once, each with the path of the entry.
func (d Data) check() error {
	var c checker
	for _, id := range sortedKeys(d.Tenants) {
		c.tenant("tenants."+id, d.Tenants[id], d)
	}
	for _, name := range sortedKeys(d.Workloads) {
		c.registration("workloads."+name, d.Workloads[name], d)
	}
	for _, name := range sortedKeys(d.Pools) {
		c.pool("pools."+name, d.Pools[name], d)
	}
	for _, name := range sortedKeys(d.Models) {
		c.model("models."+name, d.Models[name], d)
	}
	for _, id := range sortedKeys(d.Exemptions) {
		c.exemption("exemptions."+id, d.Exemptions[id], d)
	}
	return errors.Join(c.errs...)
}

type checker struct{ errs []error }

func (c *checker) fail(at, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("data.sallyport."+at+": "+format, args...))
}

// oneOf accepts the empty string only where empty is listed.
func (c *checker) oneOf(at, value string, allowed ...string) {
	for _, a := range allowed {
		if value == a {
			return
		}
	}
	c.fail(at, "unknown value %q", value)
}

func (c *checker) level(at, value string, required bool) {
	if value == "" && !required {
		return
	}
	if _, err := ParseLevel(value); err != nil {
		c.fail(at, "%w", err)
	}
}

func (c *checker) class(at, value string) {
	class, err := ParseClass(value)
	if err != nil {
		c.fail(at, "%w", err)
	} else if class == Unclassified {
		c.fail(at, "class unclassified cannot be granted")
	}
}

func (c *checker) tenant(at string, t Tenant, d Data) {
	c.level(at+".label_default", t.LabelDefault, true)
	c.level(at+".label_max", t.LabelMax, false)
	c.oneOf(at+".cache_domain", t.CacheDomain, "", "tenant", "conversation", "none", "public")
	c.oneOf(at+".durability", t.Durability, "", "strict", "strict-2", "bounded")
	c.oneOf(at+".subject_mode", t.SubjectMode, "", "clear", "pseudonym")
	if t.MaxOutputTokens != nil && *t.MaxOutputTokens < 1 {
		c.fail(at+".max_output_tokens", "must be at least 1")
	}
	if t.ReauthorizeS < 0 {
		c.fail(at+".reauthorize_s", "must be at least 1")
	}
	c.models(at, t.Models, d)
	for _, class := range sortedKeys(t.Classes) {
		grant := t.Classes[class]
		at := at + ".classes." + class
		c.class(at, class)
		c.route(at, grant.Route, d)
		for _, level := range sortedKeys(grant.Labels) {
			c.level(at+".labels", level, true)
			c.route(at+".labels."+level, grant.Labels[level], d)
		}
	}
}

func (c *checker) route(at string, r Route, d Data) {
	c.oneOf(at+".strategy", r.Strategy, "probabilistic", "deterministic")
	c.oneOf(at+".cache_domain", r.CacheDomain, "", "tenant", "conversation", "none", "public")
	c.oneOf(at+".durability", r.Durability, "", "strict", "strict-2", "bounded")
	for _, pool := range r.Pools {
		if _, ok := d.Pools[pool]; !ok {
			c.fail(at+".pools", "no pool %q", pool)
		}
	}
}

func (c *checker) models(at string, names []string, d Data) {
	for _, m := range names {
		if _, ok := d.Models[m]; !ok {
			c.fail(at+".models", "no model %q", m)
		}
	}
}

func (c *checker) registration(at string, r Registration, d Data) {
	if (r.SPIFFEID == "") == (r.ClientID == "") {
		c.fail(at, "needs exactly one of spiffe_id and client_id")
	}
	if r.SPIFFEID != "" {
		if r.Issuer != "" {
			c.fail(at, "issuer belongs to client_id")
		}
		if err := checkPattern(r.SPIFFEID); err != nil {
			c.fail(at+".spiffe_id", "%w", err)
		}
	}
	if _, ok := d.Tenants[r.Tenant]; !ok {
		c.fail(at, "no tenant %q", r.Tenant)
	}
	c.oneOf(at+".kind", r.Kind, "", "human", "workload", "agent")
	for _, class := range r.Classes {
		c.class(at+".classes", class)
	}
	if r.Class != "" {
		c.class(at+".class", r.Class)
	}
	c.level(at+".label_floor", r.LabelFloor, false)
	if r.MaxOutputTokens != nil && *r.MaxOutputTokens < 1 {
		c.fail(at+".max_output_tokens", "must be at least 1")
	}
}

func (c *checker) pool(at string, p Pool, d Data) {
	if p.Region == "" {
		c.fail(at, "needs a region")
	}
	c.oneOf(at+".kind", p.Kind, "internal", "external")
	c.level(at+".max_label", p.MaxLabel, true)
	for _, class := range p.Classes {
		c.class(at+".classes", class)
	}
	c.models(at, p.Models, d)
}

func (c *checker) model(at string, m Model, d Data) {
	if m.Served == "" {
		c.fail(at, "needs served")
	}
	switch base, ok := d.Models[m.Base]; {
	case m.Base == "":
	case !ok:
		c.fail(at+".base", "no model %q", m.Base)
	case base.Base != "":
		c.fail(at+".base", "%q is an adapter itself", m.Base)
	}
	if m.ContextWindow < 0 {
		c.fail(at+".context_window", "must not be negative")
	}
}

func (c *checker) exemption(at string, e Exemption, d Data) {
	if e.Approver == "" {
		c.fail(at, "needs an approver")
	}
	if e.Expires.IsZero() {
		c.fail(at, "needs expires")
	}
	if _, ok := d.Tenants[e.Scope.Tenant]; !ok {
		c.fail(at+".scope", "no tenant %q", e.Scope.Tenant)
	}
}

// checkPattern accepts spiffe://domain/path and spiffe://domain/path/*, a star
// only as the whole last segment.
func checkPattern(p string) error {
	rest, ok := strings.CutPrefix(p, "spiffe://")
	if !ok {
		return errors.New("must begin with spiffe://")
	}
	domain, path, ok := strings.Cut(rest, "/")
	if !ok || domain == "" || path == "" {
		return errors.New("needs a trust domain and a path")
	}
	id := strings.TrimSuffix(p, "/*")
	if strings.Contains(id, "*") {
		return errors.New("a * may only be the whole last segment")
	}
	_, err := spiffeid.FromString(id)
	return err
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
