package policy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
)

// keyPair writes a P-256 key pair as PEM files.
func keyPair(t testing.TB) (private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	priv, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "key.pem"), filepath.Join(dir, "pub.pem")
	write(t, private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: priv}))
	write(t, public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))
	return private, public
}

func write(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// build makes a tarball at name.
func build(t testing.TB, name string, layers []fs.FS, revision, key string) {
	t.Helper()
	var buf bytes.Buffer
	if err := Build(&buf, layers, revision, key); err != nil {
		t.Fatal(err)
	}
	write(t, name, buf.Bytes())
}

// strategyBundle decides for acme's chat with that strategy and denies the rest.
func strategyBundle(strategy string) fstest.MapFS {
	allow := strings.Replace(wellFormed, "probabilistic", strategy, 1)
	deny := strings.Replace(allow, `"allow": true`, `"allow": false`, 1)
	return regoBundle("decision := " + allow + ` if {
	input.principal.tenant == "acme"
	input.class.name == "chat"
} else := ` + deny)
}

func TestProductionTakesOnlyASignedTarball(t *testing.T) {
	private, public := keyPair(t)
	otherPrivate, _ := keyPair(t)
	dir := t.TempDir()
	layers := demoLayers(t)
	if err := Write(filepath.Join(dir, "dir"), layers); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	build(t, at("signed.tar.gz"), layers, "1", private)
	build(t, at("unsigned.tar.gz"), layers, "1", "")
	build(t, at("foreign.tar.gz"), layers, "1", otherPrivate)
	write(t, at("garbage.tar.gz"), []byte("garbage"))
	for _, c := range []struct {
		claim string
		cfg   Config
		want  string
	}{
		{"a signed tarball", Config{Bundle: at("signed.tar.gz"), VerifyKeyFile: public, Production: true}, ""},
		{"an unsigned tarball", Config{Bundle: at("unsigned.tar.gz"), VerifyKeyFile: public, Production: true}, "missing .signatures.json"},
		{"a tarball that another key signed", Config{Bundle: at("foreign.tar.gz"), VerifyKeyFile: public, Production: true}, "failed to verify"},
		{"garbage", Config{Bundle: at("garbage.tar.gz"), VerifyKeyFile: public, Production: true}, "read bundle"},
		{"a directory", Config{Bundle: at("dir"), VerifyKeyFile: public, Production: true}, "is a directory"},
		{"no key", Config{Bundle: at("signed.tar.gz"), Production: true}, "needs a signed bundle"},
		{"layers", Config{Layers: layers, VerifyKeyFile: public, Production: true}, "needs a signed bundle"},
		{"no file", Config{Bundle: at("none.tar.gz"), VerifyKeyFile: public, Production: true}, "no such file"},
		{"a private key as verify key", Config{Bundle: at("signed.tar.gz"), VerifyKeyFile: private, Production: true}, "want PUBLIC KEY"},
		{"development: an unsigned tarball", Config{Bundle: at("unsigned.tar.gz")}, ""},
		{"development: a directory", Config{Bundle: at("dir")}, ""},
		{"development: an unsigned directory despite a key", Config{Bundle: at("dir"), VerifyKeyFile: public}, "missing .signatures.json"},
		{"nothing", Config{}, "exactly one"},
		{"two sources", Config{Bundle: at("dir"), Layers: layers}, "exactly one"},
	} {
		_, err := Load(t.Context(), c.cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.claim, err, c.want)
		}
	}
}

