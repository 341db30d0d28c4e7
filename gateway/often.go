package gateway

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/rate"
	"github.com/sallyport-ai/sallyport/identity"
)

// Rates bound how often anybody may ask. The zero Rates bound nobody.
type Rates struct {
	Caller  rate.Limit            // of each caller
	Tenants map[string]rate.Limit // instead, of each caller of a tenant
	// Source is of each source prefix, of the requests from there that nobody turns
	// out to have made.
	Source rate.Limit
}

func (r *Rates) check() error {
	errs := []error{r.Caller.Check(), r.Source.Check()}
	for tenant, limit := range r.Tenants {
		if err := limit.Check(); err != nil {
			errs = append(errs, fmt.Errorf("tenant %s: %w", tenant, err))
		}
	}
	return errors.Join(errs...)
}

// of is the limit of a tenant's callers.
func (r *Rates) of(tenant string) rate.Limit {
	if limit, own := r.Tenants[tenant]; own {
		return limit
	}
	return r.Caller
}

// knock refuses somebody from where too many came that were nobody, before any work
// is done for it. answered takes how authentication ended.
func (x *exchange) knock() (answered func(error), err error) {
	limit := x.live.Rates.Source
	if limit == (rate.Limit{}) {
		return func(error) {}, nil
	}
	prefix := audit.SourcePrefix(source(x.r))
	door := rate.Key{Group: network(prefix), Name: prefix.String()}
	wait, ok := x.g.sources.Take(door, limit)
	if !ok {
		x.wait = wait
		return nil, errKnocking
	}
	return func(err error) {
		for _, theirs := range []error{identity.ErrNoCredential, identity.ErrBadCredential, identity.ErrAmbiguous} {
			if errors.Is(err, theirs) {
				return
			}
		}
		x.g.sources.Give(door, limit)
	}, nil
}

// network is what a prefix is a part of, so that whoever has very many of them takes
// no room of others: IPv4 /16, IPv6 /32, the least that registries give to a network.
func network(prefix netip.Prefix) string {
	bits := 32
	if prefix.Addr().Is4() {
		bits = 16
	}
	wide, err := prefix.Addr().Prefix(bits)
	if err != nil {
		return "" // of a source without an IP address
	}
	return wide.String()
}

// withinRate refuses a caller that asks too often.
func (x *exchange) withinRate() error {
	p := &x.principal
	tenant := x.tenantOf(*p)
	limit := x.live.Rates.of(tenant)
	if limit == (rate.Limit{}) {
		return nil
	}
	who := p.Subject
	if who == "" {
		who = p.Workload
	}
	// Neither part holds a control character.
	wait, ok := x.g.callers.Take(rate.Key{Group: tenant, Name: p.Issuer + "\n" + who}, limit)
	if !ok {
		x.wait = wait
		return errTooOften
	}
	return nil
}
