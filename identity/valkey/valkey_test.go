package valkey_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/dpop"
	"github.com/sallyport-ai/sallyport/identity/revocation"
	"github.com/sallyport-ai/sallyport/identity/valkey"
	"github.com/sallyport-ai/sallyport/test/await"
)

// server is a real one, on a socket of its own.
type server struct {
	tb     testing.TB
	binary string
	dir    string
	args   []string
	cmd    *exec.Cmd
}

// newServer starts the first server program that there is.
func newServer(tb testing.TB, args ...string) *server {
	tb.Helper()
	s := &server{tb: tb, args: args}
	for _, name := range []string{"valkey-server", "redis-server"} {
		if path, err := exec.LookPath(name); err == nil {
			s.binary = path
		}
	}
	if s.binary == "" {
		tb.Skip("needs redis-server or valkey-server, which is not installed")
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "vk"); err != nil { // short: the path of a socket is limited
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.stop(); os.RemoveAll(s.dir) })
	s.start()
	return s
}

func (s *server) socket() string { return filepath.Join(s.dir, "s") }

func (s *server) url() string { return "unix://" + s.socket() }

func (s *server) start() {
	s.tb.Helper()
	s.cmd = exec.Command(s.binary, append([]string{
		"--port", "0", "--unixsocket", s.socket(), "--save", "", "--appendonly", "no", "--dir", s.dir,
	}, s.args...)...)
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", s.socket()); err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			s.tb.Fatal("the server did not start")
		}
	}
}

// stop kills the server: it saves nothing.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.Remove(s.socket())
	s.cmd = nil
}

// changes counts what a store tells of its server.
type changes struct{ lost, back atomic.Int32 }

func (c *changes) changed(err error) {
	if err != nil {
		c.lost.Add(1)
	} else {
		c.back.Add(1)
	}
}

func open(tb testing.TB, s *server, whenDown string, seen *changes, change ...func(*valkey.Config)) *valkey.Store {
	tb.Helper()
	config := valkey.Config{URL: s.url(), WhenDown: whenDown, Timeout: 2 * time.Second}
	for _, c := range change {
		c(&config)
	}
	options := valkey.Options{}
	if seen != nil {
		options.Changed = seen.changed
	}
	store, err := valkey.New(config, options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { store.Close() })
	return store
}

func proof(name string) [32]byte { return sha256.Sum256([]byte(name)) }

func TestAProofCountsOnceAtAllGateways(t *testing.T) {
	s := newServer(t)
	one, two := open(t, s, "", nil), open(t, s, "local", nil)
	elsewhere := open(t, s, "", nil, func(c *valkey.Config) { c.Prefix = "other:" })
	until := time.Now().Add(time.Minute)
	spend := func(store *valkey.Store, name string) bool {
		t.Helper()
		first, err := store.Spend(t.Context(), dpop.Holder{}, proof(name), until)
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	if !spend(one, "a") || spend(one, "a") || spend(two, "a") || !spend(two, "b") || spend(one, "b") || !spend(one, "c") {
		t.Error("a proof counted twice, or not at all")
	}
	if !spend(elsewhere, "a") {
		t.Error("another fleet's proofs count here")
	}
	var firsts atomic.Int32
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			if first, err := []*valkey.Store{one, two}[i%2].Spend(t.Context(), dpop.Holder{}, proof("together"), until); err == nil && first {
				firsts.Add(1)
			}
		})
	}
	all.Wait()
	if firsts.Load() != 1 {
		t.Errorf("%d of 64 at once were first", firsts.Load())
	}
}

func TestAProofIsForgottenAfterItsTime(t *testing.T) {
	s := newServer(t)
	store := open(t, s, "", nil)
	until := time.Now().Add(time.Minute)
	if _, err := store.Spend(t.Context(), dpop.Holder{}, proof("a"), until); err != nil {
		t.Fatal(err)
	}
	left, err := exec.Command("redis-cli", "-s", s.socket(), "--scan", "--pattern", "sallyport:proof:*").Output()
	if err != nil {
		t.Skipf("needs redis-cli: %v", err)
	}
	ttl, err := exec.Command("redis-cli", "-s", s.socket(), "ttl", string(left[:len(left)-1])).Output()
	var seconds int
	if _, scanErr := fmt.Sscan(string(ttl), &seconds); err != nil || scanErr != nil || seconds > 75 ||
		time.Duration(seconds)*time.Second < time.Until(until)+5*time.Second { // clocks may disagree
		t.Errorf("a proof of a minute is kept for %s s: %v", ttl, err)
	}
}

