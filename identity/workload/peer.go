package workload

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// ErrPeerIdentity is the sentinel of every [PeerIdentityError].
var ErrPeerIdentity = errors.New("peer identity refused")

// PeerIdentityError says that a peer did not prove the identity wanted of it.
type PeerIdentityError struct {
	Got  spiffeid.ID // zero when no SPIFFE ID could be read
	Want string      // what would have been accepted; empty when any valid SVID would
	Err  error       // why
}

func (e *PeerIdentityError) Error() string {
	var b strings.Builder
	b.WriteString(ErrPeerIdentity.Error())
	if !e.Got.IsZero() {
		b.WriteString(": got " + e.Got.String())
	}
	if e.Want != "" {
		b.WriteString(": want " + e.Want)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the reason.
func (e *PeerIdentityError) Unwrap() error { return e.Err }

// Is makes every PeerIdentityError an [ErrPeerIdentity].
func (e *PeerIdentityError) Is(target error) bool { return target == ErrPeerIdentity }

// maxIDLength is the longest SPIFFE ID that an implementation must support
// (SPIFFE-ID §2.3), and so the longest one accepted; go-spiffe has no limit.
const maxIDLength = 2048

// maxDomainLength is RFC 3986's limit on a host name.
const maxDomainLength = 255

// VerifyPeer checks an X.509-SVID chain against the bundles as of now and
// returns the identity it proves. Beyond go-spiffe's checks the leaf must have
// a path in its ID (X509-SVID §2), an ID of bounded length, the
// digitalSignature key usage and the extended key usage given.
func VerifyPeer(chain []*x509.Certificate, bundles x509bundle.Source, usage x509.ExtKeyUsage, now time.Time) (spiffeid.ID, error) {
	id, _, err := x509svid.Verify(chain, bundles, x509svid.WithTime(now))
	if err != nil {
		return spiffeid.ID{}, &PeerIdentityError{Got: id, Err: err}
	}
	if err := checkLeaf(id, chain[0], usage); err != nil {
		return spiffeid.ID{}, &PeerIdentityError{Got: id, Err: err}
	}
	return id, nil
}

// CheckID reports why an ID that go-spiffe takes is none of a workload: it has
// no path (X509-SVID §2, JWT-SVID §3.1), or is too long.
func CheckID(id spiffeid.ID) error {
	switch {
	case id.Path() == "":
		return errors.New("a trust domain's own ID names no workload")
	case len(id.String()) > maxIDLength, len(id.TrustDomain().Name()) > maxDomainLength:
		return errors.New("SPIFFE ID too long")
	}
	return nil
}

func checkLeaf(id spiffeid.ID, leaf *x509.Certificate, usage x509.ExtKeyUsage) error {
	if err := CheckID(id); err != nil {
		return err
	}
	switch {
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return errors.New("leaf certificate lacks the digitalSignature key usage")
	case !slices.Contains(leaf.ExtKeyUsage, usage):
		return errors.New("leaf certificate lacks the extended key usage for this side of TLS")
	}
	return nil
}

// PeerID returns the identity that the peer of a connection presented. It is
// proven only where the connection was made with a configuration of this
// package.
func PeerID(state tls.ConnectionState) (spiffeid.ID, error) {
	if len(state.PeerCertificates) == 0 {
		return spiffeid.ID{}, &PeerIdentityError{Err: errors.New("no certificate presented")}
	}
	id, err := x509svid.IDFromCert(state.PeerCertificates[0])
	if err != nil {
		return spiffeid.ID{}, &PeerIdentityError{Err: err}
	}
	return id, nil
}

// IsIdentityError reports whether err comes from one side's refusal of the
// other's certificate, ours or theirs, rather than from the network. Under
// TLS 1.3 the other side's refusal arrives as an alert on the first read after
// a handshake that looked complete.
func IsIdentityError(err error) bool {
	var verification *tls.CertificateVerificationError
	return errors.Is(err, ErrPeerIdentity) || errors.Is(err, ErrExpired) ||
		errors.As(err, &verification) || isCertificateAlert(err)
}

// certificateAlerts are the TLS alerts that speak of a certificate (RFC 8446
// §6.2): bad, unsupported, revoked, expired, unknown, unknown CA, access
// denied, required.
var certificateAlerts = []uint64{42, 43, 44, 45, 46, 48, 49, 116}

func isCertificateAlert(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return false
	}
	// crypto/tls does not export the type of an alert received over TCP; it
	// is a uint8 whose value is the alert's number.
	alert := reflect.ValueOf(op.Err)
	return alert.Kind() == reflect.Uint8 && slices.Contains(certificateAlerts, alert.Uint())
}

// verifier checks the peer of every connection, resumed or not.
func verifier(bundles x509bundle.Source, usage x509.ExtKeyUsage, authorize Authorizer) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		id, err := VerifyPeer(state.PeerCertificates, bundles, usage, time.Now())
		if err != nil {
			return err
		}
		if err := authorize(id); err != nil {
			if errors.Is(err, ErrPeerIdentity) {
				return err
			}
			return &PeerIdentityError{Got: id, Err: fmt.Errorf("not authorised: %w", err)}
		}
		return nil
	}
}
