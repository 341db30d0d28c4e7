package oidc

import (
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity/jws"
)

func TestTheEdgesOfATokensTimes(t *testing.T) {
	at := func(seconds int) time.Time {
		return time.Unix(1_800_000_000, 0).Add(time.Duration(seconds) * time.Second)
	}
	const slack = int(leeway / time.Second)
	for _, c := range []struct {
		claim string
		times times
		ok    bool
	}{
		{"it ends now and the leeway ago", times{issued: at(-100), expires: at(-slack)}, false},
		{"it ends a second later", times{issued: at(-100), expires: at(-slack + 1)}, true},
		{"it begins as far ahead as clocks disagree", times{issued: at(-100), notBefore: at(slack), expires: at(100)}, true},
		{"it begins a second later", times{issued: at(-100), notBefore: at(slack + 1), expires: at(100)}, false},
		{"it was issued as far ahead as clocks disagree", times{issued: at(slack), expires: at(100)}, true},
		{"it was issued a second later", times{issued: at(slack + 1), expires: at(100)}, false},
	} {
		if err := c.times.check(at(0)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

// What parse accepts, a lax reader reads alike: encoding/json compares names
// without case and takes the last of several, as many upstreams do.
func FuzzParse(f *testing.F) {
	const header = `{"alg":"ES256","typ":"at+jwt","kid":"ec"}`
	for _, claims := range []string{
		`{"iss":"https://idp.test","sub":"alice","aud":"sallyport","exp":9,"iat":1}`,
		`{"iss":"a","sub":"alice","SUB":"root"}`,
		`{"sub":"alice","sub":"root"}`,
		`{"ſub":"root","sub":"alice","aud":["a"]}`,
		`{"sub":"alice"}{"sub":"root"}`,
		`{"sub":"alice","act":{"sub":"agent"}}`,
		`null`,
	} {
		f.Add(header, claims)
	}
	f.Add(`{"alg":"none","ALG":"ES256","kid":"ec"}`, `{}`)
	f.Add(`{"alg":"ES256","kid":"ec","Kid":"evil"}`, `{}`)
	f.Fuzz(func(t *testing.T, header, claims string) {
		encode := base64.RawURLEncoding.EncodeToString
		read, err := jws.Parse(encode([]byte(header)) + "." + encode([]byte(claims)) + ".c2ln")
		if err != nil {
			return
		}
		got, err := claimsOf(read)
		if err != nil {
			return
		}
		if issuerOf(read) != got.claims.Issuer {
			t.Fatalf("issuer %q at first sight, %q then", issuerOf(read), got.claims.Issuer)
		}
		var lax struct {
			Alg string `json:"alg"`
			Kid string `json:"kid"`
			Iss string `json:"iss"`
			Sub string `json:"sub"`
			Typ string `json:"typ"`
		}
		if err := json.Unmarshal([]byte(header), &lax); err != nil {
			t.Fatalf("parse took a header that encoding/json does not: %v", err)
		}
		if lax.Alg != got.Header.Algorithm || lax.Kid != got.Header.KeyID || lax.Typ != got.Header.Type {
			t.Fatalf("header: strict %+v, lax %+v", got.Header, lax)
		}
		if err := json.Unmarshal([]byte(claims), &lax); err != nil {
			t.Fatalf("parse took claims that encoding/json does not: %v", err)
		}
		if lax.Iss != got.claims.Issuer || lax.Sub != got.claims.Subject {
			t.Fatalf("claims: strict %+v, lax %+v", got.claims, lax)
		}
	})
}
