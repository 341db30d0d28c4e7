package gateway

import (
	"fmt"
	"strings"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/policy"
)

// delegated holds each actor of a delegation chain against its registration:
// the issuer says who acts for whom, our own register who of them may. It keeps
// what policy and the record are told.
func (x *exchange) delegated() error {
	x.chain, x.actors = []policy.InputActor{}, nil
	p := &x.principal
	if len(p.Chain) == 0 {
		return nil
	}
	x.chain = []policy.InputActor{{Type: p.Chain[0].Type, Subject: x.subject}}
	for _, a := range p.Chain[1:] {
		reg, err := x.actor(a)
		link := policy.InputActor{Type: a.Type, Subject: a.Subject, Registration: reg.Name}
		if reg.Kind != "" {
			link.Type = reg.Kind
		}
		x.chain, x.actors = append(x.chain, link), append(x.actors, reg)
		if err != nil {
			return err // the record says at whom the chain broke
		}
	}
	present := p.Chain[len(p.Chain)-1]
	if strings.HasPrefix(present.Subject, "spiffe://") && present.Subject != p.Workload {
		// No identity provider vouches for a SPIFFE ID: its owner proves it.
		return fmt.Errorf("%w: %s acts, and has not proved that it is it", errActor, present.Subject)
	}
	if x.registration.Name == "" {
		x.registration = x.actors[len(x.actors)-1]
	}
	if x.registration.Kind == "" {
		p.Kind = identity.Agent // whatever it is, it is not the person it acts for
	} else {
		p.Kind = identity.Kind(x.registration.Kind)
	}
	return nil
}

// actor finds the registration of one actor.
func (x *exchange) actor(a identity.Actor) (policy.Registration, error) {
	var id, client string
	if strings.HasPrefix(a.Subject, "spiffe://") {
		id = a.Subject
	} else {
		client = a.Subject
	}
	reg, ok := x.snap.Registration(id, a.Issuer, client)
	switch {
	case !ok:
		return reg, fmt.Errorf("%w: %s of %s has no registration", errActor, a.Subject, a.Issuer)
	case reg.Tenant != x.principal.Tenant:
		return reg, fmt.Errorf("%w: %s belongs to %s", errActor, a.Subject, reg.Tenant)
	}
	return reg, nil
}

// registrations are those that bind the request: the caller's and its actors'.
func (x *exchange) registrations() []policy.Registration {
	return append([]policy.Registration{x.registration, x.client}, x.actors...)
}

// raisedTo is the class that the registrations raise the request to, or "".
func (x *exchange) raisedTo() string {
	raised, name := policy.Class(0), ""
	for _, reg := range x.registrations() {
		if reg.Class == "" {
			continue
		}
		class, err := policy.ParseClass(reg.Class)
		if err != nil {
			return reg.Class // activation has checked it; were it odd, the request is unclassified
		}
		if name == "" || policy.MaxClass(raised, class) == class {
			raised, name = class, reg.Class
		}
	}
	return name
}

// labelFloor is the highest label floor of the registrations, or "".
func (x *exchange) labelFloor() string {
	floor, name := policy.Public, ""
	for _, reg := range x.registrations() {
		if reg.LabelFloor == "" {
			continue
		}
		level, err := policy.ParseLevel(reg.LabelFloor)
		if err != nil {
			return reg.LabelFloor // likewise: it labels the request restricted
		}
		if name == "" || level > floor {
			floor, name = level, reg.LabelFloor
		}
	}
	return name
}
