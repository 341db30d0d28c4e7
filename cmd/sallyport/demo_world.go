package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/sallyport-ai/sallyport/audit/durable"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/sim"
)

// The size of the demonstration.
const (
	demoModel     = "small"
	demoDomain    = "demo.sallyport"
	demoReplicas  = 2   // in each pool
	demoBlocks    = 512 // of cache in each engine
	demoBlockSize = 16
	demoRegion    = "eu-1" // where all of it is, by the policy's data too
)

var demoPools = []string{"general", "agents", "restricted"}

func poolPrefix(pool string) string { return "spiffe://" + demoDomain + "/pool/" + pool + "/" }

// demoWorld is everything that the demo runs. The gateway and the relays are
// what serve and relay run, built from configuration files that stay in dir;
// only the engines, the SPIFFE authority and the token issuer are stand-ins.
type demoWorld struct {
	dir      string
	warnings *slog.Logger // that the authorities are not real
	logger   *slog.Logger // of everything else; the impostor and the killed replica are meant to be
	web      workload.WebFiles
	url      string
	adminURL string
	logDir   string
	logKey   string // the verifier key, as pinned
	log      demoLog
	tokenDir string
	tokens   map[string]string // by name
	client   *http.Client
	gateway  *gatewayProcess

	authority *workload.Authority
	issuer    *oidc.DevIssuer
	group     errgroup.Group
	cancel    context.CancelFunc
	replicas  map[string]*demoReplica // by SPIFFE ID
	closers   []func() error
	stopped   bool
	toured    time.Time // when the tour was over
	ended     time.Time // when all of it was
}

// demoReplica is one engine with its relay.
type demoReplica struct {
	pool    string
	log     demoLog // of the tickets that the relay serves; the impostor's keeps none
	address string
	cancel  context.CancelFunc
	done    chan struct{} // closed when both have ended
}

