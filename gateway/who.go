package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/blockid"
)

// who authenticates the caller and finds its registration and tenant.
func (x *exchange) who(ctx context.Context) error {
	chain := x.live.Identity
	chain.TenantOf = x.tenantOf
	x.withdrawn = x.g.withdrawn.rung()
	answered, err := x.knock()
	if err != nil {
		return err
	}
	p, err := chain.Authenticate(ctx, x.r)
	answered(err)
	if err != nil {
		return err
	}
	x.principal = p
	x.live.oauth.offerNonce(x.w.Header(), x.r)
	if err := x.withinRate(); err != nil {
		return err // which is only counted, so it has no decision to name
	}
	x.w.Header().Set("Sallyport-Decision-Id", x.id)
	if err := x.resolve(); err != nil {
		return err
	}
	return x.withinQuota()
}

// reauthenticate asks again who is calling, by the credentials that the request
// came with and all that decides over them now: one that was revoked or whose
// issuer is no longer believed ends what was begun with it. Where that cannot be
// told, it ends too.
func (x *exchange) reauthenticate(ctx context.Context) error {
	chain := x.g.live.Load().Identity
	chain.TenantOf = x.tenantOf
	x.withdrawn = x.g.withdrawn.rung() // before asking, so that nothing after it is missed
	p, err := chain.Again(ctx, x.r, x.principal)
	switch was := x.principal; {
	case err != nil:
		return fmt.Errorf("%w: %w", errWithdrawn, err)
	case p.Subject != was.Subject, p.Workload != was.Workload, p.Tenant != "" && p.Tenant != was.Tenant:
		return fmt.Errorf("%w: the credential now names somebody else", errWithdrawn)
	}
	return nil
}

// resolve finds what the current policy's data says of the caller.
func (x *exchange) resolve() error {
	p := x.principal
	x.subject = p.Subject
	if p.Subject == "" {
		x.subject = p.Workload
	}
	reg, registered := x.snap.Registration(p.Workload, p.Issuer, p.ClientID)
	switch {
	case !registered && p.Tenant == "":
		return fmt.Errorf("%w: %s", errNotRegistered, p.Workload)
	case registered && p.Tenant != "" && reg.Tenant != p.Tenant:
		// The issuer says one tenant, our own register another.
		return fmt.Errorf("%w: %s belongs to %s", errNotRegistered, reg.Name, reg.Tenant)
	case registered:
		x.registration = reg
		x.principal.Tenant = reg.Tenant
		if reg.Kind != "" {
			x.principal.Kind = identity.Kind(reg.Kind)
		}
	}
	if err := x.viaClient(); err != nil {
		return err
	}
	x.tenant, _ = x.snap.Tenant(x.principal.Tenant) // an unknown tenant has no right: policy says so
	if x.tenant.SubjectMode == "pseudonym" {
		x.subject = x.g.pseudonym(x.principal)
	}
	return x.delegated()
}

// viaClient finds the registration of the client that a token was issued to and
// that came over a workload's own certificate. Both bind the request, so that
// nobody leaves the narrower one behind by showing the other too.
func (x *exchange) viaClient() error {
	p := &x.principal
	x.client = policy.Registration{}
	if p.Workload == "" || p.ClientID == "" {
		return nil
	}
	reg, ok := x.snap.Registration("", p.Issuer, p.ClientID)
	switch {
	case !ok, reg.Name == x.registration.Name:
		return nil
	case reg.Tenant != p.Tenant:
		return fmt.Errorf("%w: %s belongs to %s", errNotRegistered, reg.Name, reg.Tenant)
	}
	x.client = reg
	if reg.Kind == string(identity.Agent) {
		p.Kind = identity.Agent
	}
	return nil
}

// tenantOf names the tenant of a caller known by SPIFFE ID, so that a client
// certificate and a token can be held against each other.
func (x *exchange) tenantOf(p identity.Principal) string {
	if p.Tenant != "" {
		return p.Tenant
	}
	reg, _ := x.snap.Registration(p.Workload, p.Issuer, p.ClientID)
	return reg.Tenant
}

// pseudonym replaces a subject by a keyed hash of it, one per tenant and issuer.
func (g *Gateway) pseudonym(p identity.Principal) string {
	key := g.derive("pseudonym", p.Tenant)
	mac := hmac.New(sha256.New, key[:])
	mac.Write(blockid.LenPrefix(p.Issuer, p.Subject))
	return "p:" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:18])
}

// derive makes a key for one purpose from the gateway's secret.
func (g *Gateway) derive(purpose ...string) [32]byte {
	mac := hmac.New(sha256.New, g.cfg.Secret[:])
	mac.Write(blockid.LenPrefix(purpose...))
	return [32]byte(mac.Sum(nil))
}
