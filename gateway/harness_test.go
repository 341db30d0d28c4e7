package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/svid"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/relay"
	"github.com/sallyport-ai/sallyport/routing/sim"
	"github.com/sallyport-ai/sallyport/routing/ticket"
	"github.com/sallyport-ai/sallyport/test/await"
)

const (
	testDomain   = "demo.sallyport" // as in the data of the demonstration
	testAudience = "sallyport"
	gatewayID    = "spiffe://" + testDomain + "/gateway"
)

// pools are the replicas of the test fleet, by pool.
var pools = map[string]int{"general": 2, "agents": 1, "restricted": 1}

// world is everything around a gateway, made of real parts in this process: a
// SPIFFE authority, an issuer, a log, and engines behind relays. It is made once;
// each test puts a gateway of its own into it.
type world struct {
	far       far
	dir       string
	authority *workload.Authority
	issuer    *oidc.DevIssuer
	tokens    map[string]string // by caller
	chain     identity.Chain
	self      *workload.Source
	show      workload.GetCertificate
	roots     *x509.CertPool
	key       *tlog.Key
	log       *tlog.Log
	logDir    string
	policy    *policy.Engine
	model     *prompt.Model
	fleet     *fleet.Fleet
	replicas  map[string]*replica // by SPIFFE ID
	engine    *script
	marks     atomic.Uint64

	cancel  context.CancelFunc
	running sync.WaitGroup
	closers []func() error
}

// far is what a gateway must know of the parts that are elsewhere in production.
type far struct {
	Socket   string // of the gateway's identity
	Key      string // of the gateway's log; elsewhere only its public half is known
	Issuer   oidc.Config
	Tokens   map[string]string
	Replicas map[string]string // SPIFFE ID to address
}

// replica is one engine behind its relay behind a wire that can be cut.
type replica struct {
	id    string
	relay *relay.Relay
	front *front
}

var theWorld struct {
	sync.Once
	*world
	err error
}

// inWorld returns the one world, and makes it if need be.
func inWorld(tb testing.TB) *world {
	tb.Helper()
	theWorld.Do(func() { theWorld.world, theWorld.err = newWorld() })
	if theWorld.err != nil {
		tb.Fatal(theWorld.err)
	}
	return theWorld.world
}

func TestMain(m *testing.M) {
	if os.Getenv(farProcess) != "" {
		os.Exit(beFar())
	}
	code := m.Run()
	if theWorld.world != nil {
		theWorld.close()
	}
	os.Exit(code)
}

func newWorld() (_ *world, err error) {
	return makeWorld((*world).makeAuthorities, (*world).makeKey, (*world).startReplicas, (*world).makeSelf, (*world).makeLog, (*world).makePolicy, (*world).startFleet)
}