func TestAProofWhoseTimeHasJustEndedIsNotKeptForEver(t *testing.T) {
	s := newServer(t)
	store := open(t, s, "", nil)
	for i := 0; ; i++ { // until the clock does not move on to the next slot in between
		ended := time.Unix(time.Now().Unix()/10*10-10, 0) // the earliest that is still looked at
		if first, err := store.Spend(t.Context(), dpop.Holder{}, proof(fmt.Sprint(i)), ended); err != nil || i == 10 {
			t.Fatal(first, err)
		} else if first {
			break
		}
	}
	key, err := exec.Command("redis-cli", "-s", s.socket(), "--scan", "--pattern", "sallyport:proof:*").Output()
	if err != nil {
		t.Skipf("needs redis-cli: %v", err)
	}
	if len(key) == 0 {
		t.Fatal("it is not kept at all")
	}
	ttl, err := exec.Command("redis-cli", "-s", s.socket(), "ttl", string(key[:len(key)-1])).Output()
	if err != nil || string(ttl) == "-1\n" {
		t.Errorf("its time to live is %s: %v", ttl, err)
	}
}

func TestAServerThatKnowsAProofAnswers(t *testing.T) {
	s := newServer(t)
	var seen changes
	one, two := open(t, s, "", nil), open(t, s, "", &seen, func(c *valkey.Config) { c.Timeout = 300 * time.Millisecond })
	until := time.Now().Add(time.Minute)
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprint("known", i)
		if first, err := one.Spend(t.Context(), dpop.Holder{}, proof(names[i]), until); !first || err != nil {
			t.Fatal(first, err)
		}
	}
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, down := two.Spend(t.Context(), dpop.Holder{}, proof("down"), until)
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if down == nil || two.Err() == nil {
		t.Fatal("the scene is not set")
	}
	if !await.Within(await.Limit, func() bool {
		if len(names) == 0 {
			return false
		}
		first, err := two.Spend(t.Context(), dpop.Holder{}, proof(names[0]), until)
		names = names[1:]
		return !first && err == nil
	}) || two.Err() != nil || seen.back.Load() != 1 {
		t.Errorf("after an answer it still counts as down: %v", two.Err())
	}
}

func TestWhileTheServerIsDownItDeniesOrGoesByWhatItKnows(t *testing.T) {
	s := newServer(t)
	var strictSeen, localSeen changes
	strict, local := open(t, s, "deny", &strictSeen), open(t, s, "local", &localSeen)
	until := time.Now().Add(time.Minute)
	for name, store := range map[string]*valkey.Store{"strict": strict, "local": local} {
		if first, err := store.Spend(t.Context(), dpop.Holder{}, proof(name), until); !first || err != nil {
			t.Fatal(first, err)
		}
	}
	s.stop()
	if first, err := strict.Spend(t.Context(), dpop.Holder{}, proof("down"), until); err == nil {
		t.Errorf("deny: took a proof nobody can tell of: %v", first)
	}
	if first, err := local.Spend(t.Context(), dpop.Holder{}, proof("down"), until); !first || err != nil {
		t.Errorf("local: %v, %v", first, err)
	}
	for _, known := range []string{"down", "local"} {
		if first, err := local.Spend(t.Context(), dpop.Holder{}, proof(known), until); first || err != nil {
			t.Errorf("local: a proof that this process itself has seen, %s: %v, %v", known, first, err)
		}
	}
	if strict.Err() == nil || local.Err() == nil || strictSeen.lost.Load() != 1 || localSeen.lost.Load() != 1 {
		t.Errorf("told of a loss %d and %d times", strictSeen.lost.Load(), localSeen.lost.Load())
	}
	s.start()
	if !await.Within(await.Limit, func() bool {
		first, err := strict.Spend(t.Context(), dpop.Holder{}, proof(fmt.Sprint("back", time.Now().UnixNano())), until)
		return first && err == nil
	}) {
		t.Error("deny: did not come back")
	}
	if !await.Within(await.Limit, func() bool {
		_, err := local.Spend(t.Context(), dpop.Holder{}, proof(fmt.Sprint("back", time.Now().UnixNano())), until)
		return err == nil && local.Err() == nil
	}) {
		t.Error("local: did not come back")
	}
	if strictSeen.back.Load() != 1 || localSeen.back.Load() != 1 {
		t.Errorf("told of a return %d and %d times", strictSeen.back.Load(), localSeen.back.Load())
	}
}

