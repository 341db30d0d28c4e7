# Each test is a claim. The data below is small and replaces whatever the bundle
# holds, so the tests pass under every organisation's data.
package sallyport_test

import data.sallyport

# The data is as the gateway lays it before Rego: defaults filled in, a route for
# each label.
general := {"pools": ["general"], "strategy": "probabilistic", "cache_domain": "tenant", "durability": "strict", "inspect": {"request": [], "response": []}}

vault := {"pools": ["vault"], "strategy": "deterministic", "cache_domain": "conversation", "durability": "strict-2", "inspect": {"request": ["guard"], "response": ["guard"]}}

both := object.union(general, {"pools": ["general", "vault"]})

grant(route) := {
	"scopes": [],
	"labels": {level: route | some level in ["public", "internal", "confidential", "restricted"]},
}

plain_tenant := {
	"label_default": "public",
	"label_max": "restricted",
	"models": ["small", "ghost"],
	"classes": {"chat": grant(both)},
	"facts_deny": [],
	"tools_allow": null,
	"max_output_tokens": null,
	"expose_cached_tokens": false,
	"region": "",
	"reauthorize_s": 300,
}

tenants := {
	"acme": object.union(plain_tenant, {
		"label_max": "confidential",
		"models": ["small"],
		"classes": {
			"discovery": grant(both),
			"chat": object.union(grant(general), {"labels": {"confidential": vault}}),
			"embedding": object.union(grant(vault), {"scopes": ["embed"]}),
			"rag": grant(both),
		},
		"facts_deny": ["remote_url"],
		"tools_allow": ["lookup"],
		"max_output_tokens": 100,
		"expose_cached_tokens": true,
		"region": "eu-2",
		"reauthorize_s": 120,
	}),
	"plain": plain_tenant,
	"bare": object.remove(object.union(plain_tenant, {"models": []}), ["classes"]),
}

pools := {
	"general": {"region": "eu-1", "kind": "internal", "classes": ["chat"], "max_label": "internal", "models": ["small"]},
	"vault": {"region": "eu-1", "kind": "internal", "classes": ["chat", "rag", "embedding"], "max_label": "restricted", "models": ["small"]},
}

models := {"small": {"served": "small", "context_window": 100}}

exemptions := {"ex1": {"approver": "ciso", "expires": "2030-01-01T00:00:00Z", "scope": {"tenant": "acme", "facts": ["remote_url"]}}}

question := {
	"v": 1,
	"principal": {"tenant": "acme", "subject": "u", "kind": "human", "method": "oidc", "issuer": "i", "groups": [], "scopes": [], "chain": [], "workload": "", "registration": ""},
	"request": {"operation": "chat.completions", "model": "small", "stream": false, "tools": [], "max_tokens": null, "prompt_tokens": 10, "prompt_tokens_basis": "native", "region": "eu-1"},
	"class": {"name": "chat", "facts": [], "mismatch": false, "table": "t"},
	"label": {"level": "internal", "rank": 1, "categories": [], "sources": []},
	"exemptions": [],
}

# answer is the decision on the question with the given parts replaced.
answer(parts) := decision if {
	decision := sallyport.decision with input as object.union(question, parts)
		with data.sallyport.tenants as tenants
		with data.sallyport.pools as pools
		with data.sallyport.models as models
		with data.sallyport.exemptions as exemptions
}

denied(parts, reason) if {
	decision := answer(parts)
	not decision.allow
	decision.pools == []
	reason in decision.reasons
}

plain := {"principal": {"tenant": "plain"}}

label(level, rank) := {"label": {"level": level, "rank": rank}}

test_granted_class_is_allowed_with_the_tenants_terms if {
	answer({}) == {
		"allow": true,
		"reasons": ["class_granted"],
		"pools": ["general"],
		"strategy": "probabilistic",
		"prefer": {"region": "eu-2", "warm": true},
		"cache_domain": "tenant",
		"inspect": {"request": [], "response": []},
		"tools_allow": ["lookup"],
		"limits": {"max_output_tokens": 100},
		"durability": "strict",
		"expose_cached_tokens": true,
		"reauthorize_s": 120,
	}
}

test_tenant_without_terms_is_allowed_with_the_defaults if {
	answer(plain) == {
		"allow": true,
		"reasons": ["class_granted"],
		"pools": ["general", "vault"],
		"strategy": "probabilistic",
		"prefer": {"region": "eu-1", "warm": true},
		"cache_domain": "tenant",
		"inspect": {"request": [], "response": []},
		"tools_allow": null,
		"limits": {"max_output_tokens": null},
		"durability": "strict",
		"expose_cached_tokens": false,
		"reauthorize_s": 300,
	}
}

test_label_has_a_route_of_its_own if {
	decision := answer(label("confidential", 2))
	decision.pools == ["vault"]
	decision.strategy == "deterministic"
	decision.cache_domain == "conversation"
	decision.durability == "strict-2"
	decision.inspect == {"request": ["guard"], "response": ["guard"]}
}

test_pools_below_the_label_drop_out if {
	answer(object.union(plain, label("restricted", 3))).pools == ["vault"]
}

