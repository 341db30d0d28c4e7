// Package exporttest runs what records are exported to: real receivers where
// there are any, on loopback, under certificates of an authority of the test.
// Start at [NewAuthority].
package exporttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// Authority issues certificates into files.
type Authority struct {
	t      testing.TB
	Dir    string // has NAME.pem and NAME.key of each
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	CAFile string
}

// NewAuthority makes one in a directory of the test.
func NewAuthority(t testing.TB) *Authority {
	a := &Authority{t: t, Dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	a.CAFile = filepath.Join(a.Dir, "ca.pem")
	return a
}

func (a *Authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	fail := func(err error) {
		if err != nil {
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	fail(err)
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	fail(err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	fail(err)
	fail(os.WriteFile(filepath.Join(a.Dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fail(os.WriteFile(filepath.Join(a.Dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	cert, err := x509.ParseCertificate(der)
	fail(err)
	return cert, key
}

// Leaf issues a certificate for a name and for loopback.
func (a *Authority) Leaf(name string) {
	a.issue(name, &x509.Certificate{
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// Client is how a sink proves itself with a certificate.
func (a *Authority) Client(name string) sink.TLSConfig {
	return sink.TLSConfig{CAFile: a.CAFile, CertFile: filepath.Join(a.Dir, name+".pem"), KeyFile: filepath.Join(a.Dir, name+".key")}
}

// FreePort is one that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Trusting is a transport that trusts the authority alone.
func (a *Authority) Trusting() *http.Transport {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
}
