package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// registry answers look-ups in a bundle's data. It is built once per snapshot
// and read-only afterwards.
type registry struct {
	data    Data
	models  map[string]string    // name or alias → name
	ids     map[string]string    // exact SPIFFE ID → registration
	prefix  map[string]string    // pattern without the star, "spiffe://td/a/" → registration
	clients map[clientKey]string // → registration
}

type clientKey struct{ issuer, client string }

// newRegistry refuses data in which two entries claim the same caller or name.
func newRegistry(d Data) (*registry, error) {
	r := &registry{
		data:    d,
		models:  make(map[string]string),
		ids:     make(map[string]string),
		prefix:  make(map[string]string),
		clients: make(map[clientKey]string),
	}
	for _, name := range sortedKeys(d.Models) {
		if err := claim(r.models, name, name, "model"); err != nil {
			return nil, err
		}
	}
	for _, name := range sortedKeys(d.Models) {
		for _, alias := range d.Models[name].Aliases {
			if err := claim(r.models, alias, name, "model"); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range sortedKeys(d.Workloads) {
		if err := r.register(name, d.Workloads[name]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *registry) register(name string, reg Registration) error {
	if reg.ClientID != "" {
		return claim(r.clients, clientKey{reg.Issuer, reg.ClientID}, name, "registration")
	}
	if base, ok := strings.CutSuffix(reg.SPIFFEID, "*"); ok {
		return claim(r.prefix, base, name, "registration")
	}
	return claim(r.ids, reg.SPIFFEID, name, "registration")
}

func claim[K comparable](m map[K]string, key K, name, what string) error {
	if other, taken := m[key]; taken {
		return fmt.Errorf("ambiguous %s: %q and %q both claim %v", what, other, name, key)
	}
	m[key] = name
	return nil
}

// registration finds the most specific entry. A proven SPIFFE ID goes before an
// OAuth client: exact first, then the longest pattern.
func (r *registry) registration(spiffeID, issuer, clientID string) (Registration, bool) {
	if spiffeID != "" {
		if name, ok := r.bySPIFFEID(spiffeID); ok {
			return r.data.Workloads[name], true
		}
	}
	if clientID == "" {
		return Registration{}, false
	}
	for _, key := range []clientKey{{issuer, clientID}, {"", clientID}} {
		if name, ok := r.clients[key]; ok {
			return r.data.Workloads[name], true
		}
	}
	return Registration{}, false
}

// bySPIFFEID walks up the path one segment at a time, so that /batch/* never
// matches /batch-evil.
func (r *registry) bySPIFFEID(id string) (string, bool) {
	if name, ok := r.ids[id]; ok {
		return name, true
	}
	for i := strings.LastIndexByte(id, '/'); i > len("spiffe://"); i = strings.LastIndexByte(id[:i], '/') {
		if name, ok := r.prefix[id[:i+1]]; ok && i+1 < len(id) {
			return name, true
		}
	}
	return "", false
}

func (r *registry) exemptionsInForce(tenant string, now time.Time) []string {
	ids := []string{}
	for id, e := range r.data.Exemptions {
		if e.Scope.Tenant == tenant && now.Before(e.Expires) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Tenant returns what the bundle says of a tenant.
func (s *Snapshot) Tenant(id string) (Tenant, bool) {
	t, ok := s.registry.data.Tenants[id]
	return t, ok
}

// Registration returns the most specific registration of a caller: its exact
// SPIFFE ID, else the longest pattern, else its OAuth client at that issuer,
// else its OAuth client at any.
func (s *Snapshot) Registration(spiffeID, issuer, clientID string) (Registration, bool) {
	return s.registry.registration(spiffeID, issuer, clientID)
}

// Model returns the model of that name or alias.
func (s *Snapshot) Model(nameOrAlias string) (Model, bool) {
	name, ok := s.registry.models[nameOrAlias]
	return s.registry.data.Models[name], ok
}

// Models returns every model, sorted by name.
func (s *Snapshot) Models() []Model {
	models := make([]Model, 0, len(s.registry.data.Models))
	for _, name := range sortedKeys(s.registry.data.Models) {
		models = append(models, s.registry.data.Models[name])
	}
	return models
}

// Pool returns the pool of that name.
func (s *Snapshot) Pool(name string) (Pool, bool) {
	p, ok := s.registry.data.Pools[name]
	return p, ok
}

// ExemptionsInForce returns the ids of the tenant's exemptions that have not
// expired, sorted and never nil: it goes into [Input].
func (s *Snapshot) ExemptionsInForce(tenant string, now time.Time) []string {
	return s.registry.exemptionsInForce(tenant, now)
}

// CheckPools compares the pools of the configuration, which has their
// addresses, with those of the bundle, which has their permissions. One that
// stands in only one place is an error.
func (s *Snapshot) CheckPools(configured []string) error {
	return s.registry.checkPools(configured)
}

func (r *registry) checkPools(configured []string) error {
	for _, name := range configured {
		if _, ok := r.data.Pools[name]; !ok {
			return fmt.Errorf("pool %q is configured but not in the policy bundle", name)
		}
	}
	for _, name := range sortedKeys(r.data.Pools) {
		if !slices.Contains(configured, name) {
			return fmt.Errorf("pool %q is in the policy bundle but not configured", name)
		}
	}
	return nil
}
