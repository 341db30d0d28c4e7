package workload

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Authorizer decides whether a peer that has proved id may be talked to. nil
// means yes. It is called on every connection, so it may read a list that
// changes.
type Authorizer func(id spiffeid.ID) error

// errNotListed is why an authoriser of this package refuses.
var errNotListed = errors.New("not an identity that is allowed here")

// ExactID admits one identity. The zero ID admits nobody.
func ExactID(want spiffeid.ID) Authorizer {
	return AuthorizeIDs(want)
}

// AuthorizeIDs admits the identities named. None named admits nobody.
func AuthorizeIDs(ids ...spiffeid.ID) Authorizer {
	allowed := make(map[spiffeid.ID]struct{}, len(ids))
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		if id.IsZero() {
			continue
		}
		allowed[id] = struct{}{}
		names = append(names, id.String())
	}
	want := strings.Join(names, ", ")
	return func(id spiffeid.ID) error {
		if _, ok := allowed[id]; ok {
			return nil
		}
		return &PeerIdentityError{Got: id, Want: want, Err: errNotListed}
	}
}

// AuthorizePatterns admits identities that match any of the patterns. None
// given admits nobody.
func AuthorizePatterns(patterns ...Pattern) Authorizer {
	names := make([]string, len(patterns))
	for i, p := range patterns {
		names[i] = p.String()
	}
	want := strings.Join(names, ", ")
	return func(id spiffeid.ID) error {
		for _, p := range patterns {
			if p.Matches(id) {
				return nil
			}
		}
		return &PeerIdentityError{Got: id, Want: want, Err: errNotListed}
	}
}

// AuthorizeDomains admits every identity of the trust domains named. A
// federated bundle alone admits nobody: its domain has to be named.
func AuthorizeDomains(domains ...spiffeid.TrustDomain) Authorizer {
	names := make([]string, len(domains))
	for i, td := range domains {
		names[i] = td.IDString()
	}
	want := "any of " + strings.Join(names, ", ")
	return func(id spiffeid.ID) error {
		for _, td := range domains {
			if !td.IsZero() && id.MemberOf(td) {
				return nil
			}
		}
		return &PeerIdentityError{Got: id, Want: want, Err: errNotListed}
	}
}

// Pattern matches SPIFFE IDs of one trust domain segment by segment; a segment
// that is "*" matches exactly one segment, whatever it is:
//
//	spiffe://example.org/pool/general/*   matches …/pool/general/r0
//	                                      not …/pool/general, …/pool/general/r0/x,
//	                                      nor …/pool/general-evil/r0
//
// The zero Pattern matches nothing.
type Pattern struct {
	domain   spiffeid.TrustDomain
	segments []string
}

// ParsePattern reads a pattern. The trust domain and at least one segment are
// required, and "*" must be a whole segment.
func ParsePattern(text string) (Pattern, error) {
	// "*" is no legal path character, so a stand-in lets the SPIFFE parser
	// judge everything else.
	const scheme = "spiffe://"
	rest, ok := strings.CutPrefix(text, scheme)
	if !ok {
		return Pattern{}, fmt.Errorf("pattern %q: does not start with %s", text, scheme)
	}
	name, path, ok := strings.Cut(rest, "/")
	if !ok {
		return Pattern{}, fmt.Errorf("pattern %q: no path", text)
	}
	domain, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return Pattern{}, fmt.Errorf("pattern %q: %w", text, err)
	}
	segments := strings.Split(path, "/")
	for _, segment := range segments {
		if segment == "*" {
			continue
		}
		if err := spiffeid.ValidatePathSegment(segment); err != nil {
			return Pattern{}, fmt.Errorf("pattern %q: segment %q: %w", text, segment, err)
		}
	}
	return Pattern{domain: domain, segments: segments}, nil
}

// Matches reports whether the pattern covers id.
func (p Pattern) Matches(id spiffeid.ID) bool {
	if len(p.segments) == 0 || id.IsZero() || id.TrustDomain() != p.domain {
		return false
	}
	path := id.Path()
	for i, want := range p.segments {
		segment, rest, more := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if segment == "" || (want != "*" && want != segment) {
			return false
		}
		if more != (i < len(p.segments)-1) {
			return false
		}
		path = rest
	}
	return true
}

// TrustDomain is that of the IDs which p matches.
func (p Pattern) TrustDomain() spiffeid.TrustDomain { return p.domain }

// String is the pattern as ParsePattern reads it.
func (p Pattern) String() string {
	if len(p.segments) == 0 {
		return ""
	}
	return p.domain.IDString() + "/" + strings.Join(p.segments, "/")
}
