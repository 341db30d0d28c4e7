# Why the answer is no. Evaluated only for a refusal; nothing here can allow.
package sallyport

reasons contains "tenant_unknown" if not tenant_known

tenant_known if data.sallyport.tenants[input.principal.tenant]

reasons contains "unclassified" if input.class.name == "unclassified"

reasons contains "class_not_permitted" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	not tenant.classes[input.class.name]
}

# Only a listing is of class discovery, and a listing is of no other.
reasons contains "operation_mismatch" if {
	input.class.name == "discovery"
	input.request.operation != "models.list"
}

reasons contains "operation_mismatch" if {
	input.class.name != "discovery"
	input.request.operation == "models.list"
}

reasons contains "label_malformed" if not label_well_formed

label_well_formed if input.label.rank == rank[input.label.level]

reasons contains "label_above_tenant" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	input.label.rank > rank[tenant.label_max]
}

reasons contains "model_not_permitted" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	input.class.name != "discovery"
	not input.request.model in tenant.models
}

reasons contains "model_unknown" if {
	input.class.name != "discovery"
	not data.sallyport.models[input.request.model]
}

reasons contains "prompt_too_long" if too_long(data.sallyport.models[input.request.model])

reasons contains "fact_not_permitted" if {
	denied_facts(data.sallyport.tenants[input.principal.tenant]) != []
}

reasons contains "scope_missing" if {
	grant := data.sallyport.tenants[input.principal.tenant].classes[input.class.name]
	missing_scopes(grant) != []
}

reasons contains "tool_not_permitted" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	denied_tools(tenant) != []
}

# The grant names pools, but none of them takes this class, label and model.
reasons contains "no_permitted_pool" if {
	grant := data.sallyport.tenants[input.principal.tenant].classes[input.class.name]
	every name in grant.labels[input.label.level].pools {
		not usable(name, input.class.name)
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
