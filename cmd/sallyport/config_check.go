package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/relay"
)

func (c *gatewayConfig) check(k checker) {
	k.environment(c.Environment)
	k.address("listen.address", c.Listen.Address)
	k.file("listen.cert_file", c.Listen.CertFile)
	k.file("listen.key_file", c.Listen.KeyFile)
	if c.Admin.Address != "" {
		k.address("admin.address", c.Admin.Address)
	}
	k.rates(&c.Limits)
	k.required("region", c.Region)
	k.socket("identity.workload_socket", c.Identity.WorkloadSocket)
	k.federation(c.Identity.Federation)
	if len(c.Identity.Issuers) == 0 && !c.Listen.ClientSVID && c.Identity.JWTSVID.Audience == "" && c.Identity.APIKeys.File == "" {
		k.f.Problem("identity.issuers", "no issuer, no client_svid, no jwt_svid and no api_keys: nobody could authenticate")
	}
	if keys := c.Identity.APIKeys; keys != (apiKeysConfig{}) {
		k.file("identity.api_keys.file", keys.File)
		k.file("identity.api_keys.pepper_file", keys.PepperFile)
	}
	c.checkResource(k)
	c.checkShared(k)
	for i, issuer := range c.Identity.Issuers {
		c.checkBound(k, fmt.Sprintf("identity.issuers[%d].sender_constraint", i), issuer.SenderConstraint)
		k.issuer(fmt.Sprintf("identity.issuers[%d]", i), issuer)
	}
	if c.Identity.SecretFile != "" {
		k.file("identity.secret_file", c.Identity.SecretFile)
	}
	k.path("policy.bundle", c.Policy.Bundle)
	if c.Environment == "production" {
		k.required("policy.verify_key_file", c.Policy.VerifyKeyFile)
		k.required("identity.secret_file", c.Identity.SecretFile)
	}
	for i, m := range c.Models {
		k.required(fmt.Sprintf("models[%d].name", i), m.Name)
		k.path(fmt.Sprintf("models[%d].dir", i), m.Dir)
		if _, err := time.LoadLocation(m.Zone); err != nil {
			k.f.Problem(fmt.Sprintf("models[%d].zone", i), "%v", err)
		}
	}
	c.checkPools(k)
	c.Telemetry.check(k, c.Environment)
	k.required("audit.dir", c.Audit.Dir)
	k.file("audit.key_file", c.Audit.KeyFile)
	k.oneOf("audit.mode", c.Audit.Mode, "", "strict", "strict-2", "bounded")
	if c.Audit.Mode == "strict-2" {
		k.required("audit.dir2", c.Audit.Dir2)
	}
	for _, problem := range each(export.Check(c.Audit.Export, c.Environment == "production")) {
		field, what, _ := strings.Cut(problem.Error(), ": ")
		k.f.Problem("audit.export"+field, "%s", what)
	}
	if r := c.Audit.Retention; r < 0 || r > 0 && r < leastRetention && c.Environment == "production" {
		k.f.Problem("audit.retention", "%s is less than the %s that records must be kept in production", r, leastRetention)
	}
	for _, problem := range each(c.Audit.Witnesses.Check()) {
		k.f.Problem("audit.witnesses", "%s", strings.TrimPrefix(problem.Error(), "witnesses: "))
	}
}

// leastRetention is six months: what the EU's AI Act asks of the logs of
// high-risk systems, in articles 19 and 26.
const leastRetention = 183 * 24 * time.Hour

// issuer leaves to package oidc what only it can tell, such as algorithms.
func (k checker) issuer(at string, i oidc.Config) {
	if i.JWKSFile != "" {
		k.file(at+".jwks_file", i.JWKSFile)
	}
	for _, problem := range each(i.Check()) {
		field, what, _ := strings.Cut(problem.Error(), ": ")
		k.f.Problem(at+"."+field, "%s", what)
	}
}

