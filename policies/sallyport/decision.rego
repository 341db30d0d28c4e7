# METADATA
# scope: package
# description: |
#   The policy that ships. It answers one question, data.sallyport.decision, from
#   the input document (schema/input.json) and the bundle's data
#   (schema/data.json). It only ever allows what the data grants; all else is
#   the refusal at the end. Each lookup is bound once and followed from there.
# schemas:
#   - input: schema.input
package sallyport

# What a refusal looks like. The gateway reads nothing of it but allow and
# reasons, yet every field must be there.
refusal := {
	"allow": false,
	"reasons": [],
	"pools": [],
	"strategy": "deterministic",
	"prefer": {"region": "", "warm": false},
	"cache_domain": "none",
	"inspect": {"request": [], "response": []},
	"tools_allow": [],
	"limits": {"max_output_tokens": null},
	"durability": "strict",
	"expose_cached_tokens": false,
	"reauthorize_s": 60,
}

rank := {"public": 0, "internal": 1, "confidential": 2, "restricted": 3}

default decision := {
	"allow": false,
	"reasons": ["not_permitted"],
	"pools": [],
	"strategy": "deterministic",
	"prefer": {"region": "", "warm": false},
	"cache_domain": "none",
	"inspect": {"request": [], "response": []},
	"tools_allow": [],
	"limits": {"max_output_tokens": null},
	"durability": "strict",
	"expose_cached_tokens": false,
	"reauthorize_s": 60,
}

# METADATA
# description: The one rule that allows.
# labels:
#   id: allow.granted
decision := {
	"allow": true,
	"reasons": ["class_granted"],
	"pools": pools,
	"strategy": route.strategy,
	"prefer": {"region": object.get(tenant, "region", input.request.region), "warm": true},
	"cache_domain": object.get(route, "cache_domain", object.get(tenant, "cache_domain", "tenant")),
	"inspect": object.get(route, "inspect", {"request": [], "response": []}),
	"tools_allow": tools,
	"limits": {"max_output_tokens": object.get(tenant, "max_output_tokens", null)},
	"durability": object.get(route, "durability", object.get(tenant, "durability", "strict")),
	"expose_cached_tokens": object.get(tenant, "expose_cached_tokens", false),
	"reauthorize_s": object.get(tenant, "reauthorize_s", 300),
} if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	class := input.class.name
	grant := tenant.classes[class]
	class != "unclassified"
	operation_fits(class)
	level := input.label.level
	input.label.rank == rank[level]
	input.label.rank <= rank[object.get(tenant, "label_max", "restricted")]
	route := object.get(object.get(grant, "labels", {}), level, grant)
	model_permitted(tenant, class)
	facts_permitted(tenant)
	scopes_held(grant)
	tools := object.get(tenant, "tools_allow", null)
	tools_permitted(tools)
	pools := [name | some name in route.pools; usable(name, class)]
	count(pools) > 0
} else := object.union(refusal, {"reasons": [reason | some reason in reasons]}) if {
	count(reasons) > 0
}

# Discovery carries no content, so it needs no model and no class at the pool;
# in return it is only ever the listing of models.
operation_fits(class) if {
	class == "discovery"
	input.request.operation == "models.list"
}

operation_fits(class) if {
	class != "discovery"
	input.request.operation != "models.list"
}

model_permitted(_, "discovery")

model_permitted(tenant, class) if {
	class != "discovery"
	input.request.model in tenant.models
	prompt_fits(data.sallyport.models[input.request.model])
}

# An estimate may be far above the truth, so only the engine's own count is
# held against the window. A window of 0 is unknown.
prompt_fits(_) if input.request.prompt_tokens_basis != "native"

prompt_fits(model) if model.context_window == 0

prompt_fits(model) if input.request.prompt_tokens <= model.context_window

# A fact that a tenant denies needs an exemption in force that names it.
facts_permitted(tenant) if {
	denied := object.get(tenant, "facts_deny", [])
	every fact in input.class.facts {
		fact_permitted(fact, denied)
	}
}

fact_permitted(fact, denied) if not fact in denied

fact_permitted(fact, _) if {
	some id in input.exemptions
	scope := data.sallyport.exemptions[id].scope
	scope.tenant == input.principal.tenant
	fact in scope.facts
}

scopes_held(grant) if {
	every scope in object.get(grant, "scopes", []) {
		scope in input.principal.scopes
	}
}

tools_permitted(null)

tools_permitted(tools) if {
	is_array(tools)
	every tool in input.request.tools {
		tool in tools
	}
}

usable(name, "discovery") if data.sallyport.pools[name]

usable(name, class) if {
	class != "discovery"
	pool := data.sallyport.pools[name]
	class in pool.classes
	input.label.rank <= rank[pool.max_label]
	input.request.model in pool.models
}