// A server that takes connections and says nothing must not hold a caller up.
func TestASilentServerIsDownAfterTheTimeout(t *testing.T) {
	dir, err := os.MkdirTemp("", "vk")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	store, err := valkey.New(valkey.Config{URL: "unix://" + filepath.Join(dir, "s"), Timeout: 50 * time.Millisecond}, valkey.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	began := time.Now()
	if _, err := store.Spend(t.Context(), dpop.Holder{}, proof("a"), time.Now().Add(time.Minute)); err == nil || time.Since(began) > await.Limit/2 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestACallerThatLeavesIsNotTheServersSilence(t *testing.T) {
	s := newServer(t)
	var seen changes
	store := open(t, s, "", &seen)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Spend(ctx, dpop.Holder{}, proof("a"), time.Now().Add(time.Minute)); err == nil {
		t.Error("answered to nobody")
	}
	if seen.lost.Load() != 0 || store.Err() != nil {
		t.Errorf("taken for down: %v", store.Err())
	}
}

// What can be done without is not asked for while it is down; what cannot is.
func TestAServerThatIsDownIsLeftAloneByThoseWhoCanDoWithout(t *testing.T) {
	dir, err := os.MkdirTemp("", "vk")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			c.Close()
		}
	})
	defer serving.Wait()
	defer l.Close()
	const proofs = 20
	spend := func(whenDown string) (asks int32, took time.Duration) {
		store, err := valkey.New(valkey.Config{URL: "unix://" + filepath.Join(dir, "s"), WhenDown: whenDown, Timeout: 2 * time.Second}, valkey.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		before, began := asked.Load(), time.Now()
		for i := range proofs {
			first, err := store.Spend(t.Context(), dpop.Holder{}, proof(fmt.Sprint(i)), time.Now().Add(time.Minute))
			if first != (whenDown == "local") || (err == nil) != first {
				t.Errorf("%s: %v, %v", whenDown, first, err)
			}
		}
		return asked.Load() - before, time.Since(began)
	}
	if asks, took := spend("local"); asks < 1 || time.Duration(asks) > 1+took/time.Second {
		t.Errorf("local: asked %d times for %d proofs in %v", asks, proofs, took)
	}
	if asks, _ := spend("deny"); asks < proofs {
		t.Errorf("deny: asked %d times for %d proofs", asks, proofs)
	}
}

func TestATimeoutThatIsNotSetIsShortAndNotNone(t *testing.T) {
	s := newServer(t)
	store := open(t, s, "", nil, func(c *valkey.Config) { c.Timeout = 0 })
	if !await.Within(await.Limit, func() bool {
		first, err := store.Spend(t.Context(), dpop.Holder{}, proof(fmt.Sprint(time.Now().UnixNano())), time.Now().Add(time.Minute))
		return first && err == nil
	}) {
		t.Errorf("no answer in the time there is: %v", store.Err())
	}
}

