package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Errors of authentication. Every other error of an [Authenticator] is a fault
// of the process and refuses the request too.
var (
	// ErrNoCredential says that the request carries no credential of the kind
	// asked for. It alone lets the next method have its try.
	ErrNoCredential = errors.New("no credential")
	// ErrBadCredential says that a credential was presented and does not hold.
	ErrBadCredential = errors.New("bad credential")
	// ErrAmbiguous says that a request carries credentials that contradict each
	// other, or two of a kind.
	ErrAmbiguous = errors.New("ambiguous credentials")
	// ErrUnavailable says that a credential could not be judged, because the
	// keys to judge it by cannot be had. It says nothing about the credential.
	ErrUnavailable = errors.New("credential cannot be checked now")
	// ErrTooMany says that a credential is used more often than can be followed.
	// It says nothing about the credential.
	ErrTooMany = errors.New("credential used too often")
	// ErrProof says that a DPoP proof does not hold, whatever the token. It is a
	// kind of ErrBadCredential.
	ErrProof = fmt.Errorf("%w: proof of possession", ErrBadCredential)
	// ErrNonce says that a DPoP proof holds but for its nonce, which is missing
	// or old: the client may try again with a fresh one. It is a kind of
	// ErrBadCredential.
	ErrNonce = fmt.Errorf("%w: proof without a fresh nonce", ErrBadCredential)
)

// Authenticator finds one kind of credential in a request and says whose it is.
// It returns [ErrNoCredential] when the request has none of its kind. Any other
// error is final: a credential that is found and does not hold never leads to a
// weaker one being tried.
type Authenticator func(ctx context.Context, r *http.Request) (Principal, error)

// Chain authenticates a request. The zero Chain admits nobody.
type Chain struct {
	// Connection reads what the TLS connection proves. nil where client
	// certificates are not taken.
	Connection Authenticator
	// Request are the methods for what the request itself carries; the first
	// that finds its own kind decides.
	Request []Authenticator
	// Proofs judges DPoP proofs. nil where they are not taken.
	Proofs Proofs
	// Revoked refuses callers whose token was withdrawn, with an error that wraps
	// ErrBadCredential, or ErrUnavailable where that cannot be told. It is given
	// the tenant too, which may be a registration's. nil where none ever is.
	Revoked func(p Principal, tenant string) error
	// TenantOf names the tenant that a registration assigns to a principal
	// known by its SPIFFE ID alone, or "".
	TenantOf func(Principal) string
}

// Authenticate returns who is calling, or an error that wraps one of this
// package's. Where both the connection and the request prove somebody, both
// must be of one tenant; the principal is then the request's, with the
// connection's Workload, for as long as both last.
//
// A token that is bound to a key counts only with proof that the caller holds
// that key, and a proof only with a token that is bound to its key.
func (c Chain) Authenticate(ctx context.Context, r *http.Request) (Principal, error) {
	return c.authenticate(ctx, r, c.prove)
}

// Again asks once more, later, who a request is from that was was found to be
// the caller of. A DPoP proof is not asked for again: it was good for one
// request, and this is that request.
func (c Chain) Again(ctx context.Context, r *http.Request, was Principal) (Principal, error) {
	return c.authenticate(ctx, r, func(*http.Request, Token) (Proof, error) {
		return Proof{Key: was.Bound.Key, Spend: func(context.Context, string) error { return nil }}, nil
	})
}

func (c Chain) authenticate(ctx context.Context, r *http.Request, prove func(*http.Request, Token) (Proof, error)) (Principal, error) {
	connection, onConnection, err := try(ctx, r, c.Connection)
	if err != nil {
		return Principal{}, err
	}
	request, inRequest, err := c.fromRequest(ctx, r, prove)
	if err != nil {
		return Principal{}, err
	}
	switch {
	case onConnection && inRequest:
		return c.combine(connection, request)
	case inRequest:
		return request, nil
	case onConnection:
		return connection, nil
	}
	return Principal{}, ErrNoCredential
}

func (c Chain) fromRequest(ctx context.Context, r *http.Request, prove func(*http.Request, Token) (Proof, error)) (p Principal, found bool, err error) {
	token, err := PresentedToken(r)
	if errors.Is(err, ErrNoCredential) {
		return Principal{}, false, nil
	} else if err != nil {
		return Principal{}, false, err
	}
	// The proof comes first, and what is said of it does not depend on the
	// token: whoever stole a token must not learn here whether it is good.
	var proof Proof
	if token.Scheme == DPoP {
		if proof, err = prove(r, token); err != nil {
			return Principal{}, false, err
		}
	}
	for _, method := range c.Request {
		if p, found, err = try(ctx, r, method); err != nil {
			return Principal{}, false, err
		} else if found {
			if err = c.revoked(p); err == nil {
				p, err = c.possess(ctx, r, p, token.Scheme, proof)
			}
			if err != nil {
				return Principal{}, false, err
			}
			return p, true, nil
		}
	}
	return Principal{}, false, fmt.Errorf("%w: of a kind that is not accepted here", ErrBadCredential)
}

func (c Chain) revoked(p Principal) error {
	if c.Revoked == nil {
		return nil
	}
	return c.Revoked(p, c.tenantOf(p))
}

func try(ctx context.Context, r *http.Request, method Authenticator) (p Principal, found bool, err error) {
	if method == nil {
		return Principal{}, false, nil
	}
	p, err = method(ctx, r)
	switch {
	case errors.Is(err, ErrNoCredential):
		return Principal{}, false, nil
	case err != nil:
		return Principal{}, false, err
	case p.IsZero():
		return Principal{}, false, fmt.Errorf("%w: it names nobody", ErrBadCredential)
	}
	return p, true, nil
}

// combine joins what a connection and a token prove. A workload that no
// registration gives a tenant agrees with nobody.
func (c Chain) combine(connection, request Principal) (Principal, error) {
	if tenant := c.tenantOf(connection); tenant == "" || tenant != c.tenantOf(request) {
		return Principal{}, fmt.Errorf("%w: the client certificate and the token are not of one tenant", ErrAmbiguous)
	}
	if request.Workload != "" && request.Workload != connection.Workload {
		return Principal{}, fmt.Errorf("%w: the client certificate and the token name two workloads", ErrAmbiguous)
	}
	request.Workload = connection.Workload
	request.Expires = earlier(request.Expires, connection.Expires)
	return request, nil
}

func (c Chain) tenantOf(p Principal) string {
	if p.Tenant == "" && c.TenantOf != nil {
		return c.TenantOf(p)
	}
	return p.Tenant
}

// earlier is the earlier of two times, where zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
