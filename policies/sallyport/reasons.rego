# Why the answer is no. Evaluated only for a refusal; nothing here can allow.
package sallyport

tenant_known if data.sallyport.tenants[input.principal.tenant]

reasons contains "tenant_unknown" if not tenant_known

reasons contains "unclassified" if input.class.name == "unclassified"

reasons contains "class_not_permitted" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	not tenant.classes[input.class.name]
}

reasons contains "operation_mismatch" if not operation_fits(input.class.name)

reasons contains "label_malformed" if not label_well_formed

label_well_formed if input.label.rank == rank[input.label.level]

reasons contains "label_above_tenant" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	input.label.rank > rank[object.get(tenant, "label_max", "restricted")]
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

reasons contains "prompt_too_long" if {
	model := data.sallyport.models[input.request.model]
	not prompt_fits(model)
}

reasons contains "fact_not_permitted" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	not facts_permitted(tenant)
}

reasons contains "scope_missing" if {
	grant := data.sallyport.tenants[input.principal.tenant].classes[input.class.name]
	not scopes_held(grant)
}

reasons contains "tool_not_permitted" if {
	tenant := data.sallyport.tenants[input.principal.tenant]
	not tools_permitted(object.get(tenant, "tools_allow", null))
}

# The grant names pools, but none of them takes this class, label and model.
reasons contains "no_permitted_pool" if {
	grant := data.sallyport.tenants[input.principal.tenant].classes[input.class.name]
	route := object.get(object.get(grant, "labels", {}), input.label.level, grant)
	every name in route.pools {
		not usable(name, input.class.name)
	}
}