func newDemoWorld(ctx context.Context, o demoOptions, warnings, logger *slog.Logger) (_ *demoWorld, err error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &demoWorld{
		dir: o.dir, warnings: warnings, logger: logger, cancel: cancel, replicas: make(map[string]*demoReplica), tokens: make(map[string]string),
		logDir: filepath.Join(o.dir, "audit"), logKey: filepath.Join(o.dir, "audit.key.pub"), tokenDir: filepath.Join(o.dir, "tokens"),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	for _, step := range []func(context.Context, demoOptions) error{
		w.makeAuthorities, w.writeFiles, w.mintTokens, w.startReplicas, w.startGateway, w.waitForReplicas,
	} {
		if err := step(ctx, o); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *demoWorld) makeAuthorities(context.Context, demoOptions) (err error) {
	w.authority, err = workload.NewAuthority(workload.AuthorityConfig{
		TrustDomain: spiffeid.RequireTrustDomainFromString(demoDomain), TTL: time.Hour, Dir: filepath.Join(w.dir, "ca"),
		Environment: "demo", Logger: w.warnings,
	})
	if err != nil {
		return err
	}
	w.closers = append(w.closers, func() error { w.authority.Close(); return nil })
	if w.web, err = w.authority.ServerCertificate([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}); err != nil {
		return err
	}
	if w.issuer, err = oidc.NewDevIssuer(oidc.DevConfig{Environment: "demo", Logger: w.warnings}); err != nil {
		return err
	}
	w.closers = append(w.closers, w.issuer.Close)
	return nil
}

// writeFiles lays out what an operator would: a policy bundle, a model
// directory and the key of the log.
func (w *demoWorld) writeFiles(context.Context, demoOptions) error {
	data, err := policies.Demo()
	if err != nil {
		return err
	}
	if err := policy.Write(filepath.Join(w.dir, "policy"), []fs.FS{policies.FS, data}); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(w.dir, "model"), prompt.Small()); err != nil {
		return err
	}
	w.log, err = w.newLog("gateway", "audit", "audit.key")
	return err
}

// demoCallers are the people and programs of the demonstration.
var demoCallers = map[string]map[string]any{
	"acme-user":    {"sub": "alice@acme.example", "tenant": "acme", "groups": []string{"staff"}},
	"acme-agent":   {"sub": "acme-agent", "tenant": "acme", "client_id": "acme-agent"},
	"acme-rag":     {"sub": "acme-rag", "tenant": "acme", "client_id": "acme-rag"},
	"globex-user":  {"sub": "bob@globex.example", "tenant": "globex"},
	"initech-user": {"sub": "peter@initech.example", "tenant": "initech"},
}

const (
	demoAudience  = "sallyport"
	demoTokenLife = 12 * time.Hour // a demonstration may serve all day
)

func (w *demoWorld) mintTokens(context.Context, demoOptions) error {
	if err := os.MkdirAll(w.tokenDir, 0o700); err != nil {
		return err
	}
	for name, claims := range demoCallers {
		claims["aud"], claims["exp"] = demoAudience, time.Now().Add(demoTokenLife).Unix()
		token, err := w.issuer.Mint(claims)
		if err != nil {
			return err
		}
		w.tokens[name] = token
		if err := os.WriteFile(filepath.Join(w.tokenDir, name), []byte(token), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startReplicas starts two engines with their relays in each pool, and one more
// at an address of the pool general that proves another identity.
func (w *demoWorld) startReplicas(ctx context.Context, _ demoOptions) error {
	for _, pool := range demoPools {
		for i := range demoReplicas {
			id := fmt.Sprintf("%sr%d", poolPrefix(pool), i)
			if err := w.startReplica(ctx, id, pool); err != nil {
				return fmt.Errorf("replica %s: %w", id, err)
			}
		}
	}
	impostor := "spiffe://" + demoDomain + "/elsewhere/impostor"
	if err := w.startReplica(ctx, impostor, "general"); err != nil {
		return fmt.Errorf("impostor: %w", err)
	}
	return nil
}

func (w *demoWorld) startReplica(ctx context.Context, id, pool string) error {
	name := strings.ReplaceAll(strings.TrimPrefix(id, "spiffe://"+demoDomain+"/"), "/", "-")
	model, err := prompt.Load(filepath.Join(w.dir, "model"))
	if err != nil {
		return err
	}
	events := "ipc://" + filepath.Join(w.dir, name+".ev")
	engine, err := sim.New(sim.Config{
		Listen: "127.0.0.1:0", Model: demoModel, Prompt: model, Blocks: demoBlocks, BlockSize: demoBlockSize,
		Events: events, Replay: "ipc://" + filepath.Join(w.dir, name+".rp"), Logger: w.logger,
	})
	if err != nil {
		return err
	}
	socket, err := w.authority.Socket(spiffeid.RequireFromString(id))
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	file := filepath.Join(w.dir, name+".yaml")
	r := &demoReplica{pool: pool, done: make(chan struct{})}
	section := map[string]any{}
	if strings.HasPrefix(id, poolPrefix(pool)) {
		if r.log, err = w.newLog("relay/"+name, name+".tickets", name+".key"); err != nil {
			return errors.Join(err, engine.Close())
		}
		section = map[string]any{"dir": name + ".tickets", "key_file": name + ".key"}
	}
	err = writeYAML(file, map[string]any{
		"environment": "demo",
		"log":         section,
		"listen":      map[string]any{"address": "127.0.0.1:0"},
		"identity":    map[string]any{"workload_socket": socket},
		"engine": map[string]any{
			"url": engine.URL(), "kind": "vllm",
			"events": map[string]any{"endpoint": engine.EventsEndpoint(), "replay": engine.ReplayEndpoint(), "mode": "connect"},
		},
		"pool":     pool,
		"gateways": []any{map[string]any{"id": demoGatewayID}},
	})
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	cfg, err := loadRelay(file)
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	r.cancel = cancel
	var both errgroup.Group
	both.Go(func() error { return engine.Run(ctx) })
	relay, err := buildRelay(ctx, cfg, w.logger.With("replica", id))
	if err != nil {
		cancel()
		return errors.Join(err, both.Wait())
	}
	both.Go(func() error { return relay.run(ctx) })
	r.address = relay.relay.Addr()
	w.replicas[id] = r
	w.group.Go(func() error {
		defer close(r.done)
		return both.Wait()
	})
	return nil
}

const demoGatewayID = "spiffe://" + demoDomain + "/gateway"

// startGateway writes the configuration file that an operator would write, and
// starts what it describes.
func (w *demoWorld) startGateway(ctx context.Context, o demoOptions) error {
	socket, err := w.authority.Socket(spiffeid.RequireFromString(demoGatewayID))
	if err != nil {
		return err
	}
	issuer := w.issuer.Config(demoAudience)
	file := filepath.Join(w.dir, "sallyport.yaml")
	err = writeYAML(file, map[string]any{
		"environment": "demo",
		"listen":      map[string]any{"address": o.listen, "cert_file": w.web.Cert, "key_file": w.web.Key, "client_svid": true},
		"admin":       map[string]any{"address": o.admin},
		"region":      demoRegion,
		"identity": map[string]any{
			"workload_socket": socket,
			"issuers": []any{map[string]any{
				"url": issuer.URL, "audience": issuer.Audience, "algorithms": issuer.Algorithms,
				"tenant_claim": issuer.TenantClaim, "jwks_url": issuer.JWKSURL, "max_lifetime": demoTokenLife.String(),
			}},
		},
		// A machine that runs seven engines beside the gateway may be short of
		// time, and late is denied.
		"policy": map[string]any{"bundle": "policy", "timeout": "2s"},
		"models": []any{map[string]any{"name": demoModel, "dir": "model"}},
		"pools":  w.poolSection(),
		"audit":  map[string]any{"dir": "audit", "key_file": "audit.key", "mac_keys": "secrets/mac", "mode": "strict", "segment": "4MiB"},
	})
	if err != nil {
		return err
	}
	cfg, err := loadGateway(file)
	if err != nil {
		return err
	}
	if w.gateway, err = buildGateway(ctx, cfg, w.logger); err != nil {
		return err
	}
	w.group.Go(func() error { return w.gateway.run(ctx) })
	w.url = "https://" + w.gateway.public.Addr().String()
	w.adminURL = "http://" + w.gateway.admin.Addr().String()
	w.client, err = clientTrusting(w.web.CA)
	return err
}

// poolSection lists each pool's replicas; general also has the impostor's
// address, where r2 is expected.
func (w *demoWorld) poolSection() []any {
	var pools []any
	for _, pool := range demoPools {
		var replicas []any
		for i := range demoReplicas + 1 {
			id := fmt.Sprintf("%sr%d", poolPrefix(pool), i)
			at, ok := w.replicas[id]
			if !ok && pool == "general" {
				at, ok = w.replicas["spiffe://"+demoDomain+"/elsewhere/impostor"]
			}
			if ok {
				replicas = append(replicas, map[string]any{"address": at.address, "id": id})
			}
		}
		pools = append(pools, map[string]any{
			"name": pool, "models": []string{demoModel}, "members": []string{poolPrefix(pool) + "*"}, "replicas": replicas,
		})
	}
	return pools
}

// waitForReplicas waits until every true replica may take requests.
func (w *demoWorld) waitForReplicas(ctx context.Context, _ demoOptions) error {
	want := len(demoPools) * demoReplicas
	return waitFor(ctx, demoWait, "replicas to be ready", func() bool {
		live := 0
		for _, s := range w.gateway.fleet.Replicas() {
			if s.Excluded == "" && s.Stream.Credits() {
				live++
			}
		}
		return live == want
	})
}

// demoWait bounds each wait of the demonstration, on a machine however busy.
const demoWait = 30 * time.Second

func waitFor(ctx context.Context, most time.Duration, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if ok() {
			tick.Stop()
			return nil
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// kill ends a replica, engine and relay, without a goodbye.
func (w *demoWorld) kill(id string) error {
	r, ok := w.replicas[id]
	if !ok {
		return fmt.Errorf("no replica %q to kill", id)
	}
	r.cancel()
	<-r.done
	r.log.until = time.Now()
	return nil
}

// stop ends everything, the gateway first, and is safe to call twice.
func (w *demoWorld) stop() error {
	if w.stopped {
		return nil
	}
	w.stopped = true
	w.cancel()
	errs := []error{w.group.Wait()}
	if w.gateway != nil {
		w.ended = time.Now()
		errs = append(errs, w.writeRegister())
	}
	for i := len(w.closers) - 1; i >= 0; i-- {
		errs = append(errs, w.closers[i]())
	}
	return errors.Join(errs...)
}

func writeYAML(path string, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// In one step: whoever follows the file never reads half of it.
	return durable.Replace(path, b)
}
