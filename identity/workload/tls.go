package workload

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Material is an SVID to show and the bundles to check others by. *Source is
// one. Both must be current whenever asked.
type Material interface {
	x509svid.Source
	x509bundle.Source
}

// GetCertificate chooses the certificate a server shows.
type GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// ServerConfig is mutual TLS for a server: it shows its SVID, and talks only to
// clients whose SVID authorize admits. A nil authorize admits nobody.
func ServerConfig(own Material, authorize Authorizer) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         SVIDCertificate(own),
		ClientAuth:             tls.RequireAnyClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection:       verifier(own, x509.ExtKeyUsageClientAuth, orNobody(authorize)),
	}
}

// OptionalClientConfig is TLS for a server whose clients may have an SVID. One
// that shows a certificate must pass as in [ServerConfig]; one that shows none
// is let in, and PeerID says that it proved nothing.
func OptionalClientConfig(certificate GetCertificate, bundles x509bundle.Source, authorize Authorizer) *tls.Config {
	verify := verifier(bundles, x509.ExtKeyUsageClientAuth, orNobody(authorize))
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         certificate,
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			return verify(state)
		},
	}
}

// AnyClientConfig is TLS for a server whose clients may show any certificate. One
// that names a SPIFFE ID must pass as in [ServerConfig], unless bundles is nil;
// any other is let in unverified. It proves that the client holds its key, which
// is what access tokens are bound to (RFC 8705 §3), and names nobody.
func AnyClientConfig(certificate GetCertificate, bundles x509bundle.Source, authorize Authorizer) *tls.Config {
	config := OptionalClientConfig(certificate, bundles, authorize)
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if bundles == nil || len(state.PeerCertificates) == 0 || !NamesID(state.PeerCertificates[0]) {
			return nil
		}
		return verify(state)
	}
	return config
}

// NamesID reports whether a certificate asks to be taken for an SVID: it has a
// URI for a name. Others never are one.
func NamesID(certificate *x509.Certificate) bool { return len(certificate.URIs) > 0 }

// ClientConfig is mutual TLS for a client: it shows its SVID, and talks only to
// servers whose SVID authorize admits, by SPIFFE ID and never by host name. A
// nil authorize admits nobody.
//
// The configuration has no session cache and must not be given one.
func ClientConfig(own Material, authorize Authorizer) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return currentCertificate(own)
		},
		// Host names prove nothing here; VerifyConnection does the whole
		// check, and runs whatever this is set to.
		InsecureSkipVerify: true,
		VerifyConnection:   verifier(own, x509.ExtKeyUsageServerAuth, orNobody(authorize)),
	}
}

func orNobody(authorize Authorizer) Authorizer {
	if authorize == nil {
		return AuthorizeIDs()
	}
	return authorize
}

// SVIDCertificate shows the process's own current SVID.
func SVIDCertificate(own x509svid.Source) GetCertificate {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return currentCertificate(own) }
}

func currentCertificate(own x509svid.Source) (*tls.Certificate, error) {
	svid, err := own.GetX509SVID()
	if err != nil {
		return nil, err
	}
	certificate := &tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]}
	for _, c := range svid.Certificates {
		certificate.Certificate = append(certificate.Certificate, c.Raw)
	}
	return certificate, nil
}

// FileCertificate shows a certificate kept in PEM files, and picks up a
// replaced one at the next handshake. A replacement that cannot be read leaves
// the old one in place.
func FileCertificate(certFile, keyFile string) (GetCertificate, error) {
	f := &fileCertificate{certFile: certFile, keyFile: keyFile}
	if err := f.load(f.stamp()); err != nil {
		return nil, err
	}
	return f.get, nil
}

type fileCertificate struct {
	certFile, keyFile string

	mu      sync.Mutex // guards what follows
	current *tls.Certificate
	loaded  [2]time.Time
}

func (f *fileCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stamp := f.stamp(); stamp != f.loaded {
		// The two files are replaced one after the other; until both fit,
		// load fails, the old pair is shown and the next handshake retries.
		_ = f.load(stamp)
	}
	return f.current, nil
}

func (f *fileCertificate) load(stamp [2]time.Time) error {
	pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	f.current, f.loaded = &pair, stamp
	return nil
}

// stamp is the modification time of both files; zero for one that is missing.
func (f *fileCertificate) stamp() [2]time.Time {
	var stamp [2]time.Time
	for i, name := range []string{f.certFile, f.keyFile} {
		if info, err := os.Stat(name); err == nil {
			stamp[i] = info.ModTime()
		}
	}
	return stamp
}
