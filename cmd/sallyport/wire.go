package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/audit/mackey"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/apikey"
	"github.com/sallyport-ai/sallyport/identity/dpop"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/svid"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/relay"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// gatewayProcess is everything that one `sallyport serve` runs. close undoes
// what building it opened, last first.
type gatewayProcess struct {
	gateway  *gateway.Gateway
	policy   *policy.Engine
	fleet    *fleet.Fleet
	doubts   *doubts
	source   *workload.Source
	upstream *upstream.Client
	shared   *shared        // with other gateways
	proofs   *dpop.Verifier // nil: DPoP is not taken
	live     atomic.Pointer[live]
	cfg      gatewayConfig  // as applied last; owned by follow once run has begun
	found    []fleet.Target // as applied last, likewise
	log      *tlog.Log
	public   net.Listener
	admin    net.Listener // nil: none
	servers  []*http.Server
	draining atomic.Bool
	patience time.Duration // while draining
	grace    time.Duration // once the log takes no decisions
	mode     audit.Durability
	denials  *audit.Denials
	exports  *export.Exporter
	logger   *slog.Logger
	closers  []func() error
}

// buildGateway makes a gateway from its configuration: the one place that knows
// which part is plugged into which. A new authenticator is one line here.
func buildGateway(ctx context.Context, cfg gatewayConfig, logger *slog.Logger) (_ *gatewayProcess, err error) {
	p := &gatewayProcess{logger: logger, cfg: cfg, patience: cmp.Or(cfg.Limits.Drain, drainTime), grace: cmp.Or(cfg.Audit.Grace, logGrace), mode: audit.Durability(cfg.Audit.Mode)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()

	// Who we are.
	sc, err := sourceConfig(cfg.Identity.WorkloadSocket, cfg.Identity.Federation)
	if err != nil {
		return nil, err
	}
	sc.JWTBundles, sc.Logger = cfg.Identity.JWTSVID.Audience != "", logger
	source, err := workload.NewSource(ctx, sc)
	if err != nil {
		return nil, err
	}
	p.onClose(source.Close)
	p.source = source
	if err := membersKnown(cfg.Pools, source); err != nil {
		return nil, err
	}

	// What is written down.
	key, err := tlog.ReadKeyFile(cfg.Audit.KeyFile)
	if err != nil {
		return nil, err
	}
	p.log, err = tlog.Open(tlog.Config{
		Dir: cfg.Audit.Dir, Dir2: cfg.Audit.Dir2, Key: key, Boot: selfOf(cfg, source), SegmentBytes: int64(cfg.Audit.Segment),
		Witnesses: cfg.Audit.Witnesses, Retention: cfg.Audit.Retention, Needed: stillNeeded(cfg.Audit), Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	p.onClose(p.log.Close)
	p.denials = audit.NewDenials(p.log, 0)
	p.exports, err = export.New(ctx, export.Config{
		Dir: cfg.Audit.Dir, Origin: key.Name(), Sinks: cfg.Audit.Export, Log: p.log,
		Head: func() uint64 { return p.log.Head().Size }, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	p.onClose(p.exports.Close)
	signer, err := ticket.NewSigner(key.Name(), key.Sign)
	if err != nil {
		return nil, err
	}

	// What callers may: policy, never older than what the log has seen.
	pc := policyConfigOf(cfg, logger)
	pc.Archive = policyArchive(cfg.Audit.Dir)
	if pc.MinRevision, err = lastRevision(cfg.Audit.Dir); err != nil {
		return nil, err
	}
	rules, err := policy.Load(ctx, pc)
	if err != nil {
		return nil, err
	}
	if err := recordActivation(ctx, p.log, rules.Activation()); err != nil {
		return nil, err
	}
	p.policy = rules

	// Where it may run.
	if p.found, err = p.targets(ctx, cfg); err != nil {
		logger.Warn("not all replicas found; looking again soon", "error", err)
	}
	fc := fleetConfig(p.found, source, key.VerifierKey(), logger)
	p.doubts = newDoubts(p.log, logger)
	fc.Notify = p.doubts.notify
	if p.fleet, err = fleet.New(fc); err != nil {
		return nil, err
	}
	p.upstream, err = upstream.New(upstream.Config{
		Own: source, DialTimeout: cfg.Limits.Connect, HeaderTimeout: cfg.Limits.FirstToken, IdleTimeout: cfg.Limits.Idle,
	})
	if err != nil {
		return nil, err
	}
	p.onClose(func() error { p.upstream.Close(); return nil })

	// How it is watched.
	watched, err := newTelemetry(ctx, cfg.Telemetry, key.Name(), logger)
	if err != nil {
		return nil, err
	}
	p.onClose(watched.close)

	macs, err := mackey.Open(cfg.Audit.MACKeys)
	if err != nil {
		return nil, err
	}
	secret, err := sharedSecret(cfg.Identity.SecretFile)
	if err != nil {
		return nil, err
	}
	// Who may call, and all else that can change while serving.
	p.shared, err = newShared(ctx, cfg.Identity, p.log, logger, func() { p.gateway.Reauthenticate() })
	if err != nil {
		return nil, err
	}
	p.onClose(p.shared.close)
	if p.proofs, err = dpopProofs(cfg, secret, p.shared.spend); err != nil {
		return nil, err
	}
	first, err := p.buildLive(ctx, cfg)
	if err != nil {
		return nil, err
	}
	p.live.Store(first)
	p.onClose(func() error { p.live.Load().close(); return nil })
	p.gateway, err = gateway.New(gateway.Config{
		Live: first.Live, Policy: rules, Fleet: p.fleet, Upstream: p.upstream, Tickets: signer,
		Log: p.log, Denials: p.denials, Quotas: audit.NewQuotas(int64(cmp.Or(cfg.Audit.Quota, logQuota))), Meter: watched.meters, Tracer: watched.spans, Region: cfg.Region,
		Ready:     p.ready,
		PromptMAC: macs.MAC,
		Secret:    secret, TrustTraceparent: cfg.Telemetry.TrustTraceparent,
		Durability: p.mode,
		Total:      cfg.Limits.Total, CountTimeout: cfg.Limits.Count,
		NotifyPrompt: p.doubts.notifyPrompt,
		Logger:       logger,
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.watchProcess(watched.meters), watchExports(watched.meters, p.exports)); err != nil {
		return nil, err
	}
	return p, p.listen(cfg, source, watched.page)
}

// stillNeeded says, for a log that is exported, from where on some sink has not
// got it yet.
func stillNeeded(cfg auditConfig) func() uint64 {
	if len(cfg.Export) == 0 {
		return nil
	}
	return func() uint64 {
		cursors, err := export.Cursors(cfg.Dir)
		if err != nil {
			return 0
		}
		least, found := uint64(0), 0
		for _, c := range cursors {
			if !slices.ContainsFunc(cfg.Export, func(s export.SinkConfig) bool { return s.Name == c.Sink }) {
				continue
			}
			if found++; found == 1 || c.Needs() < least {
				least = c.Needs()
			}
		}
		if found < len(cfg.Export) {
			return 0 // one has not begun
		}
		return least
	}
}

// live is what a reload replaces, with what it must close afterwards.
type live struct {
	gateway.Live
	tokens *oidc.Verifier
}

// buildLive makes the part of a gateway that can change while it serves. A new
// kind of credential is one line here.
func (p *gatewayProcess) buildLive(ctx context.Context, cfg gatewayConfig) (*live, error) {
	source, logger := p.source, p.logger
	var chain identity.Chain
	var err error
	if p.proofs != nil {
		chain.Proofs = p.proofs.Judge
	}
	if p.shared.register != nil {
		chain.Revoked = p.shared.register.Check
	}
	if cfg.Listen.ClientSVID {
		if chain.Connection, err = svid.Authenticator(svid.Config{Bundles: source, Foreign: cfg.Listen.ClientBinding}); err != nil {
			return nil, err
		}
	}
	prompts, err := loadPrompts(cfg.Models, logger)
	if err != nil {
		return nil, err
	}
	// The first that finds its own kind decides. OIDC takes every JWT for its
	// own, so JWT-SVIDs, which are told by their subject, come before it.
	if cfg.Identity.JWTSVID.Audience != "" {
		authenticate, err := jwtSVIDs(cfg.Identity, source)
		if err != nil {
			return nil, err
		}
		chain.Request = append(chain.Request, authenticate)
	}
	var keys *apikey.Store
	if cfg.Identity.APIKeys.File != "" {
		if keys, err = apiKeys(cfg.Identity.APIKeys, logger); err != nil {
			return nil, err
		}
	}
	tokens, err := oidc.New(ctx, cfg.Identity.Issuers, oidc.Options{Logger: logger})
	if err != nil {
		return nil, err
	}
	chain.Request = append(chain.Request, tokens.Authenticate)
	if keys != nil {
		chain.Request = append(chain.Request, keys.Authenticate)
	}
	return &live{
		Live: gateway.Live{
			Self: selfOf(cfg, source), Identity: chain, Prompts: prompts,
			Resource: resourceOf(cfg, p.proofs),
			Limits:   wire.Limits{BodyBytes: int(cfg.Limits.BodyBytes), Depth: cfg.Limits.JSONDepth},

			InflightBytes: int64(cfg.Limits.InflightBytes),
		},
		tokens: tokens,
	}, nil
}

// jwtSVIDs admits the workloads that client certificates do. A source that does
// not follow JWT keys cannot be made to by a reload.
func jwtSVIDs(cfg identityConfig, source *workload.Source) (identity.Authenticator, error) {
	if _, err := source.GetJWTBundleForTrustDomain(source.TrustDomain()); err != nil {
		return nil, fmt.Errorf("identity.jwt_svid: %w", err)
	}
	admit, err := callers(source.TrustDomain(), cfg.Federation)
	if err != nil {
		return nil, err
	}
	return svid.JWTAuthenticator(svid.JWTConfig{Bundles: source, Audience: cfg.JWTSVID.Audience, Authorize: admit})
}

func apiKeys(cfg apiKeysConfig, logger *slog.Logger) (*apikey.Store, error) {
	return apikey.New(apikey.Config{File: cfg.File, PepperFile: cfg.PepperFile, Logger: logger})
}

func (l *live) ready() error { return l.tokens.Ready() }

func (l *live) close() { l.tokens.Close() }

// listen binds the listeners, so that their addresses are known before run.
func (p *gatewayProcess) listen(cfg gatewayConfig, source *workload.Source, metrics http.Handler) error {
	certificate, err := workload.FileCertificate(cfg.Listen.CertFile, cfg.Listen.KeyFile)
	if err != nil {
		return err
	}
	tlsConfig := &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	var admit workload.Authorizer
	if cfg.Listen.ClientSVID {
		if admit, err = callers(source.TrustDomain(), cfg.Identity.Federation); err != nil {
			return err
		}
	}
	switch {
	case cfg.Listen.ClientSVID && cfg.Listen.ClientBinding:
		tlsConfig = workload.AnyClientConfig(certificate, source, admit)
	case cfg.Listen.ClientSVID:
		tlsConfig = workload.OptionalClientConfig(certificate, source, admit)
	case cfg.Listen.ClientBinding:
		tlsConfig = workload.AnyClientConfig(certificate, nil, nil)
	}
	tlsConfig.NextProtos = []string{"h2", "http/1.1"}
	tcp, err := net.Listen("tcp", cfg.Listen.Address)
	if err != nil {
		return fmt.Errorf("public listener: %w", err)
	}
	p.public = tls.NewListener(tcp, tlsConfig)
	p.onClose(p.public.Close)
	headerBytes := int(cfg.Limits.HeaderBytes)
	if headerBytes == 0 {
		headerBytes = 64 << 10
	}
	p.servers = append(p.servers, &http.Server{
		Handler: p.gateway.Handler(), MaxHeaderBytes: headerBytes, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second, IdleTimeout: 120 * time.Second,
		ErrorLog: slog.NewLogLogger(p.logger.Handler(), slog.LevelDebug),
	})
	if cfg.Admin.Address == "" {
		return nil
	}
	if p.admin, err = net.Listen("tcp", cfg.Admin.Address); err != nil {
		return fmt.Errorf("admin listener: %w", err)
	}
	p.onClose(p.admin.Close)
	p.servers = append(p.servers, &http.Server{Handler: p.gateway.Admin(metrics), ReadHeaderTimeout: 10 * time.Second})
	return nil
}

func (p *gatewayProcess) onClose(f func() error) { p.closers = append(p.closers, f) }

func (p *gatewayProcess) close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		if err := p.closers[i](); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	p.closers = nil
	return errors.Join(errs...)
}

func policyConfigOf(cfg gatewayConfig, logger *slog.Logger) policy.Config {
	return policy.Config{
		Bundle: cfg.Policy.Bundle, VerifyKeyFile: cfg.Policy.VerifyKeyFile, Shadow: cfg.Policy.Shadow,
		Production: cfg.Environment == "production", Pools: poolNames(cfg), Timeout: cfg.Policy.Timeout, Logger: logger,
	}
}

// policyArchive is where a log keeps the policies that its records name.
func policyArchive(logDir string) string { return filepath.Join(logDir, "policy") }

func fleetConfig(targets []fleet.Target, source *workload.Source, vkey string, logger *slog.Logger) fleet.Config {
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails: crypto/rand aborts the process instead
	return fleet.Config{
		Targets: targets,
		TLS: func(t fleet.Target) (*tls.Config, error) {
			authorize, err := authorizerOf(t)
			if err != nil {
				return nil, err
			}
			return workload.ClientConfig(source, authorize), nil
		},
		PeerID: func(cs tls.ConnectionState) (string, error) {
			id, err := workload.PeerID(cs)
			return id.String(), err
		},
		IdentityError: workload.IsIdentityError,
		BlockKey:      key, KeyID: uuid.NewString(), LogVKey: vkey, Log: logger,
	}
}

func authorizerOf(t fleet.Target) (workload.Authorizer, error) {
	if t.ID != "" {
		id, err := spiffeid.FromString(t.ID)
		if err != nil {
			return nil, fmt.Errorf("replica %s: %w", t.Address, err)
		}
		return workload.ExactID(id), nil
	}
	patterns := make([]workload.Pattern, len(t.Members))
	for i, m := range t.Members {
		p, err := workload.ParsePattern(m)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", t.Pool, err)
		}
		patterns[i] = p
	}
	return workload.AuthorizePatterns(patterns...), nil
}

// selfOf is who records say decided.
func selfOf(cfg gatewayConfig, source *workload.Source) audit.Gateway {
	return audit.Gateway{SPIFFE: source.ID().String(), Build: build(), Config: cfg.digest}
}

func loadPrompts(models []modelConfig, logger *slog.Logger) (map[string]*prompt.Memory, error) {
	out := make(map[string]*prompt.Memory, len(models))
	for _, m := range models {
		loaded, err := m.open()
		if errors.Is(err, prompt.ErrLeftToEngine) {
			logger.Info("prompts are counted by the engines alone", "model", m.Name, "reason", err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
		if err := loaded.CacheErr(); err != nil {
			logger.Warn("tokenizer tables not kept; the next start will be slow", "model", m.Name, "error", err)
		}
		out[m.Name] = prompt.NewMemory(loaded, prompt.MemoryConfig{Bytes: int(m.Memory)})
	}
	return out, nil
}

// open loads the model as its engine was started.
func (m modelConfig) open() (*prompt.Model, error) {
	zone, err := time.LoadLocation(m.Zone)
	if err != nil {
		return nil, fmt.Errorf("zone: %w", err)
	}
	return prompt.Open(prompt.Config{
		Files: os.DirFS(m.Dir), Cache: m.Cache, Zone: zone, TemplateArgs: jsontext.Value(m.TemplateArgs),
	})
}

// sharedSecret reads the secret that a fleet of gateways shares, or makes one
// for this process alone.
func sharedSecret(path string) (secret [32]byte, err error) {
	if path == "" {
		_, _ = rand.Read(secret[:]) // never fails: crypto/rand aborts the process instead
		return secret, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return secret, fmt.Errorf("read shared secret: %w", err)
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(b) != len(secret) {
		return secret, fmt.Errorf("shared secret %s: want 32 bytes in base64", path)
	}
	return [32]byte(b), nil
}

// relayProcess is everything that one `sallyport relay` runs.
type relayProcess struct {
	relay  *relay.Relay
	source *workload.Source
}

func (c relayConfig) relayEngine() relay.Engine {
	return relay.Engine{
		URL: c.Engine.URL, Kind: relay.Kind(c.Engine.Kind), Ranks: c.Engine.Ranks,
		BlockSize: c.Engine.BlockSize, NumBlocks: c.Engine.NumBlocks, CredentialFile: c.Engine.CredentialFile,
		Events: relay.Events{Endpoint: c.Engine.Events.Endpoint, Replay: c.Engine.Events.Replay, Listen: c.Engine.Events.Mode == "listen", FullReports: c.Engine.Events.FullReports},
	}
}

// buildRelay makes a relay from its configuration and binds its listeners.
func buildRelay(ctx context.Context, cfg relayConfig, logger *slog.Logger) (*relayProcess, error) {
	sc, err := sourceConfig(cfg.Identity.WorkloadSocket, cfg.Identity.Federation)
	if err != nil {
		return nil, err
	}
	sc.Logger = logger
	source, err := workload.NewSource(ctx, sc)
	if err != nil {
		return nil, err
	}
	rc := relay.Config{
		Listen: cfg.Listen.Address, Source: source, Pool: cfg.Pool,
		Engine:        cfg.relayEngine(),
		AllowUnpinned: cfg.Environment == "demo",
		SaltKeyFile:   cfg.SaltKeyFile, SaltDomain: cfg.SaltDomain, Drain: cfg.Drain,
		Log:   relay.LogFiles{Dir: cfg.Log.Dir, KeyFile: cfg.Log.KeyFile},
		Admin: relay.Admin(cfg.Admin), Logger: logger,
	}
	for _, g := range cfg.Gateways {
		rc.Gateways = append(rc.Gateways, relay.Gateway{ID: g.ID, LogVKey: g.LogVKey})
	}
	r, err := relay.New(rc)
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	return &relayProcess{relay: r, source: source}, nil
}

// run serves until ctx ends.
func (p *relayProcess) run(ctx context.Context) error {
	return errors.Join(ignoreCancelled(p.relay.Run(ctx)), p.source.Close())
}
