package jws_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/identity/jws"
)

const goodHeader = `{"alg":"ES256","typ":"JWT","kid":"k"}`

func compact(header, claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(header)) + "." + encode([]byte(claims)) + ".c2ln"
}

// sized is a good token of that many bytes.
func sized(n int) string {
	good := compact(goodHeader, `{"sub":"alice"}`)
	signature := n - (len(good) - len("c2ln"))
	if signature%4 == 1 { // no base64 is so long
		return compact(goodHeader, `{"sub":"alice" }`)[:len(good)-len("c2ln")+1] + strings.Repeat("A", signature-1)
	}
	return strings.TrimSuffix(good, "c2ln") + strings.Repeat("A", signature)
}

func TestWhatWasReadStaysWhenOthersAreRead(t *testing.T) {
	first, err := jws.Parse(compact(`{"alg":"ES256","k\u0069d":"\u006b1"}`, `{"iss":"https://one.test","\u0073ub":"alice","x":[1,{"y":"z"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, claims := range []string{`{"iss":"https://two.test","sub":"bob","x":{}}`, `{"iss":"`, `{"iss":1,"iss":2}`, `[]`} {
		jws.Parse(compact(goodHeader, claims)) // good or bad, as it may be
	}
	if first.Header != (jws.Header{Algorithm: "ES256", KeyID: "k1"}) || len(first.Members) != 3 ||
		string(first.Members["iss"]) != `"https://one.test"` || string(first.Members["sub"]) != `"alice"` || string(first.Members["x"]) != `[1,{"y":"z"}]` {
		t.Errorf("%+v, %s", first.Header, first.Members)
	}
}

type subject struct {
	Subject string `json:"sub"`
}

func TestOddTokensAreRefusedBeforeAnyKeyIsLookedAt(t *testing.T) {
	good := compact(goodHeader, `{"sub":"alice"}`)
	for _, c := range []struct{ claim, token, reason string }{
		{"a plain token", good, ""},
		{"no token", "", "not three parts"},
		{"two parts", "a.b", "not three parts"},
		{"an empty signature", strings.TrimSuffix(good, "c2ln"), "not three parts"},
		{"a token of 16 KiB and more", good + strings.Repeat("A", 16<<10), "longer than"},
		{"padding", strings.Replace(good, ".", "=.", 1), "not base64url"},
		{"a header that is a list", compact(`["alg"]`, `{}`), "not a JSON object"},
		{"a header that is null", compact(`null`, `{}`), "not a JSON object"},
		{"alg twice", compact(`{"alg":"ES256","alg":"none","kid":"k"}`, `{}`), "given twice"},
		{"alg twice by an escape", compact(`{"alg":"ES256","\u0061lg":"none","kid":"k"}`, `{}`), "given twice"},
		{"ALG beside alg", compact(`{"alg":"ES256","ALG":"none","kid":"k"}`, `{}`), "differ in case"},
		{"Kid in place of kid", compact(`{"alg":"ES256","Kid":"k"}`, `{}`), "another spelling"},
		{"no kid", compact(`{"alg":"ES256"}`, `{}`), "kid is missing"},
		{"kid with a line break", compact(`{"alg":"ES256","kid":"a\nb"}`, `{}`), "kid is missing or odd"},
		{"kid that is a number", compact(`{"alg":"ES256","kid":1}`, `{}`), "unexpected type"},
		{"crit", compact(`{"alg":"ES256","kid":"k","crit":[]}`, `{}`), `"crit" is not accepted`},
		{"jwk", compact(`{"alg":"ES256","kid":"k","jwk":{}}`, `{}`), `"jwk" is not accepted`},
		{"sub twice", compact(goodHeader, `{"sub":"alice","sub":"root"}`), "given twice"},
		{"sub twice, once by an escape", compact(goodHeader, `{"sub":"alice","\u0073ub":"root"}`), "given twice"},
		{"white space around the claims", compact(goodHeader, " \t\r\n{\"sub\":\"alice\"} \t\r\n"), ""},
		{"no text for claims", compact(goodHeader, ""), "not a JSON object"},
		{"white space for claims", compact(goodHeader, " \n"), "not a JSON object"},
		{"a no-break space before the claims", compact(goodHeader, "\u00a0{}"), "not a JSON object"},
		{"SUB in place of sub", compact(goodHeader, `{"SUB":"root"}`), "another spelling"},
		{"a long s is an s", compact(goodHeader, `{"ſub":"root","sub":"alice"}`), "differ in case"},
		{"brackets in a string are none", compact(goodHeader, `{"sub":"alice","x":"`+strings.Repeat("[", 40)+`"}`), ""},
		{"commas in a string are none", compact(goodHeader, `{"sub":"alice","x":"`+strings.Repeat(",", 600)+`"}`), ""},
		{"an escaped quote ends no string", compact(goodHeader, `{"sub":"alice","x":"\\\"`+strings.Repeat("[", 40)+`"}`), ""},
		{"an escaped backslash escapes no quote", compact(goodHeader, `{"sub":"alice","x":"\\\\","y":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)+`}`), "nested deeper"},
		{"a string without an end", compact(goodHeader, `{"sub":"alice`), "malformed"},
		{"a string that ends in a backslash", compact(goodHeader, `{"sub":"alice\`), "malformed"},
		{"names that differ in an A", compact(goodHeader, `{"sub":"alice","xa":1,"xA":2}`), "differ in case"},
		{"names that differ in a Z", compact(goodHeader, `{"sub":"alice","xz":1,"xZ":2}`), "differ in case"},
		{"names of one letter that is no word", compact(goodHeader, `{"sub":"alice","@":1,"[":2}`), ""},
		{"16 levels", compact(goodHeader, `{"sub":"alice","x":`+strings.Repeat("[", 15)+strings.Repeat("]", 15)+`}`), ""},
		{"17 levels", compact(goodHeader, `{"sub":"alice","x":`+strings.Repeat("[", 16)+strings.Repeat("]", 16)+`}`), "nested deeper"},
		{"many short lists are not deep", compact(goodHeader, `{"sub":"alice","x":[`+strings.Repeat("[],", 40)+`[]]}`), ""},
		{"512 names and values", compact(goodHeader, `{"sub":"alice","x":[`+strings.Repeat("1,", 507)+`1]}`), ""},
		{"513 names and values", compact(goodHeader, `{"sub":"alice","x":[`+strings.Repeat("1,", 508)+`1]}`), "more than 512"},
		{"a token of 16 KiB", sized(16 << 10), ""},
		{"a token of 16 KiB and one byte", sized(16<<10 + 1), "longer than"},
		{"a signature with padding", good + "=", "signature: not base64url"},
		{"a signature with other unused bits", strings.TrimSuffix(good, "c2ln") + "c2lnAB", "signature: not base64url"},
		{"a carriage return in the signature", good[:len(good)-2] + "\r" + good[len(good)-2:], "signature: not base64url"},
		{"a carriage return before the signature", good[:len(good)-4] + "\r" + good[len(good)-4:], "signature: not base64url"},
		{"a line break before the header", "\n" + good, "header: not base64url"},
		{"typ that is a list", compact(`{"alg":"ES256","kid":"k","typ":["JWT"]}`, `{}`), "unexpected type"},
		{"alg that is null", compact(`{"alg":null,"kid":"k"}`, `{}`), "unexpected type"},
		{"a line break in the signature", good[:len(good)-2] + "\n" + good[len(good)-2:], "signature: not base64url"},
		{"four parts", good + ".c2ln", "not three parts"},
		{"HS256", compact(`{"alg":"HS256","kid":"k"}`, `{}`), `algorithm "HS256" is not accepted`},
		{"none", compact(`{"alg":"none","kid":"k"}`, `{}`), `algorithm "none" is not accepted`},
		{"no alg", compact(`{"kid":"k"}`, `{}`), `algorithm "" is not accepted`},
		{"alg null", compact(`{"alg":null,"kid":"k"}`, `{}`), "unexpected type"},
		{"text after the claims", compact(goodHeader, `{"sub":"alice"}{}`), "not a JSON object"},
		{"sub that is a list", compact(goodHeader, `{"sub":["alice"]}`), "unexpected type"},
	} {
		var s subject
		read, err := jws.Parse(c.token)
		if err == nil {
			err = read.Claims(&s, []string{"sub"})
		}
		switch {
		case c.reason == "" && (err != nil || s.Subject != "alice" || read.Header.Algorithm != "ES256"):
			t.Errorf("%s: %+v, %v", c.claim, s, err)
		case c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%s: got %v, want %q", c.claim, err, c.reason)
		}
	}
}

func TestAKeyFitsTheAlgorithmsOfItsTypeAndCurve(t *testing.T) {
	curve := func(c elliptic.Curve) crypto.PublicKey { return &ecdsa.PublicKey{Curve: c} }
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]crypto.PublicKey{
		"RSA": &rsa.PublicKey{}, "P-256": curve(elliptic.P256()), "P-384": curve(elliptic.P384()), "P-521": curve(elliptic.P521()),
		"P-224": curve(elliptic.P224()), "Ed25519": ed, "secret": []byte("secret"), "none": nil,
	}
	fits := map[string]string{
		"RSA": "RS256 RS384 RS512 PS256 PS384 PS512", "P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA",
	}
	for name, key := range keys {
		for _, algorithm := range strings.Fields("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA HS256 HS512 none") {
			want := strings.Contains(" "+fits[name]+" ", " "+algorithm+" ")
			if got := jws.Fits(key, algorithm); got != want {
				t.Errorf("%s key for %s: %v", name, algorithm, got)
			}
		}
	}
}

// What Parse accepts, a lax reader reads alike: encoding/json compares names
// without case and takes the last of several, as many upstreams do.
func FuzzParse(f *testing.F) {
	f.Add(goodHeader, `{"sub":"alice"}`)
	f.Add(goodHeader, `{"sub":"alice","SUB":"root"}`)
	f.Add(goodHeader, `{"\u017fub":"root","sub":"alice"}`)
	f.Add(`{"alg":"ES256","kid":"k","Kid":"evil"}`, `{}`)
	f.Fuzz(func(t *testing.T, header, claims string) {
		got, err := jws.Parse(compact(header, claims))
		if err != nil {
			return
		}
		var strict, lax subject
		if err := got.Claims(&strict, []string{"sub"}); err != nil {
			return
		}
		if err := json.Unmarshal([]byte(claims), &lax); err != nil {
			t.Fatalf("accepted claims that encoding/json does not: %v", err)
		}
		var h struct{ Alg, Kid, Typ string }
		if err := json.Unmarshal([]byte(header), &h); err != nil {
			t.Fatalf("accepted a header that encoding/json does not: %v", err)
		}
		if strict != lax || h.Alg != got.Header.Algorithm || h.Kid != got.Header.KeyID || h.Typ != got.Header.Type {
			t.Fatalf("strict %+v %+v, lax %+v %+v", strict, got.Header, lax, h)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	tokens := make([]string, 64)
	for i := range tokens {
		tokens[i] = compact(goodHeader, `{"iss":"https://idp.test","sub":"user-`+strings.Repeat("x", i)+`","aud":"sallyport","exp":1999999999,"iat":1999999000,"scope":"chat models","tenant":"acme"}`)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := jws.Parse(tokens[i%len(tokens)]); err != nil {
			b.Fatal(err)
		}
	}
}
