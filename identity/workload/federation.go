package workload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ErrStale is the error of a source that has not heard from a federated trust
// domain's bundle endpoint for too long, or not yet.
var ErrStale = errors.New("no recent bundle of the federated trust domain")

// MinRefresh is how often a bundle may be fetched at most, for the sake of whoever
// serves it.
const MinRefresh = 5 * time.Second

const (
	fetchTimeout   = 10 * time.Second
	maxBundleBytes = 1 << 20
	// defaultMaxStale is how long the last bundle is believed unless told.
	defaultMaxStale = 24 * time.Hour
	// A bundle says how often it should be fetched. Hints below MinRefresh and
	// above maxRefresh are not followed; where there is none it is
	// defaultRefresh (SPIFFE Trust Domain and Bundle §4.1.2).
	maxRefresh     = time.Hour
	defaultRefresh = 5 * time.Minute
	// retryRefresh is how soon a failed fetch is tried again.
	retryRefresh = 5 * time.Second
)

// Federated is another trust domain whose identities can be verified. Who of
// them is admitted, authorizers say.
type Federated struct {
	TrustDomain spiffeid.TrustDomain
	// Endpoint is the https URL of the domain's bundle. Empty: the Workload
	// API brings it.
	Endpoint string
	// EndpointID is the identity that the endpoint proves (https_spiffe). Zero:
	// it has a certificate of the Web PKI (https_web).
	EndpointID spiffeid.ID
	// BundleFile is the bundle by which the endpoint of an EndpointID is
	// believed the first time, in SPIFFE's format. It is not used for anything
	// else.
	BundleFile string
	// CAFile holds the roots, PEM, for an endpoint without an EndpointID.
	// Empty: those of the system.
	CAFile string
	// Refresh is how often the bundle is fetched; zero: as it says itself.
	Refresh time.Duration
	// MaxStale is how long the last bundle is believed when no other can be
	// had; zero: a day.
	MaxStale time.Duration
}

// Check returns every problem of f, joined, each as "field: what".
func (f *Federated) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if f.TrustDomain.IsZero() {
		bad("trust_domain: required")
	}
	if f.Refresh < 0 || f.MaxStale < 0 {
		bad("refresh: neither it nor max_stale may be negative")
	}
	stale := f.MaxStale
	if stale == 0 {
		stale = defaultMaxStale
	}
	if stale > 0 && stale < f.Refresh {
		bad("max_stale: %v is less than the %v between two fetches (refresh): nobody would be believed in between", stale, f.Refresh)
	}
	if f.Endpoint == "" {
		if f.BundleFile != "" || f.CAFile != "" || !f.EndpointID.IsZero() {
			bad("bundle_endpoint: required with endpoint_id, bundle_file and ca_file")
		}
		return errors.Join(errs...)
	}
	if u, err := url.Parse(f.Endpoint); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		bad("bundle_endpoint: want an https URL, got %q", f.Endpoint)
	}
	switch spiffe := !f.EndpointID.IsZero(); {
	case spiffe && f.BundleFile == "":
		bad("bundle_file: required with endpoint_id: by it the endpoint is believed the first time")
	case spiffe && f.CAFile != "":
		bad("ca_file: an endpoint with an endpoint_id is not believed by the Web PKI")
	case !spiffe && f.BundleFile != "":
		bad("bundle_file: belongs to endpoint_id")
	case spiffe && !f.EndpointID.MemberOf(f.TrustDomain):
		bad("endpoint_id: %s is not of %s, whose bundle is to be fetched", f.EndpointID, f.TrustDomain)
	}
	return errors.Join(errs...)
}

// federation follows the bundle of one trust domain.
type federation struct {
	Federated
	client *http.Client
	log    *slog.Logger
	since  time.Time
	begin  *spiffebundle.Bundle // of BundleFile
	latest atomic.Pointer[fetched]
}

// fetched is a bundle and when it came.
type fetched struct {
	bundle *spiffebundle.Bundle
	at     time.Time
}

// newFederation reads the files. It fetches nothing yet.
func newFederation(f Federated, log *slog.Logger) (*federation, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	if f.MaxStale == 0 {
		f.MaxStale = defaultMaxStale
	}
	d := &federation{Federated: f, log: log, since: time.Now()}
	conf, err := d.tls()
	if err != nil {
		return nil, err
	}
	d.client = &http.Client{
		Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		Timeout:   fetchTimeout,
		// The endpoint that was configured is the one that is believed.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d, nil
}

func (d *federation) tls() (*tls.Config, error) {
	if d.EndpointID.IsZero() {
		conf := &tls.Config{MinVersion: tls.VersionTLS12}
		if d.CAFile == "" {
			return conf, nil
		}
		pem, err := os.ReadFile(d.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s holds no certificate", d.CAFile)
		}
		return conf, nil
	}
	var err error
	if d.begin, err = spiffebundle.Load(d.TrustDomain, d.BundleFile); err != nil {
		return nil, fmt.Errorf("bundle_file: %w", err)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection does the whole check, as in ClientConfig
		VerifyConnection:   verifier(endpointBundle{d}, x509.ExtKeyUsageServerAuth, ExactID(d.EndpointID)),
	}, nil
}

// endpointBundle is what the endpoint is believed by: the last bundle it gave,
// however old, for there is no other way to a newer one.
type endpointBundle struct{ d *federation }

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (e endpointBundle) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	b := e.d.begin
	if last := e.d.latest.Load(); last != nil {
		b = last.bundle
	}
	return b.GetX509BundleForTrustDomain(td)
}

