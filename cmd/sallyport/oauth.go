package main

import (
	"net/url"

	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/identity/dpop"
)

// resourceConfig is the gateway as OAuth clients see it (RFC 9728). With a URL
// they may ask for it, and DPoP proofs are taken.
type resourceConfig struct {
	URL           string   `yaml:"url"` // https://host, as clients reach it
	Name          string   `yaml:"name"`
	Documentation string   `yaml:"documentation"`
	Scopes        []string `yaml:"scopes"`
}

type dpopConfig struct {
	Nonce string `yaml:"nonce"` // required or optional; empty: required
}

// checkResource holds what OAuth clients are told to what they can use.
func (c *gatewayConfig) checkResource(k checker) {
	r := c.Identity.Resource
	if r.URL != "" {
		if u, err := url.Parse(r.URL); err != nil || u.Scheme != "https" || u.Host == "" || "https://"+u.Host != r.URL {
			k.f.Problem("identity.resource.url", "want https://host or https://host:port and nothing after it, got %q", r.URL)
		}
	} else if r.Name != "" || r.Documentation != "" || len(r.Scopes) > 0 {
		k.required("identity.resource.url", r.URL)
	}
	if r.Documentation != "" {
		k.url("identity.resource.documentation", r.Documentation)
	}
	k.oneOf("identity.dpop.nonce", c.Identity.DPoP.Nonce, "", "required", "optional")
}

// checkBound refuses a constraint that no caller could meet.
func (c *gatewayConfig) checkBound(k checker, at, constraint string) {
	certificates, proofs := c.Listen.ClientSVID || c.Listen.ClientBinding, c.Identity.Resource.URL != ""
	switch {
	case constraint == "dpop" && !proofs:
		k.f.Problem(at, "dpop needs identity.resource.url, which proofs are made for")
	case constraint == "mtls" && !certificates:
		k.f.Problem(at, "mtls needs listen.client_binding or listen.client_svid")
	case constraint == "any" && !proofs && !certificates:
		k.f.Problem(at, "any needs identity.resource.url or listen.client_binding")
	}
}

// dpopProofs judges DPoP proofs for the address that clients are told of. It
// outlives reloads: a proof stays used.
func dpopProofs(cfg gatewayConfig, secret [32]byte, spend dpop.Spend) (*dpop.Verifier, error) {
	if cfg.Identity.Resource.URL == "" {
		return nil, nil
	}
	return dpop.New(dpop.Config{
		Origin: cfg.Identity.Resource.URL, Spend: spend, Secret: secret,
		WithoutNonce: cfg.Identity.DPoP.Nonce == "optional",
	})
}

// resourceOf is what OAuth clients are told.
func resourceOf(cfg gatewayConfig, proofs *dpop.Verifier) gateway.Resource {
	r := gateway.Resource{
		URL: cfg.Identity.Resource.URL, Name: cfg.Identity.Resource.Name, Documentation: cfg.Identity.Resource.Documentation,
		Scopes: cfg.Identity.Resource.Scopes, Certificates: cfg.Listen.ClientSVID || cfg.Listen.ClientBinding,
	}
	if proofs != nil {
		r.Algorithms, r.Nonce, r.DPoPRequired = dpop.Algorithms, proofs.Nonce, len(cfg.Identity.Issuers) > 0
	}
	for _, issuer := range cfg.Identity.Issuers {
		r.Servers = append(r.Servers, issuer.URL)
		r.DPoPRequired = r.DPoPRequired && issuer.SenderConstraint == "dpop"
	}
	return r
}
