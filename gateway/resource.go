package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sallyport-ai/sallyport/identity"
)

// metadataPath is where OAuth clients ask how to authenticate (RFC 9728 §3).
const metadataPath = "/.well-known/oauth-protected-resource"

// metadataAge is how long its answer may be cached, in seconds: about as long as
// a changed list of issuers may take to be heard of.
const metadataAge = 300

// Resource is what OAuth clients may know of a gateway (RFC 9728): it is told to
// whoever asks. The zero value is a gateway that tells nothing.
type Resource struct {
	URL           string   // https://host, as clients reach it; the resource's identifier
	Name          string   // for people; may be empty
	Documentation string   // URL of it; may be empty
	Servers       []string // issuers whose tokens are taken
	Scopes        []string // that mean something here; may be empty
	Certificates  bool     // tokens bound to client certificates are taken
	Algorithms    []string // of DPoP proofs; none: they are not taken
	DPoPRequired  bool     // no other tokens are taken
	Nonce         func() string
}

// metadata is the document of RFC 9728 §2.
type metadata struct {
	Resource      string   `json:"resource"`
	Servers       []string `json:"authorization_servers,omitzero"`
	Scopes        []string `json:"scopes_supported,omitzero"`
	Methods       []string `json:"bearer_methods_supported"`
	Name          string   `json:"resource_name,omitzero"`
	Documentation string   `json:"resource_documentation,omitzero"`
	Certificates  bool     `json:"tls_client_certificate_bound_access_tokens,omitzero"`
	Algorithms    []string `json:"dpop_signing_alg_values_supported,omitzero"`
	DPoPRequired  bool     `json:"dpop_bound_access_tokens_required,omitzero"`
}

// oauth is a Resource made ready: the document, and what a 401 says.
type oauth struct {
	document []byte // nil: none
	bearer   string
	dpop     string // empty: proofs are not taken
	nonce    func() string
}

// ready checks the resource and writes what is said of it.
func (r Resource) ready() (*oauth, error) {
	o := &oauth{bearer: `Bearer realm="sallyport"`}
	if r.URL == "" {
		if len(r.Algorithms) > 0 {
			return nil, errors.New("gateway: DPoP needs the URL that clients call")
		}
		return o, nil
	}
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(r.URL, "\"\\") {
		return nil, fmt.Errorf("gateway: resource URL %q is not https://host", r.URL)
	}
	if o.document, err = json.Marshal(metadata{
		Resource: r.URL, Servers: r.Servers, Scopes: r.Scopes, Methods: []string{"header"},
		Name: r.Name, Documentation: r.Documentation,
		Certificates: r.Certificates, Algorithms: r.Algorithms, DPoPRequired: r.DPoPRequired,
	}); err != nil {
		return nil, fmt.Errorf("gateway: resource metadata: %w", err)
	}
	where := fmt.Sprintf(", resource_metadata=%q", r.URL+metadataPath)
	o.bearer += where
	if len(r.Algorithms) > 0 {
		if r.Nonce == nil {
			return nil, errors.New("gateway: DPoP needs nonces")
		}
		o.dpop = fmt.Sprintf(`DPoP realm="sallyport", algs=%q`, strings.Join(r.Algorithms, " ")) + where
		o.nonce = r.Nonce
	}
	return o, nil
}

// challenge says in a 401 how to authenticate (RFC 6750 §3, RFC 9449 §7.1). Of a
// token it says no more than that it was not accepted, whatever the reason: a
// proof's errors are told apart only because they do not depend on the token.
func (o *oauth) challenge(h http.Header, r *http.Request, err error) {
	bearer, dpop := o.bearer, o.dpop
	proven := o.dpop != "" && usesDPoP(r)
	switch code := errorCode(err); {
	case code == "":
	case proven:
		dpop += fmt.Sprintf(", error=%q", code)
	default:
		bearer += `, error="invalid_token"`
	}
	if !proven { // clients of DPoP look for its challenge alone
		h.Add("WWW-Authenticate", bearer)
	}
	if dpop != "" {
		h.Add("WWW-Authenticate", dpop)
	}
	o.offerNonce(h, r)
}

// errorCode is a refusal as RFC 6750 and RFC 9449 name it; none where nothing
// was presented.
func errorCode(err error) string {
	switch {
	case errors.Is(err, identity.ErrNoCredential):
		return ""
	case errors.Is(err, identity.ErrNonce):
		return "use_dpop_nonce"
	case errors.Is(err, identity.ErrProof):
		return "invalid_dpop_proof"
	}
	return "invalid_token"
}

// offerNonce gives whoever uses DPoP a nonce for its next proof.
func (o *oauth) offerNonce(h http.Header, r *http.Request) {
	if o.nonce != nil && usesDPoP(r) {
		h.Set("DPoP-Nonce", o.nonce())
	}
}

func usesDPoP(r *http.Request) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, string(identity.DPoP))
}

// metadata answers whoever asks how to authenticate. Nothing in the request
// changes the answer, so it may be cached by anybody.
func (g *Gateway) metadata(w http.ResponseWriter, r *http.Request) {
	document := g.live.Load().oauth.document
	if document == nil || r.URL.RawPath != "" || r.URL.RawQuery != "" {
		g.nowhere(w, r, errNotFound)
		return
	}
	g.metrics.answered(r.Context(), "oauth.metadata", "none", nil)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", fmt.Sprintf("public, max-age=%d", metadataAge))
	_, _ = w.Write(document) // a client that has gone needs no answer
}