// each takes joined errors apart.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func (c *gatewayConfig) checkPools(k checker) {
	if len(c.Pools) == 0 {
		k.f.Problem("pools", "required")
	}
	seen := make(map[string]bool)
	for i, p := range c.Pools {
		if p.File != "" {
			k.file(fmt.Sprintf("pools[%d].file", i), p.File)
		}
		if p.DNS != "" {
			k.address(fmt.Sprintf("pools[%d].dns", i), p.DNS)
		}
		at := fmt.Sprintf("pools[%d]", i)
		k.required(at+".name", p.Name)
		if seen[p.Name] {
			k.f.Problem(at+".name", "pool %s stands twice", p.Name)
		}
		seen[p.Name] = true
		if len(p.Members) == 0 {
			k.f.Problem(at+".members", "required: the SPIFFE IDs, or patterns of them, that may serve this pool")
		}
		for j, m := range p.Members {
			if _, err := workload.ParsePattern(m); err != nil {
				k.f.Problem(fmt.Sprintf("%s.members[%d]", at, j), "%v", err)
			}
		}
		for j, r := range p.Replicas {
			place := fmt.Sprintf("%s.replicas[%d]", at, j)
			r.check(k, place, p.Members)
			for _, same := range []string{r.Address, r.ID} {
				if same != "" && seen["replica "+same] {
					k.f.Problem(place, "%s stands twice", same)
				}
				seen["replica "+same] = true
			}
		}
	}
}

func (r replicaConfig) check(k checker, at string, members []string) {
	k.address(at+".address", r.Address)
	if r.ID == "" {
		return
	}
	id, err := spiffeid.FromString(r.ID)
	if err != nil {
		k.f.Problem(at+".id", "%v", err)
		return
	}
	for _, m := range members {
		if p, err := workload.ParsePattern(m); err == nil && p.Matches(id) {
			return
		}
	}
	k.f.Problem(at+".id", "%s is not one of the pool's members", r.ID)
}

func (c *relayConfig) check(k checker) {
	k.environment(c.Environment)
	k.address("listen.address", c.Listen.Address)
	admin := relay.Admin(c.Admin)
	if err := admin.Check(); err != nil {
		k.f.Problem("admin", "%s", strings.TrimPrefix(err.Error(), "admin: "))
	}
	k.socket("identity.workload_socket", c.Identity.WorkloadSocket)
	k.federation(c.Identity.Federation)
	for i, f := range c.Identity.Federation {
		if len(f.Callers) > 0 {
			k.f.Problem(fmt.Sprintf("identity.federation[%d].callers", i), "only gateways have callers; a relay's gateways are named under gateways")
		}
	}
	engine := c.relayEngine()
	for _, problem := range each(engine.Check()) {
		k.f.Problem("engine", "%s", strings.TrimPrefix(problem.Error(), "engine: "))
	}
	k.oneOf("engine.events.mode", c.Engine.Events.Mode, "", "connect", "listen")
	k.required("pool", c.Pool)
	if len(c.Gateways) == 0 {
		k.f.Problem("gateways", "required: the SPIFFE IDs of the gateways that may use this replica")
	}
	for i, g := range c.Gateways {
		at := fmt.Sprintf("gateways[%d]", i)
		if _, err := spiffeid.FromString(g.ID); err != nil {
			k.f.Problem(at+".id", "%v", err)
		}
		if c.Environment == "production" {
			k.required(at+".log_vkey", g.LogVKey)
		}
	}
	if c.SaltKeyFile != "" {
		k.file("salt_key_file", c.SaltKeyFile)
	}
	if c.Log.Dir != "" {
		k.file("log.key_file", c.Log.KeyFile)
	}
}

// checker adds problems of meaning to those of form.
type checker struct{ f *strictyaml.File }

func (k checker) required(path, v string) bool {
	if v == "" {
		k.f.Problem(path, "required")
	}
	return v != ""
}

func (k checker) oneOf(path, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		k.f.Problem(path, "want one of %s, got %q", strings.Join(slices.DeleteFunc(slices.Clone(allowed), func(s string) bool { return s == "" }), ", "), v)
	}
}

func (k checker) environment(v string) { k.oneOf("environment", v, "demo", "production") }

func (k checker) address(path, v string) {
	if !k.required(path, v) {
		return
	}
	if _, _, err := net.SplitHostPort(v); err != nil {
		k.f.Problem(path, "want host:port: %v", err)
	}
}

func (k checker) url(path, v string) {
	if !k.required(path, v) {
		return
	}
	if u, err := url.Parse(v); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		k.f.Problem(path, "want an http or https URL, got %q", v)
	}
}

func (k checker) socket(path, v string) {
	if k.required(path, v) && !strings.HasPrefix(v, "unix:///") {
		k.f.Problem(path, "want unix:///path/to/socket, got %q", v)
	}
}

func (k checker) path(path, v string) {
	if !k.required(path, v) {
		return
	}
	if _, err := os.Stat(v); err != nil {
		k.f.Problem(path, "%v", err)
	}
}

func (k checker) file(path, v string) {
	if !k.required(path, v) {
		return
	}
	if st, err := os.Stat(v); err != nil {
		k.f.Problem(path, "%v", err)
	} else if st.IsDir() {
		k.f.Problem(path, "%s is a directory", v)
	}
}
