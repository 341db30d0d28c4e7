package tlog

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	fnote "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// fakeWitness is a witness that can be told to misbehave, and signs with code
// that is not ours. One that is not ours at all is in litewitness_test.go.
type fakeWitness struct {
	signer *fnote.Signer
	key    string
	url    string
	cosign func(text []byte) []byte // instead of the signer, if set

	mu     sync.Mutex
	size   uint64
	root   tlog.Hash
	answer func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
}

// newFakeWitness has an Ed25519 key.
func newFakeWitness(t *testing.T, name string) *fakeWitness {
	t.Helper()
	skey, vkey, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	if vkey, err = fnote.VKeyToCosignatureV1(vkey); err != nil {
		t.Fatal(err)
	}
	return startWitness(t, skey, vkey)
}

func newMLDSAWitness(t *testing.T, name string) *fakeWitness {
	t.Helper()
	skey, vkey, err := fnote.GenerateMLDSAKey(name)
	if err != nil {
		t.Fatal(err)
	}
	return startWitness(t, skey, vkey)
}

func startWitness(t *testing.T, skey, vkey string) *fakeWitness {
	t.Helper()
	signer, err := fnote.NewSignerForCosignatureV1(skey)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeWitness{signer: signer, key: vkey}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fakeWitness) config(operator string) Witness {
	return Witness{URL: f.url, Key: f.key, Operator: operator}
}

// misbehave sets how it answers, or that it behaves again.
func (f *fakeWitness) misbehave(answer func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fakeWitness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	answer := f.answer
	f.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	head, text, _ := bytes.Cut(body, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	old, err := strconv.ParseUint(strings.TrimPrefix(lines[0], "old "), 10, 63)
	cp, cpErr := parseTree(text)
	if err != nil || cpErr != nil || old > cp.size {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if old != f.size || old == cp.size && old > 0 && cp.root != f.root {
		w.Header().Set("Content-Type", "text/x.tlog.size")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, "%d\n", f.size)
		return
	}
	var proof tlog.TreeProof
	for _, line := range lines[1:] {
		h, _ := tlog.ParseHash(line)
		proof = append(proof, h)
	}
	if old > 0 && tlog.CheckTree(proof, int64(cp.size), cp.root, int64(old), f.root) != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	f.size, f.root = cp.size, cp.root
	w.Write(f.sign(text))
}

func (f *fakeWitness) sign(checkpoint []byte) []byte {
	text, _, _ := bytes.Cut(checkpoint, []byte("\n\n"))
	if f.cosign != nil {
		return f.cosign(append(text, '\n'))
	}
	signed, err := note.Sign(&note.Note{Text: string(text) + "\n"}, f.signer)
	if err != nil {
		panic(err)
	}
	_, lines, _ := bytes.Cut(signed, []byte("\n\n"))
	return lines
}

// witnessed is a configuration with a quorum of witnesses.
func witnessed(t *testing.T, quorum int, ws ...Witness) Config {
	t.Helper()
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery = 10 * time.Millisecond
	cfg.Witnesses = Witnesses{Operator: "us.example", Quorum: quorum, List: ws, Timeout: 2 * time.Second}
	return cfg
}

func gaps(t *testing.T, dir string) (out []audit.Gap) {
	t.Helper()
	for _, r := range records(t, dir) {
		if r.Kind != audit.KindGap {
			continue
		}
		var g audit.Gap
		if err := json.Unmarshal(r.Event, &g); err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
	return out
}

func TestRecordsAreAnchoredOnceEnoughOperatorsHaveCosigned(t *testing.T) {
	a, b, c := newFakeWitness(t, "a.example/w"), newMLDSAWitness(t, "b.example/w"), newMLDSAWitness(t, "us.example/w")
	cfg := witnessed(t, 2, a.config("a.example"), b.config("b.example"), c.config("us.example"))
	b.misbehave(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(1))
	await(t, "two of three to cosign", func() bool {
		st := l.Anchors().Witnesses
		return st[0].Size == 2 && st[2].Size == 2
	})
	if got := l.Anchors(); got.Size != 0 || got.Records != 2 || got.Age == 0 || got.Witnesses[1].Err == nil {
		t.Errorf("anchored by one other operator and our own: %+v", got)
	}
	b.misbehave(nil)
	await(t, "the second operator", func() bool { return l.Anchors().Records == 0 })
	mustAppend(t, l, decision(2))
	mustClose(t, l)
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: cfg.Witnesses})
	if err != nil || !report.OK() || report.Anchored != report.TreeSize || len(report.Witnesses) != 3 {
		t.Errorf("Verify = %+v, %v", report, err)
	}
	three := cfg.Witnesses
	three.Operator, three.Quorum = "auditor.example", 3
	if report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: three}); err != nil || !report.OK() {
		t.Errorf("Verify with all three as strangers = %+v, %v", report, err)
	}
	proof, err := Prove(cfg.Dir, 1)
	if err != nil || strings.Count(string(proof), "— ") != 4 {
		t.Errorf("the proof does not bear the cosignatures: %v\n%s", err, proof)
	}
}

