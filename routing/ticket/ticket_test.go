package ticket

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
)

const (
	peerA  = "spiffe://example.org/gateway/a"
	peerB  = "spiffe://example.org/gateway/b"
	origin = "example.org/gateway/a"
)

var (
	at   = time.Unix(1_795_000_000, 0)
	body = []byte(`{"model":"small"}`)
)

func testKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('a'+seed)), ed25519.SeedSize)))
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

func good() Ticket {
	return Ticket{
		ID: "0198c0de-0000-7000-8000-000000000001", Attempt: 1, N: 17, Op: "POST /v1/chat/completions",
		Audience: "spiffe://example.org/pool/general/r0", Epoch: "epoch-1", Pool: "general",
		Model: "small", Domain: "BgAAAHRlbmFudA", Tokens: 812, Body: sha256.Sum256(body), Exp: at.Add(Lifetime).Unix(),
	}
}

func expected() Expect {
	t := good()
	return Expect{Peer: peerA, Audience: t.Audience, Pool: t.Pool, Op: t.Op, Epoch: t.Epoch, Body: t.Body, Now: at}
}

func signing(key ed25519.PrivateKey) func([]byte) ([]byte, error) {
	return func(msg []byte) ([]byte, error) { return ed25519.Sign(key, msg), nil }
}