func TestATamperedTarballIsRefused(t *testing.T) {
	private, public := keyPair(t)
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	build(t, name, demoLayers(t), "1", private)
	good, err := readBundle(name, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim string
		edit  func(files)
	}{
		{"data changed", func(f files) {
			f["sallyport/pools/data.json"] = bytes.Replace(f["sallyport/pools/data.json"], []byte(`"internal",`), []byte(`"external",`), 1)
		}},
		{"a rule changed", func(f files) {
			f["sallyport/decision.rego"] = bytes.Replace(f["sallyport/decision.rego"], []byte("pools != []"), []byte("pools != 0"), 1)
		}},
		{"the revision changed", func(f files) { f[".manifest"] = []byte(`{"revision": "9"}`) }},
		{"a rule added", func(f files) { f["sallyport/more.rego"] = []byte("package sallyport\n\nmore := 1") }},
		{"a rule removed", func(f files) { delete(f, "sallyport/reasons.rego") }},
		{"the signature removed", func(f files) { delete(f, ".signatures.json") }},
	} {
		bad := make(files)
		for k, v := range good {
			bad[k] = v
		}
		c.edit(bad)
		var buf bytes.Buffer
		if err := bad.writeTarball(&buf); err != nil {
			t.Fatal(err)
		}
		write(t, name, buf.Bytes())
		if _, err := Load(t.Context(), Config{Bundle: name, VerifyKeyFile: public, Production: true}); err == nil || !strings.Contains(err.Error(), "parse bundle") {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestReloadKeepsTheLastGoodPolicy(t *testing.T) {
	private, public := keyPair(t)
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	build(t, name, []fs.FS{strategyBundle("probabilistic")}, "2026.11.9", private)
	e, err := Load(t.Context(), Config{Bundle: name, VerifyKeyFile: public, Production: true, MinRevision: "2026.11.8"})
	if err != nil {
		t.Fatal(err)
	}
	first := e.Snapshot()
	for _, c := range []struct {
		claim string
		put   func()
		want  string
	}{
		{"garbage", func() { write(t, name, []byte("garbage")) }, "read bundle"},
		{"an older revision", func() { build(t, name, []fs.FS{strategyBundle("deterministic")}, "2026.11.8", private) }, "older"},
		{"an older revision by number, not by text", func() { build(t, name, []fs.FS{strategyBundle("deterministic")}, "2026.9.10", private) }, "older"},
		{"the same revision with other content", func() { build(t, name, []fs.FS{strategyBundle("deterministic")}, "2026.11.9", private) }, "has changed"},
		{"Rego that does not compile", func() { build(t, name, []fs.FS{regoBundle("decision := nope")}, "2026.11.10", private) }, "unsafe"},
		{"unsigned", func() { build(t, name, []fs.FS{strategyBundle("deterministic")}, "2026.11.10", "") }, "missing .signatures.json"},
		{"nothing there", func() {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
	} {
		c.put()
		if _, err := e.Reload(t.Context(), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.claim, err, c.want)
		}
		if e.Snapshot() != first {
			t.Errorf("%s: the last good policy is gone", c.claim)
		}
	}
	build(t, name, []fs.FS{strategyBundle("deterministic")}, "2026.11.10", private)
	a, err := e.Reload(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Revision != "2026.11.10" || a.PreviousRevision != "2026.11.9" || a.PreviousDigest != first.Digest() || a.Digest == first.Digest() || !a.Signed {
		t.Errorf("activation %+v", a)
	}
	if d, _, err := e.Snapshot().Decide(t.Context(), ask()); err != nil || d.Strategy != "deterministic" {
		t.Errorf("after the swap: %+v, %v", d, err)
	}
	if d, _, err := first.Decide(t.Context(), ask()); err != nil || d.Strategy != "probabilistic" {
		t.Errorf("a request that began before the swap: %+v, %v", d, err)
	}
	if _, err := Load(t.Context(), Config{Bundle: name, VerifyKeyFile: public, Production: true, MinRevision: "2026.12"}); err == nil || !strings.Contains(err.Error(), "older") {
		t.Errorf("a restart undid a policy change: %v", err)
	}
}

func TestArchiveActivatesAsTheSameBundle(t *testing.T) {
	private, public := keyPair(t)
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	build(t, name, demoLayers(t), "1", private)
	cfg := Config{Bundle: name, VerifyKeyFile: public, Production: true}
	e, err := Load(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := e.Snapshot().Archive(&buf); err != nil {
		t.Fatal(err)
	}
	write(t, name, buf.Bytes())
	again, err := Load(t.Context(), cfg)
	if err != nil || again.Snapshot().Digest() != e.Snapshot().Digest() {
		t.Errorf("%v", err)
	}
}

func TestRevisionsCompareByNumber(t *testing.T) {
	for _, c := range []struct {
		older, newer string
	}{
		{"9", "10"}, {"2026.11.30", "2026.12.1"}, {"7", "7.1"}, {"1.9", "1.10"}, {"v1-a", "v1-b"}, {"010", "11"},
	} {
		if compareRevisions(c.older, c.newer) >= 0 || compareRevisions(c.newer, c.older) <= 0 {
			t.Errorf("%s is not older than %s", c.older, c.newer)
		}
		if compareRevisions(c.older, c.older) != 0 {
			t.Errorf("%s is not itself", c.older)
		}
	}
	if err := refuseOlder(unversioned, "1"); err == nil {
		t.Error("a bundle without revision may follow a revision")
	}
}

func TestDigestNamesContent(t *testing.T) {
	digest := func(layers ...fs.FS) string {
		f := make(files)
		for _, l := range layers {
			if err := f.layer(l); err != nil {
				t.Fatal(err)
			}
		}
		return f.digest()
	}
	a := fstest.MapFS{"a.rego": {Data: []byte("bc")}}
	if copied := (fstest.MapFS{"a.rego": {Data: []byte("bc")}}); digest(a) != digest(copied) {
		t.Error("the same files have two digests")
	}
	for claim, b := range map[string]fs.FS{
		"content moved into the name": fstest.MapFS{"a.regob.rego": {Data: []byte("c")}},
		"content changed":             fstest.MapFS{"a.rego": {Data: []byte("bd")}},
		"renamed":                     fstest.MapFS{"b.rego": {Data: []byte("bc")}},
		"a file added":                fstest.MapFS{"a.rego": {Data: []byte("bc")}, "b.rego": {}},
	} {
		if digest(a) == digest(b) {
			t.Errorf("%s: same digest", claim)
		}
	}
	if digest(a) != digest(a, fstest.MapFS{"README.md": {Data: []byte("x")}}) {
		t.Error("a file that is no part of the bundle changes the digest")
	}

	private, _ := keyPair(t)
	dir := t.TempDir()
	build(t, filepath.Join(dir, "s"), demoLayers(t), "1", private)
	build(t, filepath.Join(dir, "u"), demoLayers(t), "1", "")
	signed, err := readBundle(filepath.Join(dir, "s"), false)
	if err != nil {
		t.Fatal(err)
	}
	unsigned, err := readBundle(filepath.Join(dir, "u"), false)
	if err != nil {
		t.Fatal(err)
	}
	if signed.digest() != unsigned.digest() {
		t.Error("signing changes the digest")
	}
}

func TestShadowIsComparedAndChangesNothing(t *testing.T) {
	dir := t.TempDir()
	put := func(bundle fs.FS) string {
		name := filepath.Join(dir, "shadow.tar.gz")
		build(t, name, []fs.FS{bundle}, "5", "")
		return name
	}
	deny := strategyBundle("probabilistic")
	deny["sallyport/p.rego"].Data = bytes.ReplaceAll(deny["sallyport/p.rego"].Data, []byte(`"allow": true`), []byte(`"allow": false`))
	slow := regoBundle("decision := " + strings.Replace(wellFormed, "true", "false", 1) + " if {\nn := 1\nn == 1\n}")
	slow["sallyport/p.rego"].Data = []byte("package sallyport\n\ndefault decision := " + strings.Replace(wellFormed, `"allow": true`, `"allow": false`, 1) +
		"\ndecision := " + wellFormed + " if {\ninput.principal.subject == \"u1\"\n" + burnsCPU + "\nn == 0\n}")
	for _, c := range []struct {
		claim  string
		shadow fs.FS
		want   string
	}{
		{"the same answer is no difference", strategyBundle("probabilistic"), ""},
		{"another strategy is named", strategyBundle("deterministic"), "strategy: probabilistic → deterministic"},
		{"a denial is named", deny, "allow: true → false"},
		{"a shadow that takes too long is named", slow, "timed out"},
	} {
		e, err := Load(t.Context(), Config{Layers: []fs.FS{strategyBundle("probabilistic")}, Shadow: put(c.shadow)})
		if err != nil {
			t.Fatal(err)
		}
		d, ev, err := e.Snapshot().Decide(t.Context(), ask())
		if err != nil || !d.Allow || d.Strategy != "probabilistic" {
			t.Errorf("%s: the decision changed: %+v, %v", c.claim, d, err)
		}
		if (ev.ShadowDiff == "") != (c.want == "") || !strings.Contains(ev.ShadowDiff, c.want) || len(ev.ShadowDiff) > maxShadowDiff+4 {
			t.Errorf("%s: %q", c.claim, ev.ShadowDiff)
		}
		if a := e.Activation(); a.ShadowRevision != "5" || a.ShadowDigest == "" || a.ShadowError != "" {
			t.Errorf("%s: %+v", c.claim, a)
		}
	}
	e, err := Load(t.Context(), Config{Layers: []fs.FS{strategyBundle("probabilistic")}, Shadow: put(regoBundle("x := 1"))})
	if err != nil {
		t.Fatalf("a broken shadow holds up the active policy: %v", err)
	}
	if a := e.Activation(); !strings.Contains(a.ShadowError, "no rule") {
		t.Errorf("a broken shadow is not said: %+v", a)
	}
}

// TestSwapsUnderLoad swaps 200 times while two callers decide. Each bundle
// answers its own number, so a decision that mixes two bundles would show.
func TestSwapsUnderLoad(t *testing.T) {
	bundle := func(n int) fstest.MapFS {
		b := strategyBundle("probabilistic")
		b["sallyport/p.rego"].Data = bytes.ReplaceAll(b["sallyport/p.rego"].Data,
			[]byte(`"reauthorize_s": 300`), []byte(`"reauthorize_s": data.sallyport.tenants.acme.reauthorize_s`))
		b["sallyport/data.json"] = &fstest.MapFile{Data: []byte(strings.Replace(smallData,
			`{"acme": {`, fmt.Sprintf(`{"acme": {"reauthorize_s": %d, `, n+1), 1))}
		b[".manifest"] = &fstest.MapFile{Data: fmt.Appendf(nil, `{"revision": "%d"}`, n+1)}
		return b
	}
	dir := t.TempDir()
	if err := Write(dir, []fs.FS{bundle(0)}); err != nil {
		t.Fatal(err)
	}
	e, err := Load(t.Context(), Config{Bundle: dir, Timeout: time.Minute}) // the machine may be busy
	if err != nil {
		t.Fatal(err)
	}
	var decisions, wrong atomic.Int64
	done := make(chan struct{})
	var callers sync.WaitGroup
	for range 2 {
		callers.Go(func() {
			for last := int64(0); ; {
				select {
				case <-done:
					return
				default:
				}
				s := e.Snapshot()
				d, ev, err := s.Decide(t.Context(), ask())
				decisions.Add(1)
				if err != nil || fmt.Sprint(d.ReauthorizeS) != s.Revision() || d.ReauthorizeS < last ||
					!strings.Contains(string(ev.DecisionJSON), `"reauthorize_s":`+s.Revision()) {
					wrong.Add(1)
				}
				last = d.ReauthorizeS
			}
		})
	}
	for n := 1; n <= 200; n++ {
		if err := Write(dir, []fs.FS{bundle(n)}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Reload(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	callers.Wait()
	t.Logf("%d decisions over 200 swaps", decisions.Load())
	if wrong.Load() != 0 || decisions.Load() < 200 {
		t.Errorf("%d of %d decisions mixed two bundles or failed", wrong.Load(), decisions.Load())
	}
}

func TestHostileTarballsAreRefused(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	for _, c := range []struct {
		claim   string
		headers []tar.Header
	}{
		{"a name that leaves the bundle", []tar.Header{file("../x.rego")}},
		{"a name that leaves it halfway", []tar.Header{file("a/../../x.rego")}},
		{"a name twice", []tar.Header{file("a.rego"), file("a.rego")}},
		{"a name twice, written in two ways", []tar.Header{file("a.rego"), file("/./a.rego")}},
		{"a symbolic link", []tar.Header{{Name: "a.rego", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}}},
		{"a device", []tar.Header{{Name: "a.rego", Typeflag: tar.TypeChar}}},
	} {
		var buf bytes.Buffer
		zw := gzip.NewWriter(&buf)
		tw := tar.NewWriter(zw)
		for _, h := range c.headers {
			if err := tw.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(tw.Close(), zw.Close()); err != nil {
			t.Fatal(err)
		}
		if f, err := readTarball(&buf); err == nil && len(f) > 0 {
			t.Errorf("%s: taken: %v", c.claim, sortedKeys(f))
		}
	}
}