test_pools_without_the_class_drop_out if {
	answer({"class": {"name": "rag"}}).pools == ["vault"]
}

test_refusal_has_every_field if {
	object.keys(answer({"principal": {"tenant": "nobody"}})) == object.keys(answer({}))
}

test_refusal_grants_nothing if {
	decision := answer({"principal": {"tenant": "nobody"}})
	not decision.allow
	decision.tools_allow == []
	decision.cache_domain == "none"
}

test_unknown_tenant_is_denied if denied({"principal": {"tenant": "nobody"}}, "tenant_unknown")

test_class_without_a_grant_is_denied if denied({"class": {"name": "agent_tool_call"}}, "class_not_permitted")

test_tenant_without_classes_is_denied if denied({"principal": {"tenant": "bare"}}, "class_not_permitted")

test_unclassified_is_denied if denied({"class": {"name": "unclassified"}}, "unclassified")

test_unclassified_is_denied_even_if_granted if {
	generous := object.union(tenants, {"acme": {"classes": {"unclassified": grant(vault)}}})
	decision := sallyport.decision with input as object.union(question, {"class": {"name": "unclassified"}})
		with data.sallyport.tenants as generous
		with data.sallyport.pools as object.union(pools, {"vault": {"classes": ["unclassified"]}})
		with data.sallyport.models as models
	not decision.allow
}

test_label_above_the_tenants_is_denied if denied(label("restricted", 3), "label_above_tenant")

test_unknown_level_is_denied if denied(label("secret", 1), "label_malformed")

test_level_that_contradicts_its_rank_is_denied if denied(label("confidential", 0), "label_malformed")

test_model_without_a_grant_is_denied if denied({"request": {"model": "big"}}, "model_not_permitted")

test_model_that_the_bundle_lacks_is_denied if {
	denied({"principal": {"tenant": "plain"}, "request": {"model": "ghost"}}, "model_unknown")
}

test_prompt_beyond_the_window_is_denied if denied({"request": {"prompt_tokens": 101}}, "prompt_too_long")

test_prompt_of_exactly_the_window_is_allowed if answer({"request": {"prompt_tokens": 100}}).allow

test_estimate_beyond_the_window_is_allowed if {
	answer({"request": {"prompt_tokens": 101, "prompt_tokens_basis": "estimate"}}).allow
}

test_unknown_window_binds_nobody if {
	decision := sallyport.decision with input as object.union(question, {"request": {"prompt_tokens": 1000000}})
		with data.sallyport.tenants as tenants
		with data.sallyport.pools as pools
		with data.sallyport.models as {"small": {"served": "small", "context_window": 0}}
	decision.allow
}

test_denied_fact_is_denied if denied({"class": {"facts": ["system_prompt", "remote_url"]}}, "fact_not_permitted")

test_other_facts_are_allowed if answer({"class": {"facts": ["system_prompt"]}}).allow

test_exemption_in_force_lifts_the_fact if {
	answer({"class": {"facts": ["remote_url"]}, "exemptions": ["ex1"]}).allow
}

test_exemption_of_another_tenant_lifts_nothing if {
	strict := object.union(tenants, {"plain": {"facts_deny": ["remote_url"]}})
	decision := sallyport.decision with input as object.union(question, {"principal": {"tenant": "plain"}, "class": {"facts": ["remote_url"]}, "exemptions": ["ex1"]})
		with data.sallyport.tenants as strict
		with data.sallyport.pools as pools
		with data.sallyport.models as models
		with data.sallyport.exemptions as exemptions
	decision.reasons == ["fact_not_permitted"]
}

test_missing_scope_is_denied if denied({"class": {"name": "embedding"}}, "scope_missing")

test_held_scope_is_allowed if {
	answer({"class": {"name": "embedding"}, "principal": {"scopes": ["embed"]}}).allow
}

test_tool_that_is_not_listed_is_denied if denied({"request": {"tools": ["lookup", "shell"]}}, "tool_not_permitted")

test_listed_tool_is_allowed if answer({"request": {"tools": ["lookup"]}}).allow

test_tenant_without_a_tool_list_takes_any if {
	answer(object.union(plain, {"request": {"tools": ["shell"]}})).allow
}

test_no_pool_left_is_denied if {
	denied({"class": {"name": "embedding"}, "principal": {"scopes": ["embed"]}, "request": {"model": "big"}}, "no_permitted_pool")
}

test_listing_needs_no_model if {
	answer({"class": {"name": "discovery"}, "request": {"operation": "models.list", "model": ""}}).pools == ["general", "vault"]
}

test_completion_cannot_pose_as_a_listing if denied({"class": {"name": "discovery"}}, "operation_mismatch")

test_listing_is_of_class_discovery if denied({"request": {"operation": "models.list"}}, "operation_mismatch")

test_grant_without_a_strategy_allows_nothing if {
	chat := grant(object.remove(general, ["strategy"]))
	acme := object.union(object.remove(plain_tenant, ["classes"]), {"classes": {"chat": chat}})
	decision := sallyport.decision with input as question
		with data.sallyport.tenants as {"acme": acme}
		with data.sallyport.pools as pools
		with data.sallyport.models as models
	not decision.allow
	decision.reasons == ["not_permitted"]
}