func makeWorld(steps ...func(*world, context.Context) error) (_ *world, err error) {
	dir, err := os.MkdirTemp("", "gw") // short: the path of a socket is limited
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{dir: dir, cancel: cancel, tokens: map[string]string{}, replicas: map[string]*replica{}, engine: newScript()}
	if w.model, err = prompt.LoadFS(prompt.Small()); err != nil {
		cancel()
		return nil, err
	}
	w.far.Tokens, w.far.Replicas = w.tokens, map[string]string{}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for _, step := range steps {
		if err := step(w, ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) close() {
	w.cancel()
	w.running.Wait()
	for i := len(w.closers) - 1; i >= 0; i-- {
		_ = w.closers[i]()
	}
	_ = os.RemoveAll(w.dir)
}

func (w *world) onClose(f func() error) { w.closers = append(w.closers, f) }

// callers are the claims of those who have tokens.
var callers = map[string]map[string]any{
	"acme":    {"sub": "alice@acme.example", "tenant": "acme"},
	"carol":   {"sub": "carol@acme.example", "tenant": "acme"},
	"agent":   {"sub": "acme-agent", "tenant": "acme", "client_id": "acme-agent"},
	"rag":     {"sub": "acme-rag", "tenant": "acme", "client_id": "acme-rag"},
	"globex":  {"sub": "bob@globex.example", "tenant": "globex"},
	"initech": {"sub": "peter@initech.example", "tenant": "initech"},
	"expired": {"sub": "alice@acme.example", "tenant": "acme", "iat": 1700000000, "exp": 1700003600},
}

func (w *world) makeAuthorities(context.Context) (err error) {
	w.authority, err = workload.NewAuthority(workload.AuthorityConfig{
		TrustDomain: spiffeid.RequireTrustDomainFromString(testDomain), Dir: filepath.Join(w.dir, "ca"),
		Environment: "test", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	w.onClose(func() error { w.authority.Close(); return nil })
	if w.far.Socket, err = w.authority.Socket(spiffeid.RequireFromString(gatewayID)); err != nil {
		return err
	}
	web, err := w.authority.ServerCertificate([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	if w.show, err = workload.FileCertificate(web.Cert, web.Key); err != nil {
		return err
	}
	ca, err := os.ReadFile(web.CA)
	if err != nil {
		return err
	}
	w.roots = x509.NewCertPool()
	w.roots.AppendCertsFromPEM(ca)

	if w.issuer, err = oidc.NewDevIssuer(oidc.DevConfig{Environment: "test", Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	w.onClose(w.issuer.Close)
	w.far.Issuer = w.issuer.Config(testAudience)
	for name, claims := range callers {
		if w.tokens[name], err = w.mint(claims); err != nil {
			return err
		}
	}
	return nil
}

// makeSelf gets the gateway's own identity and the means to know its callers.
func (w *world) makeSelf(ctx context.Context) (err error) {
	if w.self, err = workload.NewSource(ctx, workload.SourceConfig{Socket: w.far.Socket}); err != nil {
		return err
	}
	w.onClose(w.self.Close)
	verifier, err := oidc.New(ctx, []oidc.Config{w.far.Issuer}, oidc.Options{})
	if err != nil {
		return err
	}
	w.onClose(func() error { verifier.Close(); return nil })
	w.chain.Request = []identity.Authenticator{verifier.Authenticate}
	w.chain.Connection, err = svid.Authenticator(svid.Config{Bundles: w.self})
	return err
}

// mint makes a token for our audience.
func (w *world) mint(claims map[string]any) (string, error) {
	claims = maps.Clone(claims)
	claims["aud"] = testAudience
	return w.issuer.Mint(claims)
}

// source is the identity of the workload at path.
func (w *world) source(ctx context.Context, path string) (*workload.Source, error) {
	socket, err := w.authority.Socket(spiffeid.RequireFromString("spiffe://" + testDomain + path))
	if err != nil {
		return nil, err
	}
	s, err := workload.NewSource(ctx, workload.SourceConfig{Socket: socket})
	if err != nil {
		return nil, err
	}
	w.onClose(s.Close)
	return s, nil
}

func (w *world) makeKey(context.Context) (err error) {
	w.far.Key, _, err = tlog.GenerateKey(testDomain + "/gateway")
	return err
}

func (w *world) makeLog(context.Context) (err error) {
	if w.key, err = tlog.ParseKey(w.far.Key); err != nil {
		return err
	}
	w.logDir = filepath.Join(w.dir, "audit")
	w.log, err = tlog.Open(tlog.Config{Dir: w.logDir, Key: w.key, Boot: audit.Gateway{SPIFFE: w.self.ID().String()}, SegmentBytes: 1 << 20})
	if err != nil {
		return err
	}
	w.onClose(w.log.Close)
	return nil
}

func (w *world) makePolicy(ctx context.Context) (err error) {
	w.policy, err = loadPolicy(ctx)
	return err
}

// loadPolicy loads what ships with the data of the demonstration and then layers.
// Time does not deny here: the machine that runs the tests may be busy.
func loadPolicy(ctx context.Context, layers ...fs.FS) (*policy.Engine, error) {
	data, err := policies.Demo()
	if err != nil {
		return nil, err
	}
	return policy.Load(ctx, policy.Config{Layers: append([]fs.FS{policies.FS, data}, layers...), Timeout: 5 * time.Second})
}

func (w *world) startReplicas(ctx context.Context) error {
	key, err := tlog.ParseKey(w.far.Key)
	if err != nil {
		return err
	}
	pinned := relay.Gateway{ID: gatewayID, LogVKey: key.VerifierKey()}
	for pool, n := range pools {
		for i := range n {
			if err := w.startReplica(ctx, pool, fmt.Sprintf("r%d", i), pinned); err != nil {
				return fmt.Errorf("replica %d of %s: %w", i, pool, err)
			}
		}
	}
	return nil
}

// fast is the timing of engines that take no time.
var fast = sim.Timing{Step: time.Nanosecond, Prefill: time.Nanosecond, Decode: time.Nanosecond}

func (w *world) startReplica(ctx context.Context, pool, name string, gateway relay.Gateway) error {
	source, err := w.source(ctx, "/pool/"+pool+"/"+name)
	if err != nil {
		return err
	}
	events := "ipc://" + filepath.Join(w.dir, pool+name)
	engine, err := sim.New(sim.Config{
		Listen: "127.0.0.1:0", Model: "small", Adapters: []string{"small-legal-v3"}, Prompt: w.model, Blocks: 2048, Timing: fast, Events: events, Replay: events + "r",
	})
	if err != nil {
		return err
	}
	w.running.Go(func() { _ = engine.Run(ctx) })
	id := source.ID().String()
	scripted, err := w.engine.before(id, engine.URL())
	if err != nil {
		return err
	}
	w.onClose(func() error { scripted.CloseClientConnections(); scripted.Close(); return nil })
	r, err := relay.New(relay.Config{
		Listen: "127.0.0.1:0", Source: source, Pool: pool,
		Engine:   relay.Engine{URL: scripted.URL, Kind: relay.VLLM, Events: relay.Events{Endpoint: engine.EventsEndpoint(), Replay: engine.ReplayEndpoint()}},
		Gateways: []relay.Gateway{gateway},
	})
	if err != nil {
		return err
	}
	w.running.Go(func() { _ = r.Run(ctx) })
	f, err := newFront(r.Addr())
	if err != nil {
		return err
	}
	w.onClose(f.close)
	w.replicas[id], w.far.Replicas[id] = &replica{id: id, relay: r, front: f}, f.address()
	return nil
}

func (w *world) startFleet(ctx context.Context) (err error) {
	if w.fleet, err = fleet.New(w.fleetConfig()); err != nil {
		return err
	}
	w.running.Go(func() { _ = w.fleet.Run(ctx) })
	if !await.Within(await.Limit, w.whole) {
		return fmt.Errorf("replicas did not become ready: %+v", w.fleet.Replicas())
	}
	return nil
}

// fleetConfig is that of a fleet of all replicas.
func (w *world) fleetConfig() fleet.Config {
	cfg := fleet.Config{
		TLS: func(t fleet.Target) (*tls.Config, error) {
			return workload.ClientConfig(w.self, workload.ExactID(spiffeid.RequireFromString(t.ID))), nil
		},
		PeerID: func(cs tls.ConnectionState) (string, error) {
			id, err := workload.PeerID(cs)
			return id.String(), err
		},
		// Engines fail here far more often than they answer.
		ErrorsInRow:   1 << 30,
		IdentityError: workload.IsIdentityError, KeyID: "test", LogVKey: w.key.VerifierKey(),
	}
	_, _ = rand.Read(cfg.BlockKey[:])
	for id, address := range w.far.Replicas {
		pool := strings.Split(strings.TrimPrefix(id, "spiffe://"+testDomain+"/pool/"), "/")[0]
		cfg.Targets = append(cfg.Targets, fleet.Target{Address: address, ID: id, Pool: pool, Region: "eu-1", Models: []string{"small"}})
	}
	return cfg
}

// whole says whether every replica may take chat requests.
func (w *world) whole() bool { return ready(w.fleet) }

// ready is whole of another fleet.
func ready(f *fleet.Fleet) bool {
	for _, s := range f.Replicas() {
		if s.Excluded != "" || len(s.Routes) == 0 || !s.Stream.Credits() {
			return false
		}
	}
	return true
}

// config is that of a gateway of this world.
func (w *world) config() (Config, error) {
	signer, err := ticket.NewSigner(w.key.Name(), w.key.Sign)
	if err != nil {
		return Config{}, err
	}
	sender, err := upstream.New(upstream.Config{Own: w.self})
	if err != nil {
		return Config{}, err
	}
	cfg := Config{
		Live: Live{
			Self:     audit.Gateway{SPIFFE: w.self.ID().String(), Build: "test"},
			Identity: w.chain, Prompts: map[string]*prompt.Memory{"small": prompt.NewMemory(w.model, prompt.MemoryConfig{})},
		},
		Policy: w.policy, Fleet: w.fleet, Upstream: sender, Tickets: signer, Log: w.log,
		Meter: noop.NewMeterProvider(), Region: "eu-1",
		PromptMAC: func(tenant string, at time.Time, prompt []byte) (string, error) {
			return fmt.Sprintf("%s %s %x", tenant, at.UTC().Format("2006-01"), sha256.Sum256(prompt)), nil
		},
		Ready: func() error { return errors.Join(w.self.Ready(), w.log.Err()) },
		// A busy disk must not fail a test that is not about it.
		AppendTimeout: 5 * time.Second,
	}
	_, _ = rand.Read(cfg.Secret[:])
	return cfg, nil
}