func withdraw(t *testing.T, e revocation.Entry) revocation.Entry {
	t.Helper()
	made, err := revocation.New(e, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestARevocationReachesEveryGatewayAndOutlivesTheServersMemory(t *testing.T) {
	s := newServer(t)
	operator := open(t, s, "", nil)
	who := identity.Principal{Tenant: "acme", Subject: "alice", IssuedAt: time.Now().Add(-time.Minute)}
	var gateways []*revocation.Register
	for range 2 {
		r, err := revocation.NewRegister(t.Context(), revocation.Config{Source: open(t, s, "", nil)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		t.Cleanup(func() { cancel(); running.Wait() })
		gateways = append(gateways, r)
	}
	for _, r := range gateways {
		if err := r.Check(who, "acme"); err != nil {
			t.Fatal(err)
		}
	}
	first := withdraw(t, revocation.Entry{Tenant: "acme", Subject: "alice"})
	if err := operator.Revoke(t.Context(), first, time.Now()); err != nil {
		t.Fatal(err)
	}
	for i, r := range gateways {
		if !await.Within(await.Limit, func() bool { return errors.Is(r.Check(who, "acme"), identity.ErrBadCredential) }) {
			t.Errorf("gateway %d never heard", i)
		}
	}
	s.stop()
	s.start() // it keeps nothing
	if !await.Within(await.Limit, func() bool {
		all, err := operator.Read(t.Context())
		return err == nil && slices.ContainsFunc(all, func(e revocation.Entry) bool { return e.ID == first.ID })
	}) {
		t.Error("the gateways did not put back what the server lost")
	}
	for i, r := range gateways {
		if err := r.Check(who, "acme"); !errors.Is(err, identity.ErrBadCredential) {
			t.Errorf("gateway %d forgot: %v", i, err)
		}
	}
	second := withdraw(t, revocation.Entry{Tenant: "globex"})
	if err := operator.Revoke(t.Context(), second, time.Now()); err != nil {
		t.Fatal(err)
	}
	stranger := identity.Principal{Tenant: "globex", Subject: "bob", IssuedAt: time.Now().Add(-time.Minute)}
	for i, r := range gateways {
		if !await.Within(await.Limit, func() bool { return errors.Is(r.Check(stranger, "globex"), identity.ErrBadCredential) }) {
			t.Errorf("gateway %d no longer hears", i)
		}
	}
}

func TestAnEntryThatIsNoneFailsTheRead(t *testing.T) {
	s := newServer(t)
	store := open(t, s, "", nil)
	if err := exec.Command("redis-cli", "-s", s.socket(), "hset", "sallyport:revocations", "x", "{}").Run(); err != nil {
		t.Skipf("needs redis-cli: %v", err)
	}
	if all, err := store.Read(t.Context()); err == nil {
		t.Errorf("read %+v", all)
	}
}

func TestEntriesAreReadAgainWhenTheEpochSaysSo(t *testing.T) {
	s := newServer(t)
	gateway, operator := open(t, s, "", nil), open(t, s, "", nil)
	first := withdraw(t, revocation.Entry{Tenant: "acme"})
	if err := operator.Revoke(t.Context(), first, time.Now()); err != nil {
		t.Fatal(err)
	}
	read := func() int {
		t.Helper()
		all, err := gateway.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := read(); n != 1 {
		t.Fatalf("%d entries", n)
	}
	if err := exec.Command("redis-cli", "-s", s.socket(), "hdel", "sallyport:revocations", first.ID).Run(); err != nil {
		t.Skipf("needs redis-cli: %v", err)
	}
	if n := read(); n != 1 {
		t.Errorf("read again though nothing says that they changed: %d entries", n)
	}
	second := withdraw(t, revocation.Entry{Tenant: "globex"})
	if err := operator.Revoke(t.Context(), second, time.Now()); err != nil {
		t.Fatal(err)
	}
	if all, err := gateway.Read(t.Context()); err != nil || len(all) != 1 || all[0].ID != second.ID {
		t.Errorf("after a change: %+v, %v", all, err)
	}
	// The time of the last read counts too, for a server that came back with an
	// epoch of before.
	if err := exec.Command("redis-cli", "-s", s.socket(), "hdel", "sallyport:revocations", second.ID).Run(); err != nil {
		t.Fatal(err)
	}
	gateway.Age(31 * time.Second)
	if n := read(); n != 0 {
		t.Errorf("after half a minute: %d entries", n)
	}
}

func TestWhatHasEndedIsDroppedAndTheRestIsBounded(t *testing.T) {
	s := newServer(t)
	store := open(t, s, "", nil, func(c *valkey.Config) { c.Timeout = 5 * time.Second })
	now := time.Now()
	ended := make([]revocation.Entry, 3)
	for i := range ended {
		ended[i] = withdraw(t, revocation.Entry{Tenant: fmt.Sprint("ended", i), Before: now.Add(-revocation.Kept + time.Minute)})
	}
	lasting := make([]revocation.Entry, revocation.MaxEntries-1)
	for i := range lasting {
		lasting[i] = withdraw(t, revocation.Entry{Tenant: "acme", TokenID: fmt.Sprint(i)})
	}
	if err := store.Restore(t.Context(), append(ended, lasting...)); err != nil {
		t.Fatal(err)
	}
	later := now.Add(time.Hour)
	if err := store.Revoke(t.Context(), withdraw(t, revocation.Entry{Tenant: "globex"}), later); err != nil {
		t.Fatalf("the last that there is room for: %v", err)
	}
	if all, err := store.Read(t.Context()); err != nil || len(all) != revocation.MaxEntries || slices.ContainsFunc(all, func(e revocation.Entry) bool { return e.Ended(later) }) {
		t.Errorf("%d entries, %v", len(all), err)
	}
	if err := store.Revoke(t.Context(), withdraw(t, revocation.Entry{Tenant: "initech"}), later); err == nil {
		t.Error("one more was taken")
	}
}

func TestAPasswordIsAskedFor(t *testing.T) {
	s := newServer(t, "--requirepass", "sesame")
	file := filepath.Join(s.dir, "password")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Minute)
	with := open(t, s, "", nil, func(c *valkey.Config) { c.PasswordFile = file })
	if first, err := with.Spend(t.Context(), dpop.Holder{}, proof("a"), until); !first || err != nil {
		t.Errorf("with it: %v, %v", first, err)
	}
	if _, err := open(t, s, "", nil).Spend(t.Context(), dpop.Holder{}, proof("b"), until); err == nil {
		t.Error("without it: answered")
	}
}

// newTLSServer is one that is asked over TLS too, at a port of 127.0.0.1. Its
// certificate is in the file ca.
func newTLSServer(tb testing.TB) (port int, ca string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	ca, secret := write("ca.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", private)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	newServer(tb, "--bind", "127.0.0.1", "--tls-port", fmt.Sprint(port), "--tls-auth-clients", "no",
		"--tls-cert-file", ca, "--tls-key-file", secret, "--tls-ca-cert-file", ca)
	return port, ca
}

func TestAServerOverTLSMustBeWhoItSays(t *testing.T) {
	port, ca := newTLSServer(t)
	for _, c := range []struct {
		claim, host, ca string
		ok              bool
	}{
		{"the server by our authority", "127.0.0.1", ca, true},
		{"the server by an authority that is not ours", "127.0.0.1", "", false},
		{"another name", "localhost", ca, false},
	} {
		store, err := valkey.New(valkey.Config{URL: fmt.Sprintf("rediss://%s:%d", c.host, port), CAFile: c.ca, Timeout: 5 * time.Second}, valkey.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Spend(t.Context(), dpop.Holder{}, proof(c.claim), time.Now().Add(time.Minute)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
		store.Close()
	}
}

func TestAMalformedConfigurationIsRefused(t *testing.T) {
	good := valkey.Config{URL: "rediss://valkey.test:6379/0"}
	for claim, change := range map[string]func(*valkey.Config){
		"TLS to a name":             func(*valkey.Config) {},
		"plain text to loopback":    func(c *valkey.Config) { c.URL = "redis://127.0.0.1:6379" },
		"plain text to loopback, 6": func(c *valkey.Config) { c.URL = "redis://[::1]:6379/3" },
		"a socket":                  func(c *valkey.Config) { c.URL = "unix:///run/valkey.sock" },
		"the longest timeout":       func(c *valkey.Config) { c.Timeout = 5 * time.Second },
		"deny":                      func(c *valkey.Config) { c.WhenDown = "deny" },
		"local":                     func(c *valkey.Config) { c.WhenDown = "local" },
	} {
		config := good
		change(&config)
		if err := config.Check(); err != nil {
			t.Errorf("%s: %v", claim, err)
		}
	}
	hollow := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(hollow, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	for claim, change := range map[string]func(*valkey.Config){
		"no URL":                       func(c *valkey.Config) { c.URL = "" },
		"another scheme":               func(c *valkey.Config) { c.URL = "https://valkey.test" },
		"plain text to a name":         func(c *valkey.Config) { c.URL = "redis://localhost:6379" },
		"plain text over a network":    func(c *valkey.Config) { c.URL = "redis://10.0.0.1:6379" },
		"a password in the URL":        func(c *valkey.Config) { c.URL = "rediss://:sesame@valkey.test:6379" },
		"options in the URL":           func(c *valkey.Config) { c.URL = "rediss://valkey.test:6379?skip_verify=true" },
		"a fragment in the URL":        func(c *valkey.Config) { c.URL = "rediss://valkey.test:6379#a" },
		"TLS to nobody":                func(c *valkey.Config) { c.URL = "rediss:///0" },
		"a socket of another host":     func(c *valkey.Config) { c.URL = "unix://valkey.test/run/valkey.sock" },
		"a socket by a relative path":  func(c *valkey.Config) { c.URL = "unix:valkey.sock" },
		"a timeout a little too long":  func(c *valkey.Config) { c.Timeout = 5*time.Second + 1 },
		"authorities that are none":    func(c *valkey.Config) { c.CAFile = hollow },
		"no such database":             func(c *valkey.Config) { c.URL = "rediss://valkey.test:6379/x" },
		"a timeout of minutes":         func(c *valkey.Config) { c.Timeout = time.Minute },
		"a negative timeout":           func(c *valkey.Config) { c.Timeout = -1 },
		"another mode":                 func(c *valkey.Config) { c.WhenDown = "allow" },
		"a password that is not there": func(c *valkey.Config) { c.PasswordFile = "/nonexistent" },
		"authorities not there":        func(c *valkey.Config) { c.CAFile = "/nonexistent" },
	} {
		config := good
		change(&config)
		if _, err := valkey.New(config, valkey.Options{}); err == nil {
			t.Errorf("%s was accepted", claim)
		}
	}
}