func sign(t testing.TB, tk Ticket) string {
	t.Helper()
	s, err := NewSigner(origin, signing(testKey(0)))
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Sign(tk)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// raw signs any payload with gateway A's key, as a faulty gateway might.
func raw(payload string) string {
	sig := ed25519.Sign(testKey(0), append([]byte(context), payload...))
	return encoding.EncodeToString([]byte(payload)) + "." + encoding.EncodeToString(sig)
}

func verifier() *Verifier {
	v := new(Verifier)
	v.SetKey(peerA, Key{origin, public(testKey(0))})
	v.SetKey(peerB, Key{"example.org/gateway/b", public(testKey(1))})
	return v
}

func payloadOf(t testing.TB, tk Ticket) string {
	t.Helper()
	p, err := base64.RawURLEncoding.DecodeString(strings.Split(sign(t, tk), ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func TestPayloadIsExactlyTheDocumentedForm(t *testing.T) {
	want := `{"v":1,"id":"0198c0de-0000-7000-8000-000000000001","attempt":1,"n":17,` +
		`"op":"POST /v1/chat/completions","log":"example.org/gateway/a","aud":"spiffe://example.org/pool/general/r0",` +
		`"ep":"epoch-1","pool":"general","model":"small","adapter":"","domain":"BgAAAHRlbmFudA","rank":0,"tokens":812,` +
		`"body":"` + base64.RawURLEncoding.EncodeToString(sha256sum(body)) + `","exp":1795000030}`
	if got := payloadOf(t, good()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func sha256sum(p []byte) []byte {
	s := sha256.Sum256(p)
	return s[:]
}

func TestVerifyReturnsWhatWasSigned(t *testing.T) {
	in := good()
	in.Adapter, in.Rank, in.Model = "lora<&>\u2028", 3, "modèle"
	got, err := verifier().Verify(sign(t, in), expected())
	if err != nil {
		t.Fatal(err)
	}
	in.V, in.Log = Version, origin
	if got.Ticket != in {
		t.Errorf("got %+v, want %+v", got.Ticket, in)
	}
}

func TestVerifyRefuses(t *testing.T) {
	h := sign(t, good())
	p, sig, _ := strings.Cut(h, ".")
	payload := payloadOf(t, good())
	change := func(f func(*Ticket)) string { tk := good(); f(&tk); return sign(t, tk) }
	edit := func(old, new string) string {
		if !strings.Contains(payload, old) {
			t.Fatalf("payload has no %q", old)
		}
		return raw(strings.Replace(payload, old, new, 1))
	}
	for _, c := range []struct {
		name   string
		header string
		want   Refusal
	}{
		{"no ticket", "", ErrMissing},
		{"no dot", p, ErrMalformed},
		{"an empty payload", "." + sig, ErrMalformed},
		{"an empty signature", p + ".", ErrSignature},
		{"a third part", h + ".AA", ErrMalformed},
		{"padded base64", p + "." + sig + "==", ErrMalformed},
		{"standard base64 letters", p + "." + "+/" + sig[2:], ErrMalformed},
		{"a line break in base64", p[:8] + "\n" + p[8:] + "." + sig, ErrMalformed},
		{"stray bits in the last base64 letter", p + "." + sig[:len(sig)-1] + flip(sig[len(sig)-1]), ErrMalformed},
		{"a space before it", " " + h, ErrMalformed},
		{"a header too long", strings.Repeat("A", MaxHeader) + "." + sig, ErrMalformed},
		{"one byte of the payload changed", encoding.EncodeToString([]byte(strings.Replace(payload, `"n":17`, `"n":18`, 1))) + "." + sig, ErrSignature},
		{"the signature of another ticket", p + "." + strings.Split(change(func(t *Ticket) { t.N++ }), ".")[1], ErrSignature},
		{"a signature without the context", p + "." + encoding.EncodeToString(ed25519.Sign(testKey(0), []byte(payload))), ErrSignature},
		{"a zero signature", p + "." + encoding.EncodeToString(make([]byte, 64)), ErrSignature},
		{"the key of another gateway", signedBy(t, testKey(1), origin), ErrSignature},
		{"another gateway's log origin", edit(`"log":"example.org/gateway/a"`, `"log":"example.org/gateway/b"`), ErrLog},
		{"an unknown field", edit(`"v":1`, `"v":1,"x":1`), ErrMalformed},
		{"a repeated field", edit(`"n":17`, `"n":17,"n":17`), ErrMalformed},
		{"a field in another letter case", edit(`"pool"`, `"Pool"`), ErrMalformed},
		{"a missing field", edit(`"adapter":"",`, ``), ErrMalformed},
		{"fields in another order", edit(`"v":1,"id":"0198c0de-0000-7000-8000-000000000001"`, `"id":"0198c0de-0000-7000-8000-000000000001","v":1`), ErrMalformed},
		{"a space in the JSON", edit(`"n":17`, `"n": 17`), ErrMalformed},
		{"an escape that is not needed", edit(`general"`, "\\u0067eneral\""), ErrMalformed},
		{"data after the object", raw(payload + "{}"), ErrMalformed},
		{"null instead of a string", edit(`"adapter":""`, `"adapter":null`), ErrMalformed},
		{"a number as 17.0", edit(`"n":17`, `"n":17.0`), ErrMalformed},
		{"a short digest", edit(`"body":"`, `"body":"","x":"`), ErrMalformed},
		{"an array", raw("[]"), ErrMalformed},
		{"version 2", edit(`"v":1`, `"v":2`), ErrMalformed},
		{"attempt 0", edit(`"attempt":1`, `"attempt":0`), ErrMalformed},
		{"counter 0", edit(`"n":17`, `"n":0`), ErrMalformed},
		{"a negative rank", edit(`"rank":0`, `"rank":-1`), ErrMalformed},
		{"fewer tokens than none", edit(`"tokens":812`, `"tokens":-1`), ErrMalformed},
		{"more tokens than any prompt has", edit(`"tokens":812`, `"tokens":268435457`), ErrMalformed},
		{"no tokens field", edit(`"tokens":812,`, ``), ErrMalformed},
		{"an empty domain", edit(`"domain":"BgAAAHRlbmFudA"`, `"domain":""`), ErrMalformed},
		{"an expiry now", change(func(t *Ticket) { t.Exp = at.Unix() }), ErrExpired},
		{"an expiry past", change(func(t *Ticket) { t.Exp = at.Unix() - 1 }), ErrExpired},
		{"an expiry 36 s ahead", change(func(t *Ticket) { t.Exp = at.Unix() + 36 }), ErrTooFarAhead},
		{"an expiry at the end of time", change(func(t *Ticket) { t.Exp = 1<<63 - 1 }), ErrTooFarAhead},
		{"another audience", change(func(t *Ticket) { t.Audience += "1" }), ErrAudience},
		{"another epoch", change(func(t *Ticket) { t.Epoch = "epoch-2" }), ErrEpoch},
		{"another pool", change(func(t *Ticket) { t.Pool = "restricted" }), ErrPool},
		{"another operation", change(func(t *Ticket) { t.Op = "POST /v1/completions" }), ErrOperation},
		{"another body", change(func(t *Ticket) { t.Body[31] ^= 1 }), ErrBody},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := verifier().Verify(c.header, expected())
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			var r Refusal
			if !errors.As(err, &r) || r != c.want {
				t.Errorf("code %q, want %q", r, c.want)
			}
		})
	}
}

func flip(c byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[strings.IndexByte(alphabet, c)^1])
}

func signedBy(t *testing.T, key ed25519.PrivateKey, origin string) string {
	t.Helper()
	s, err := NewSigner(origin, signing(key))
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Sign(good())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestATicketCountsOnlyOnItsOwnGatewaysConnection(t *testing.T) {
	e := expected()
	e.Peer = peerB
	if _, err := verifier().Verify(sign(t, good()), e); !errors.Is(err, ErrLog) {
		t.Errorf("from gateway b: %v", err)
	}
	e.Peer = "spiffe://example.org/gateway/c"
	if _, err := verifier().Verify(sign(t, good()), e); !errors.Is(err, ErrUnknownGateway) {
		t.Errorf("from an unregistered gateway: %v", err)
	}
	if _, err := new(Verifier).Verify(sign(t, good()), expected()); !errors.Is(err, ErrUnknownGateway) {
		t.Errorf("zero verifier: %v", err)
	}
}

func TestGatewaysThatShareAnIDHaveALogEach(t *testing.T) {
	v := verifier()
	v.SetKey(peerA, Key{"example.org/gateway/a2", public(testKey(2))})
	if _, err := v.Verify(sign(t, good()), expected()); err != nil {
		t.Errorf("first log: %v", err)
	}
	if _, err := v.Verify(signedBy(t, testKey(2), "example.org/gateway/a2"), expected()); err != nil {
		t.Errorf("second log: %v", err)
	}
	if _, err := v.Verify(signedBy(t, testKey(2), origin), expected()); !errors.Is(err, ErrSignature) {
		t.Errorf("second key for the first log: %v", err)
	}
}

func TestAnExpiryUpTo35SecondsAheadIsGood(t *testing.T) {
	for _, ahead := range []int64{1, 30, 35} {
		tk := good()
		tk.Exp = at.Unix() + ahead
		if _, err := verifier().Verify(sign(t, tk), expected()); err != nil {
			t.Errorf("%d s: %v", ahead, err)
		}
	}
}

func TestSignRefusesWhatVerifyWould(t *testing.T) {
	s, err := NewSigner(origin, signing(testKey(0)))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(*Ticket){
		"no id":          func(t *Ticket) { t.ID = "" },
		"no epoch":       func(t *Ticket) { t.Epoch = "" },
		"no counter":     func(t *Ticket) { t.N = 0 },
		"invalid UTF-8":  func(t *Ticket) { t.Adapter = "\xff" },
		"a header of MB": func(t *Ticket) { t.Domain = strings.Repeat("x", 1<<20) },
	} {
		tk := good()
		f(&tk)
		if _, err := s.Sign(tk); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

func TestASignerNeedsAnOriginAndAKey(t *testing.T) {
	if _, err := NewSigner("", signing(testKey(0))); err == nil {
		t.Error("took no origin")
	}
	if _, err := NewSigner(origin, nil); err == nil {
		t.Error("took no signing function")
	}
}

func TestANoteKeySignsAndItsVerifierKeyVerifies(t *testing.T) {
	skey, vkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSigner(ns.Name(), ns.Sign)
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Sign(good())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(vkey)
	if err != nil {
		t.Fatal(err)
	}
	var v Verifier
	v.SetKey(peerA, key)
	if _, err := v.Verify(h, expected()); err != nil {
		t.Error(err)
	}
}

func TestParseKeyAgreesWithNote(t *testing.T) {
	_, vkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(vkey, "+", 3)
	for name, in := range map[string]string{
		"good":               vkey,
		"empty":              "",
		"no origin":          "+" + parts[1] + "+" + parts[2],
		"a space in origin":  "a b+" + parts[1] + "+" + parts[2],
		"another origin":     "x" + vkey,
		"a short hash":       parts[0] + "+" + parts[1][1:] + "+" + parts[2],
		"a wrong hash":       parts[0] + "+00000000+" + parts[2],
		"a signed hash":      parts[0] + "+-" + parts[1][1:] + "+" + parts[2],
		"bad base64":         parts[0] + "+" + parts[1] + "+!" + parts[2][1:],
		"no key":             parts[0] + "+" + parts[1] + "+",
		"a cosignature key":  parts[0] + "+" + parts[1] + "+" + base64.StdEncoding.EncodeToString(make([]byte, 33)),
		"a truncated key":    vkey[:len(vkey)-4],
		"two keys in a line": vkey + "\n" + vkey,
	} {
		_, ours := ParseKey(in)
		_, theirs := note.NewVerifier(in)
		if (ours == nil) != (theirs == nil) {
			t.Errorf("%s: ours %v, note's %v", name, ours, theirs)
		}
	}
}

func verified(n byte, exp int64) Verified {
	return Verified{Ticket: Ticket{Exp: exp}, Sum: [32]byte{n}}
}

func TestReplaySetCountsATicketOnce(t *testing.T) {
	s, now := NewReplaySet(10), at
	if err := s.Use(verified(1, now.Unix()+30), now); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, time.Second, 29 * time.Second} {
		if err := s.Use(verified(1, at.Unix()+30), now.Add(after)); !errors.Is(err, ErrReplayed) {
			t.Errorf("after %v: %v", after, err)
		}
	}
	if err := s.Use(verified(1, at.Unix()+30), now.Add(30*time.Second)); !errors.Is(err, ErrExpired) {
		t.Errorf("once expired: %v", err)
	}
	if err := s.Use(verified(1, at.Unix()+30), now); !errors.Is(err, ErrExpired) {
		t.Errorf("after the clock was set back: %v", err)
	}
}

func TestAFullReplaySetRefusesUntilSomethingExpires(t *testing.T) {
	s := NewReplaySet(2)
	for i := range byte(2) {
		if err := s.Use(verified(i, at.Unix()+5+int64(i)), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Use(verified(9, at.Unix()+30), at); !errors.Is(err, ErrReplayFull) {
		t.Errorf("full: %v", err)
	}
	if err := s.Use(verified(9, at.Unix()+30), at.Add(5*time.Second)); err != nil {
		t.Errorf("after one expired: %v", err)
	}
	if err := s.Use(verified(8, at.Unix()+30), at.Add(5*time.Second)); !errors.Is(err, ErrReplayFull) {
		t.Errorf("full again: %v", err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(sign(f, good()))
	f.Add(raw(strings.Replace(payloadOf(f, good()), `"n":17`, `"n":17,"n":1`, 1)))
	f.Add("e30.AA")
	f.Fuzz(func(t *testing.T, header string) {
		got, err := verifier().Verify(header, expected())
		if err != nil {
			var r Refusal
			if !errors.As(err, &r) {
				t.Fatalf("error without a refusal: %v", err)
			}
			return
		}
		s, err := NewSigner(origin, signing(testKey(0)))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.Sign(got.Ticket); err != nil || again != header {
			t.Fatalf("verified %q, but its values sign as %q (%v)", header, again, err)
		}
	})
}

// FuzzParse asserts that a payload has one form only, without the signature in
// the way.
func FuzzParse(f *testing.F) {
	f.Add(payloadOf(f, good()))
	f.Add(`{"v":1,"id":"a","attempt":1}`)
	f.Fuzz(func(t *testing.T, payload string) {
		tk, err := parse([]byte(payload))
		if err != nil {
			return
		}
		again, err := tk.payload()
		if err != nil || string(again) != payload {
			t.Fatalf("parsed %q, encodes as %q (%v)", payload, again, err)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	s, err := NewSigner(origin, signing(testKey(0)))
	if err != nil {
		b.Fatal(err)
	}
	tk := good()
	for b.Loop() {
		tk.N++
		if _, err := s.Sign(tk); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	headers := make([]string, 64)
	for i := range headers {
		tk := good()
		tk.N = uint64(i + 1)
		headers[i] = sign(b, tk)
	}
	v, i := verifier(), 0
	for b.Loop() {
		if _, err := v.Verify(headers[i%len(headers)], expected()); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