func TestVerifyAsksForTheWitnessesItWasTold(t *testing.T) {
	a, b := newMLDSAWitness(t, "a.example/w"), newMLDSAWitness(t, "b.example/w")
	cfg := witnessed(t, 1, a.config("a.example"))
	mustClose(t, mustOpen(t, cfg))
	for what, want := range map[string]Witnesses{
		"one that was never asked":  {Operator: "x", List: []Witness{b.config("b.example")}},
		"both where one has":        {Operator: "x", Quorum: 2, List: []Witness{a.config("a.example"), b.config("b.example")}},
		"one that is the log's own": {Operator: "b.example", List: []Witness{a.config("b.example"), b.config("a.example")}},
		"one that has a new key":    {Operator: "x", List: []Witness{newMLDSAWitness(t, "a.example/w").config("a.example")}},
		"one that has another key":  {Operator: "x", List: []Witness{newFakeWitness(t, "a.example/w").config("a.example")}},
	} {
		report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: want})
		if err != nil || report.Code != NotAnchored {
			t.Errorf("%s: Verify = %+v, %v", what, report, err)
		}
	}
	remove(t, cfg.Dir, anchoredFile)
	if report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: cfg.Witnesses}); err != nil || report.Code != NotAnchored {
		t.Errorf("without the file: Verify = %+v, %v", report, err)
	}
}

func TestALogThatLostStateIsNotOpened(t *testing.T) {
	cases := []struct {
		name string
		lose func(t *testing.T, cfg Config)
		says string
	}{
		{"wiped", func(t *testing.T, cfg Config) { remove(t, cfg.Dir, "") }, "state was lost"},
		{"cut back", func(t *testing.T, cfg Config) {
			remove(t, cfg.Dir, checkpointFile)
			cutLastBatch(t, cfg.Dir)
		}, "state was lost"},
		{"replaced by another of its size", func(t *testing.T, cfg Config) {
			size := mustVerify(t, cfg).TreeSize
			remove(t, cfg.Dir, "")
			alone := cfg
			alone.Witnesses = Witnesses{}
			l := mustOpen(t, alone)
			for l.Head().Size < size-1 {
				mustAppend(t, l, decision(7))
			}
			mustClose(t, l)
		}, "forked"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newFakeWitness(t, "a.example/w")
			cfg := witnessed(t, 1, w.config("a.example"))
			l := mustOpen(t, cfg)
			mustAppend(t, l, decision(1))
			mustClose(t, l)
			c.lose(t, cfg)
			before := segmentsOf(t, cfg.Dir)
			var refusal *Refusal
			if _, err := Open(cfg); !errors.As(err, &refusal) || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("Open = %v", err)
			}
			if after := segmentsOf(t, cfg.Dir); after != before {
				t.Errorf("the directory was changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// segmentsOf digests the segments.
func segmentsOf(t *testing.T, dir string) string {
	t.Helper()
	numbers, err := listSegments(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for _, n := range numbers {
		data, err := os.ReadFile(segmentPath(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		out += fmt.Sprintf("%d %x\n", n, sha256.Sum256(data))
	}
	return out
}

func TestAForkThatIsRefusedWhileServingHaltsTheLogAndIsRecorded(t *testing.T) {
	for _, warn := range []bool{false, true} {
		t.Run(fmt.Sprintf("warn=%v", warn), func(t *testing.T) {
			w := newFakeWitness(t, "a.example/w")
			cfg := witnessed(t, 1, w.config("a.example"))
			cfg.Witnesses.Warn = warn
			l := mustOpen(t, cfg)
			await(t, "an anchor", func() bool { return l.Anchors().Size > 0 })
			w.mu.Lock()
			w.root[0] ^= 1 // what it saw was another log
			w.mu.Unlock()
			mustAppend(t, l, decision(1))
			await(t, "the refusal", func() bool { return l.Anchors().Witnesses[0].Refused && len(gaps(t, cfg.Dir)) > 0 })
			if g := gaps(t, cfg.Dir); len(g) != 1 || g[0].Reason != audit.GapRefused || g[0].Operator != "a.example" || g[0].Held != 1 {
				t.Errorf("evidence is %+v", g)
			}
			if warn {
				mustAppend(t, l, decision(2))
				return
			}
			await(t, "the halt", func() bool { return errors.Is(l.Err(), ErrRefused) })
			if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
				t.Errorf("Append = %v", err)
			}
		})
	}
}

func TestOneWitnessThatLiesDoesNotStopALogThatOthersVouchFor(t *testing.T) {
	liar, honest := newFakeWitness(t, "liar.example/w"), newFakeWitness(t, "b.example/w")
	liar.misbehave(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintln(w, 1<<40)
		return true
	})
	cfg := witnessed(t, 1, liar.config("liar.example"), honest.config("b.example"))
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(1))
	await(t, "evidence and an anchor", func() bool { return l.Anchors().Records == 0 && l.Anchors().Witnesses[0].Refused })
	if err := l.Err(); err != nil {
		t.Errorf("halted: %v", err)
	}
	mustClose(t, l)
	if n := len(gaps(t, cfg.Dir)); n != 1 {
		t.Errorf("%d records of one refusal", n)
	}
}

func TestAnswersThatAreNoCosignatureDoNotAnchor(t *testing.T) {
	stranger := newFakeWitness(t, "a.example/w")
	cases := map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"nothing": func(http.ResponseWriter, *http.Request) bool { return true },
		"another key's": func(w http.ResponseWriter, r *http.Request) bool {
			b, _ := io.ReadAll(r.Body)
			_, text, _ := bytes.Cut(b, []byte("\n\n"))
			w.Write(stranger.sign(text))
			return true
		},
		"of another checkpoint": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Write(stranger.sign(fmt.Appendf(nil, "x\n1\n%s\n\n", tlog.Hash{})))
			return true
		},
		"a size that is none": func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(409)
			fmt.Fprint(w, "lots")
			return true
		},
		"404": func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(404); return true },
	}
	for name, answer := range cases {
		t.Run(name, func(t *testing.T) {
			w := newFakeWitness(t, "a.example/w")
			w.misbehave(answer)
			cfg := witnessed(t, 1, w.config("a.example"))
			cfg.Witnesses.Limit = time.Millisecond
			l := mustOpen(t, cfg)
			await(t, "an answer", func() bool { return l.Anchors().Witnesses[0].Err != nil })
			if got := l.Anchors(); got.Size != 0 || l.Err() != nil {
				t.Errorf("anchors %+v, halted %v", got, l.Err())
			}
			if err := l.Ready(audit.Strict); err == nil || !strings.Contains(err.Error(), "anchor") {
				t.Errorf("Ready past the limit = %v", err)
			}
		})
	}
}

