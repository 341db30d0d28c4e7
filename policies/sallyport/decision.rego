# METADATA
# scope: package
# description: |
#   The policy that ships. It answers one question, data.sallyport.decision, from
#   the input document (schema/input.json) and the bundle's data
#   (schema/data.json). It only ever allows what the data grants; all else is
#   the refusal at the end. Each lookup is bound once and followed from there.
#
#   Fields that the data leaves out have their defaults by the time they are
#   read here, and every grant has a route for each of the four labels.
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

decision := content if content

else := listing if listing

else := refused

# METADATA
# description: A request with content, of a class that the tenant is granted.
# labels:
#   id: allow.content
content := permit(tenant, route, pools) if {
	class := input.class.name
	not class in {"discovery", "unclassified"}
	request := input.request
	request.operation != "models.list"
	tenant := data.sallyport.tenants[input.principal.tenant]
	grant := tenant.classes[class]

	ranks := rank
	level := input.label.level
	need := input.label.rank
	need == ranks[level]
	need <= ranks[tenant.label_max]

	model := request.model
	model in tenant.models
	served := data.sallyport.models[model]
	not too_long(served)
	denied_facts(tenant) == []
	missing_scopes(grant) == []
	denied_tools(tenant) == []

	route := grant.labels[level]
	all_pools := data.sallyport.pools
	pools := [name |
		some name in route.pools
		pool := all_pools[name]
		need <= ranks[pool.max_label]
		class in pool.classes
		model in pool.models
	]
	pools != []
}

# METADATA
# description: |
#   A listing of models. It carries no content, so it needs no model, and pools
#   of every class and label may be listed.
# labels:
#   id: allow.listing
listing := permit(tenant, route, pools) if {
	input.class.name == "discovery"
	input.request.operation == "models.list"
	tenant := data.sallyport.tenants[input.principal.tenant]
	grant := tenant.classes.discovery
	input.label.rank == rank[input.label.level]
	input.label.rank <= rank[tenant.label_max]
	denied_facts(tenant) == []
	missing_scopes(grant) == []
	denied_tools(tenant) == []
	route := grant.labels[input.label.level]
	pools := [name | some name in route.pools; data.sallyport.pools[name]]
	pools != []
}

# METADATA
# description: Everything else, with every reason.
# labels:
#   id: refuse
refused := object.union(refusal, {"reasons": [reason | some reason in reasons]}) if {
	count(reasons) > 0
}

permit(tenant, route, pools) := {
	"allow": true,
	"reasons": ["class_granted"],
	"pools": pools,
	"strategy": route.strategy,
	"prefer": {"region": preferred(tenant), "warm": true},
	"cache_domain": route.cache_domain,
	"inspect": route.inspect,
	"tools_allow": tenant.tools_allow,
	"limits": {"max_output_tokens": tenant.max_output_tokens},
	"durability": route.durability,
	"expose_cached_tokens": tenant.expose_cached_tokens,
	"reauthorize_s": tenant.reauthorize_s,
}

preferred(tenant) := tenant.region if tenant.region != ""

else := input.request.region

# An estimate may be far above the truth, so only what an engine counted, or we
# as it does, is held against the window. A window of 0 is unknown.
too_long(model) if {
	model.context_window != 0
	input.request.prompt_tokens > model.context_window
	input.request.prompt_tokens_basis in {"native", "engine"}
}

# Facts that the tenant denies and no exemption in force lifts.
denied_facts(tenant) := [fact |
	some fact in tenant.facts_deny
	fact in input.class.facts
	not fact in lifted_facts
]

lifted_facts contains fact if {
	some id in input.exemptions
	scope := data.sallyport.exemptions[id].scope
	scope.tenant == input.principal.tenant
	some fact in scope.facts
}

missing_scopes(grant) := [scope |
	some scope in grant.scopes
	not scope in input.principal.scopes
]

# A tenant without a list of tools takes any.
denied_tools(tenant) := [tool |
	some tool in input.request.tools
	tenant.tools_allow != null
	not tool in tenant.tools_allow
]
