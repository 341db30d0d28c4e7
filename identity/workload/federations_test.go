package workload

import (
	"errors"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestWhatTheWorkloadAPISaysOfAForeignDomainCountsOnlyIfTheDomainIsListed(t *testing.T) {
	partner := spiffeid.RequireTrustDomainFromString("partner.example")
	x, j := x509bundle.New(partner), jwtbundle.New(partner)
	fs, err := newFederations(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.close()
	if _, err := fs.x509(partner, x); err == nil {
		t.Error("a domain that is not listed is believed")
	}
	if _, err := fs.jwt(partner, j); err == nil {
		t.Error("its tokens are")
	}
	listed, err := newFederations(t.Context(), []Federated{{TrustDomain: partner}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listed.close()
	if b, err := listed.x509(partner, x); err != nil || b != x {
		t.Errorf("a listed domain's authorities: %v, %v", b, err)
	}
	if b, err := listed.jwt(partner, j); err != nil || b != j {
		t.Errorf("a listed domain's keys: %v, %v", b, err)
	}
	if _, err := listed.x509(partner, x509bundle.NewSet()); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("a listed domain of which the Workload API says nothing: %v", err)
	}
	if ages := listed.ages(time.Now()); len(ages) != 0 {
		t.Errorf("bundles that are not fetched have ages: %v", ages)
	}
}
