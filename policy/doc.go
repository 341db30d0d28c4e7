// Package policy asks Rego whether a request may run, and where.
//
// Start at [Load], which compiles a bundle into an [Engine]; take one
// [Snapshot] of it per request, and ask [Snapshot.Decide]. The question is
// [Input], the answer [Decision]; the zero Decision denies.
//
// # Bundles
//
// A bundle is Rego v1 with the entry point data.sallyport.decision, and data:
//
//	sallyport/*.rego                  rules, *_test.rego their tests
//	sallyport/tenants/data.json       id → Tenant
//	sallyport/workloads/data.json     name → Registration
//	sallyport/pools/data.json         name → Pool
//	sallyport/models/data.json        name → Model
//	sallyport/exemptions/data.json    id → Exemption
//	.manifest                         {"revision": "2026.11.1", "roots": ["sallyport"]}
//
// It is a directory (development), a tarball, or file systems layered over each
// other. With a verification key the tarball must be signed, and production
// takes nothing else. The digest names the exact files: [Snapshot.Digest].
//
// # Failing closed
//
// Rego runs with strict compilation, without network or nondeterministic
// built-ins, with built-in errors as errors and a deadline. Undefined, error,
// conflict, timeout, panic, a missing or unknown field, a wrong type, an unknown
// pool: each denies with an error that says which ([ErrUndefined],
// [ErrEvaluation], [ErrTimeout], [ErrMalformed]).
//
// # Outside Rego's reach
//
// Whatever Rego answers, code narrows it and never widens it; see clamp.go. A
// pool leaves the answer if its region breaks residency, if it is external and
// the label is above internal, if its own class, label or model list excludes
// the request. A registration that lacks the class denies. Records are never
// bounded for confidential labels, agents or administration, and a cache is
// shared across tenants only for the label public.
//
// # Changing it
//
// [Engine.Reload] swaps the whole snapshot or keeps the last good one. A bundle
// activates only if its entry point exists, its own tests pass, its data is
// well formed and unambiguous, and canary questions get well-formed answers. An
// older revision is refused. With an archive ([Config]), every bundle is kept
// under its digest before it becomes active, so that what it answered can be
// asked again ([LoadArchived]).
package policy