// follow fetches the bundle again and again until ctx ends.
func (d *federation) follow(ctx context.Context) {
	for {
		wait := d.refresh(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait - rand.N(wait/10+1)):
		}
	}
}

// refresh fetches the bundle once, and says when to fetch it again.
func (d *federation) refresh(ctx context.Context) time.Duration {
	began := time.Now()
	b, err := d.fetch(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("federated trust domain: bundle not fetched", "trust_domain", d.TrustDomain.Name(), "endpoint", d.Endpoint, "error", err)
		}
		return retryRefresh
	}
	if old := d.latest.Swap(&fetched{b, began}); old == nil || !old.bundle.Equal(b) {
		d.log.Info("federated trust domain: another bundle", "trust_domain", d.TrustDomain.Name(),
			"x509_authorities", len(b.X509Authorities()), "jwt_authorities", len(b.JWTAuthorities()))
	}
	if d.Refresh > 0 {
		return d.Refresh
	}
	hint, ok := b.RefreshHint()
	if !ok {
		hint = defaultRefresh
	}
	// Whatever it says, the next is to come before this one is too old.
	return max(min(hint, maxRefresh, d.MaxStale/2), MinRefresh)
}

func (d *federation) fetch(ctx context.Context) (*spiffebundle.Bundle, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Endpoint, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end or given up
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBundleBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	if len(raw) > maxBundleBytes {
		return nil, fmt.Errorf("bundle of more than %d bytes", maxBundleBytes)
	}
	b, err := spiffebundle.Parse(d.TrustDomain, raw)
	if err != nil {
		return nil, err
	}
	if b.Empty() {
		return nil, errors.New("the bundle holds no authority")
	}
	return b, nil
}

// current is the bundle, unless it is too old.
func (d *federation) current(now time.Time) (*spiffebundle.Bundle, error) {
	last := d.latest.Load()
	if last == nil {
		return nil, fmt.Errorf("%s: %w: none was fetched yet", d.TrustDomain, ErrStale)
	}
	if age := now.Sub(last.at); age > d.MaxStale {
		return nil, fmt.Errorf("%s: %w: the last is %v old", d.TrustDomain, ErrStale, age.Round(time.Second))
	}
	return last.bundle, nil
}

// federations are the foreign trust domains of a source. A domain that is not
// among them is not believed, wherever its bundle comes from.
type federations struct {
	byDomain map[spiffeid.TrustDomain]*federation // a nil one: its bundle comes from the Workload API
	cancel   context.CancelFunc
	done     []chan struct{}
}

// newFederations begins to fetch the bundles.
func newFederations(ctx context.Context, all []Federated, log *slog.Logger) (*federations, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	fs := &federations{byDomain: make(map[spiffeid.TrustDomain]*federation), cancel: cancel}
	for _, f := range all {
		if _, twice := fs.byDomain[f.TrustDomain]; twice {
			fs.close()
			return nil, fmt.Errorf("federation with %s: stands twice", f.TrustDomain)
		}
		d, err := newFederation(f, log)
		if err != nil {
			fs.close()
			return nil, fmt.Errorf("federation with %s: %w", f.TrustDomain, err)
		}
		if f.Endpoint == "" {
			fs.byDomain[f.TrustDomain] = nil
			continue
		}
		fs.byDomain[f.TrustDomain] = d
		done := make(chan struct{})
		fs.done = append(fs.done, done)
		go func() {
			defer close(done)
			d.follow(ctx)
		}()
	}
	return fs, nil
}

func (fs *federations) close() {
	fs.cancel()
	for _, done := range fs.done {
		<-done
	}
}

// ages says how long ago each bundle was fetched; of one that never was, how
// long that has been tried.
func (fs *federations) ages(now time.Time) map[string]time.Duration {
	ages := make(map[string]time.Duration)
	for td, d := range fs.byDomain {
		if d == nil {
			continue
		}
		at := d.since
		if last := d.latest.Load(); last != nil {
			at = last.at
		}
		ages[td.Name()] = now.Sub(at)
	}
	return ages
}

// x509 returns what is known of a foreign trust domain; workloadAPI has the
// bundles of those without an endpoint.
func (fs *federations) x509(td spiffeid.TrustDomain, workloadAPI x509bundle.Source) (*x509bundle.Bundle, error) {
	d, err := fs.of(td)
	if err != nil {
		return nil, err
	}
	if d == nil {
		return workloadAPI.GetX509BundleForTrustDomain(td)
	}
	b, err := d.current(time.Now())
	if err != nil {
		return nil, err
	}
	return b.X509Bundle(), nil
}

func (fs *federations) jwt(td spiffeid.TrustDomain, workloadAPI jwtbundle.Source) (*jwtbundle.Bundle, error) {
	d, err := fs.of(td)
	if err != nil {
		return nil, err
	}
	if d == nil {
		return workloadAPI.GetJWTBundleForTrustDomain(td)
	}
	b, err := d.current(time.Now())
	if err != nil {
		return nil, err
	}
	return b.JWTBundle(), nil
}

func (fs *federations) of(td spiffeid.TrustDomain) (*federation, error) {
	d, ok := fs.byDomain[td]
	if !ok {
		return nil, fmt.Errorf("%s is not a trust domain that is federated with", td)
	}
	return d, nil
}
