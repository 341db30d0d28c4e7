package policy

import "slices"

// clamp narrows an answer by what no Rego may override, and says what it did.
// It never widens: it drops pools, weakens sharing, strengthens records, and
// turns allow into deny.
func (s *Snapshot) clamp(in Input, d Decision) (Decision, []string) {
	if !d.Allow {
		d.Pools = nil
		return d, nil
	}
	if reason := s.forbids(in); reason != "" {
		return refuse(reason), []string{reason}
	}
	var clamps []string
	d.Pools, clamps = s.permittedPools(in, d.Pools)
	if len(d.Pools) == 0 {
		return refuse("no_permitted_pool"), clamps
	}
	label := labelOf(in)
	if d.CacheDomain == "public" && label != Public {
		d.CacheDomain = "tenant"
		clamps = append(clamps, "cache_domain:public_above_label")
	}
	for _, reg := range s.registrations(in) {
		if limit := reg.MaxOutputTokens; limit != nil && (d.Limits.MaxOutputTokens == nil || *limit < *d.Limits.MaxOutputTokens) {
			d.Limits.MaxOutputTokens = limit
			clamps = append(clamps, "max_output_tokens:"+reg.Name)
		}
	}
	if d.Durability == "bounded" && needsStrict(in, label) {
		d.Durability = "strict"
		clamps = append(clamps, "durability:floor")
	}
	return d, clamps
}

func refuse(reason string) Decision { return Decision{Reasons: []string{reason}} }

// forbids says why the request may not run wherever it would be placed.
func (s *Snapshot) forbids(in Input) string {
	if class, err := ParseClass(in.Class.Name); err != nil || class == Unclassified {
		return "unclassified"
	}
	for _, name := range in.Principal.own() {
		if why := s.registrationForbids(in, name); why != "" {
			return why
		}
	}
	for _, a := range in.Principal.actors() {
		if a.Registration == "" {
			return "actor_not_registered"
		}
		if why := s.registrationForbids(in, a.Registration); why != "" {
			return why
		}
	}
	return ""
}

func (s *Snapshot) registrationForbids(in Input, name string) string {
	reg, ok := s.registry.data.Workloads[name]
	switch {
	case !ok:
		return "registration_unknown"
	case reg.Tenant != in.Principal.Tenant:
		return "registration_of_another_tenant"
	case !slices.Contains(reg.Classes, in.Class.Name):
		return "class_not_registered"
	}
	return ""
}

// actors are those of the chain that act for its first.
func (p *InputPrincipal) actors() []InputActor { return p.Chain[min(len(p.Chain), 1):] }

// own are the names of the caller's own registrations.
func (p *InputPrincipal) own() []string {
	return slices.DeleteFunc([]string{p.Registration, p.Client}, func(name string) bool { return name == "" })
}

// registrations are those that bind the request: the caller's and its actors'.
func (s *Snapshot) registrations(in Input) []Registration {
	var regs []Registration
	for _, name := range in.Principal.own() {
		regs = append(regs, s.registry.data.Workloads[name])
	}
	for _, a := range in.Principal.actors() {
		regs = append(regs, s.registry.data.Workloads[a.Registration])
	}
	return regs
}

// permittedPools keeps the order of the answer.
func (s *Snapshot) permittedPools(in Input, names []string) (kept, clamps []string) {
	residencies := s.residencies(in)
	for _, name := range names {
		if slices.Contains(kept, name) {
			continue
		}
		if why := s.poolForbids(in, s.registry.data.Pools[name], residencies); why != "" {
			clamps = append(clamps, "pool:"+name+":"+why)
			continue
		}
		kept = append(kept, name)
	}
	return kept, clamps
}

// residencies lists the regions that bind this caller; a pool must be in every
// one of them.
func (s *Snapshot) residencies(in Input) []string {
	var regions []string
	if r := s.registry.data.Tenants[in.Principal.Tenant].Residency; r != "" {
		regions = append(regions, r)
	}
	for _, reg := range s.registrations(in) {
		if reg.Residency != "" {
			regions = append(regions, reg.Residency)
		}
	}
	return regions
}

func (s *Snapshot) poolForbids(in Input, p Pool, residencies []string) string {
	for _, region := range residencies {
		if p.Region != region {
			return "residency"
		}
	}
	if p.Kind != "internal" && len(residencies) > 0 {
		return "external_residency"
	}
	if in.Class.Name == Discovery.String() && in.Request.Operation == "models.list" {
		return "" // a listing carries no content
	}
	label := labelOf(in)
	if p.Kind != "internal" && label > Internal {
		return "external_above_internal"
	}
	if limit, err := ParseLevel(p.MaxLabel); err != nil || label > limit {
		return "label"
	}
	if !slices.Contains(p.Classes, in.Class.Name) {
		return "class"
	}
	if !slices.Contains(p.Models, s.registry.models[in.Request.Model]) {
		return "model"
	}
	return ""
}

// labelOf is the label of the input, restricted if it is absent or if level
// and rank disagree.
func labelOf(in Input) Level {
	level, err := ParseLevel(in.Label.Level)
	if err != nil || level.Rank() != in.Label.Rank {
		return Restricted
	}
	return level
}

// needsStrict says where a record may never be bounded.
func needsStrict(in Input, label Level) bool {
	return label >= Confidential ||
		in.Class.Name == AgentToolCall.String() ||
		in.Principal.Kind == "agent" || len(in.Principal.Chain) > 0 ||
		hasAnyPrefix(in.Request.Operation, []string{"admin."})
}