func TestWitnessConfigurationIsChecked(t *testing.T) {
	w := newFakeWitness(t, "a.example/w")
	good := w.config("a.example")
	skey, vkey, err := note.GenerateKey(rand.Reader, "a.example/w")
	if err != nil || skey == "" {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	one, other := cosignerKey(t, "a.example/w", public), cosignerKey(t, "b.example/w", public)
	for name, bad := range map[string]Witnesses{
		"a key of another kind":    {Operator: "us", List: []Witness{{URL: good.URL, Key: vkey, Operator: "a"}}},
		"a key with a wrong hash":  {Operator: "us", List: []Witness{{URL: good.URL, Key: strings.Replace(good.Key, "+", "+0", 1), Operator: "a"}}},
		"no operator":              {Operator: "us", List: []Witness{{URL: good.URL, Key: good.Key}}},
		"no operator of ours":      {List: []Witness{good}},
		"no URL":                   {Operator: "us", List: []Witness{{Key: good.Key, Operator: "a"}}},
		"only our own":             {Operator: "a.example", List: []Witness{good}},
		"a quorum of one operator": {Operator: "us", Quorum: 2, List: []Witness{good, newFakeWitness(t, "b.example/w").config("a.example")}},
		"the same one twice":       {Operator: "us", List: []Witness{good, good}},
		"its key under two names":  {Operator: "us", List: []Witness{{URL: good.URL, Key: one, Operator: "a"}, {URL: good.URL, Key: other, Operator: "b"}}},
	} {
		if bad.Check() == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	if err := (Witnesses{Operator: "us", List: []Witness{good}}).Check(); err != nil {
		t.Error(err)
	}
	if err := (Witnesses{}).Check(); err != nil {
		t.Error(err)
	}
}

func TestAWitnessThatNeverAnswersHoldsNothingUp(t *testing.T) {
	slow, quick := newFakeWitness(t, "slow.example/w"), newFakeWitness(t, "b.example/w")
	slow.misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.ReadAll(r.Body) // only then is it seen that the caller has gone
		<-r.Context().Done()
		return true
	})
	cfg := witnessed(t, 1, slow.config("slow.example"), quick.config("b.example"))
	cfg.Witnesses.Timeout = 100 * time.Millisecond
	l := mustOpen(t, cfg)
	for i := range 20 {
		mustAppend(t, l, decision(i))
	}
	await(t, "anchored by the other", func() bool {
		a := l.Anchors()
		return a.Records == 0 && a.Witnesses[0].Err != nil && a.Witnesses[0].State() == "failed"
	})
	mustClose(t, l)
	if report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: cfg.Witnesses}); err != nil || report.Anchored != report.TreeSize {
		t.Errorf("Verify = %+v, %v", report, err)
	}
}
