// Package policies holds the Rego that ships: rules without data, and the data
// of the demonstration.
//
// Start at sallyport/decision.rego. The rules are data-driven: what a tenant
// may do stands in data.sallyport.tenants and its neighbours, whose format is
// schema/data.json. Package policy loads FS, layers an organisation's data (or
// [Demo]) over it, and says in its own comment what it adds in code.
package policies

import (
	"embed"
	"io/fs"
)

// FS is the bundle that ships: sallyport/*.rego with its tests, and
// schema/{input,decision,data}.json. It holds no tenant, so on its own it
// denies everything.
//
//go:embed sallyport schema
var FS embed.FS

//go:embed demo
var demo embed.FS

// Demo returns the data of the demonstration, laid out to be layered over FS:
// tenants acme, globex and initech in region eu-1.
func Demo() (fs.FS, error) { return fs.Sub(demo, "demo") }
