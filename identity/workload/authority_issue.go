package workload

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// authorityLife is how long the development authorities' own certificates
// last, and backdate the allowance for clocks that disagree.
const (
	authorityLife = 90 * 24 * time.Hour
	backdate      = 30 * time.Second
)

// jwtKeyID names the development authority's JWT key.
const jwtKeyID = "development"

// issuer holds the development authority's keys. It is immutable.
type issuer struct {
	domain spiffeid.TrustDomain
	ttl    time.Duration
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	jwtKey *ecdsa.PrivateKey
	// The public listener's certificate comes from an authority of its own: a
	// client that trusts the web site must not come to trust SVIDs.
	web    *x509.Certificate
	webKey *ecdsa.PrivateKey
}

func newIssuer(domain spiffeid.TrustDomain, ttl time.Duration) (*issuer, error) {
	i := &issuer{domain: domain, ttl: ttl}
	var err error
	if i.ca, i.caKey, err = newCA("SPIFFE development authority", domain.ID().URL()); err != nil {
		return nil, err
	}
	if i.web, i.webKey, err = newCA("Web development authority", nil); err != nil {
		return nil, err
	}
	i.jwtKey, err = newKey()
	return i, err
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func newCA(name string, id *url.URL) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template := certificate(name, authorityLife)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	if id != nil {
		template.URIs = []*url.URL{id}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	return ca, key, err
}

func certificate(name string, life time.Duration) *x509.Certificate {
	serial := make([]byte, 16)
	rand.Read(serial) // never fails; see crypto/rand
	serial[0] &= 0x7f
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"Sallyport development"}},
		NotBefore:    now.Add(-backdate),
		// X.509 counts whole seconds; cutting the rest off would let a short
		// life end before its replacement comes.
		NotAfter: now.Add(life + time.Second - 1).Truncate(time.Second),
	}
}

// x509SVID issues a leaf certificate (DER) for id.
func (i *issuer) x509SVID(id spiffeid.ID) ([]byte, crypto.Signer, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template := certificate("", i.ttl)
	template.Subject = pkix.Name{Organization: template.Subject.Organization}
	template.URIs = []*url.URL{id.URL()}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, i.ca, key.Public(), i.caKey)
	return der, key, err
}

func (i *issuer) jwtSVID(id spiffeid.ID, audience []string) (string, error) {
	now := time.Now()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"sub": id.String(),
		"aud": audience,
		"iat": now.Unix(),
		"exp": now.Add(i.ttl).Unix(),
	})
	token.Header["kid"] = jwtKeyID
	return token.SignedString(i.jwtKey)
}

func (i *issuer) jwtBundle() *jwtbundle.Bundle {
	return jwtbundle.FromJWTAuthorities(i.domain, map[string]crypto.PublicKey{jwtKeyID: i.jwtKey.Public()})
}

// WebFiles are PEM files for the public listener of a demonstration.
type WebFiles struct {
	Cert, Key string // the listener's certificate and private key
	CA        string // what its clients should trust
}

// ServerCertificate issues a certificate for the public listener, from an
// authority other than the SVIDs', and writes it into the configured directory.
func (a *Authority) ServerCertificate(dnsNames []string, ips []net.IP) (WebFiles, error) {
	files, err := a.issuer.serverCertificate(a.config.Dir, dnsNames, ips)
	if err != nil {
		return WebFiles{}, fmt.Errorf("development authority: server certificate: %w", err)
	}
	return files, nil
}

func (i *issuer) serverCertificate(dir string, dnsNames []string, ips []net.IP) (WebFiles, error) {
	if len(dnsNames) == 0 && len(ips) == 0 {
		return WebFiles{}, errors.New("no name and no address to issue it for")
	}
	key, err := newKey()
	if err != nil {
		return WebFiles{}, err
	}
	template := certificate("", authorityLife)
	template.DNSNames, template.IPAddresses = dnsNames, ips
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, i.web, key.Public(), i.webKey)
	if err != nil {
		return WebFiles{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return WebFiles{}, err
	}
	files := WebFiles{
		Cert: filepath.Join(dir, "web.crt"),
		Key:  filepath.Join(dir, "web.key"),
		CA:   filepath.Join(dir, "web-ca.crt"),
	}
	return files, errors.Join(
		writePEM(files.Key, "PRIVATE KEY", pkcs8, 0o600),
		writePEM(files.Cert, "CERTIFICATE", der, 0o644),
		writePEM(files.CA, "CERTIFICATE", i.web.Raw, 0o644),
	)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}
