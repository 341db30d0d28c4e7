package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/audit/mackey"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/identity/dpop"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// gatewayProcess is everything that one `sallyport serve` runs. close undoes
// what building it opened, last first.
type gatewayProcess struct {
	gateway  *gateway.Gateway
	policy   *policy.Engine
	fleet    *fleet.Fleet
	doubts   *doubts
	members  *members
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
	archive  *archivist
	logger   *slog.Logger
	closers  []func() error
}

// buildGateway makes a gateway from its configuration: the one place that knows
// which part is plugged into which, and in which order.
func buildGateway(ctx context.Context, cfg gatewayConfig, logger *slog.Logger) (_ *gatewayProcess, err error) {
	p := &gatewayProcess{logger: logger, cfg: cfg, archive: newArchivist(), patience: cmp.Or(cfg.Limits.Drain, drainTime), grace: cmp.Or(cfg.Audit.Grace, logGrace), mode: audit.Durability(cfg.Audit.Mode)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := p.identify(ctx, cfg); err != nil {
		return nil, err
	}
	key, err := tlog.ReadKeyFile(cfg.Audit.KeyFile)
	if err != nil {
		return nil, err
	}
	if err := p.openLog(ctx, cfg, key); err != nil {
		return nil, err
	}
	if err := p.loadPolicy(ctx, cfg); err != nil {
		return nil, err
	}
	if err := p.reachReplicas(ctx, cfg, key); err != nil {
		return nil, err
	}
	watched, err := newTelemetry(ctx, cfg.Telemetry, key.Name(), logger)
	if err != nil {
		return nil, err
	}
	p.onClose(watched.close)
	secret, err := sharedSecret(cfg.Identity.SecretFile)
	if err != nil {
		return nil, err
	}
	if err := p.admitCallers(ctx, cfg, secret); err != nil {
		return nil, err
	}
	if err := p.assemble(cfg, key, secret, watched); err != nil {
		return nil, err
	}
	if err := errors.Join(p.watchProcess(watched.meters), watchExports(watched.meters, p.exports)); err != nil {
		return nil, err
	}
	return p, p.listen(cfg, p.source, watched.page)
}

// identify gets who we are.
func (p *gatewayProcess) identify(ctx context.Context, cfg gatewayConfig) error {
	sc, err := sourceConfig(cfg.Identity.WorkloadSocket, cfg.Identity.Federation)
	if err != nil {
		return err
	}
	sc.JWTBundles, sc.Logger = cfg.Identity.JWTSVID.Audience != "", p.logger
	if p.source, err = workload.NewSource(ctx, sc); err != nil {
		return err
	}
	p.onClose(p.source.Close)
	return membersKnown(cfg.Pools, p.source)
}

// openLog opens what everything is written down in, and what follows it.
func (p *gatewayProcess) openLog(ctx context.Context, cfg gatewayConfig, key *tlog.Key) (err error) {
	p.log, err = tlog.Open(tlog.Config{
		Dir: cfg.Audit.Dir, Dir2: cfg.Audit.Dir2, Key: key, Boot: selfOf(cfg, p.source), SegmentBytes: int64(cfg.Audit.Segment),
		Witnesses: cfg.Audit.Witnesses, Retention: cfg.Audit.Retention, Needed: stillNeeded(cfg.Audit), Pruned: p.archive.wake, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.onClose(p.log.Close)
	p.denials = audit.NewDenials(p.log, 0)
	p.exports, err = export.New(ctx, export.Config{
		Dir: cfg.Audit.Dir, Origin: key.Name(), Sinks: cfg.Audit.Export, Log: p.log,
		Head: func() uint64 { return p.log.Head().Size }, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.onClose(p.exports.Close)
	return nil
}

// loadPolicy loads what callers may, never older than what the log has seen.
func (p *gatewayProcess) loadPolicy(ctx context.Context, cfg gatewayConfig) (err error) {
	pc := policyConfigOf(cfg, p.logger)
	pc.Archive = policyArchive(cfg.Audit.Dir)
	if pc.MinRevision, err = lastRevision(cfg.Audit.Dir); err != nil {
		return err
	}
	if p.policy, err = policy.Load(ctx, pc); err != nil {
		return err
	}
	return recordActivation(ctx, p.log, p.policy.Activation())
}

// reachReplicas finds where requests may run, and makes the way there.
func (p *gatewayProcess) reachReplicas(ctx context.Context, cfg gatewayConfig, key *tlog.Key) (err error) {
	if p.found, err = p.targets(ctx, cfg); err != nil {
		p.logger.Warn("not all replicas found; looking again soon", "error", err)
	}
	fc := fleetConfig(p.found, p.source, key.VerifierKey(), p.logger)
	p.doubts = newDoubts(p.log, p.logger)
	fc.Notify = p.doubts.notify
	if p.fleet, err = fleet.New(fc); err != nil {
		return err
	}
	p.members = &members{fleet: p.fleet.Members, log: p.log, logger: p.logger}
	if err := p.members.look(ctx, time.Now()); err != nil { // before the first decision
		return err
	}
	p.upstream, err = upstream.New(upstream.Config{
		Own: p.source, DialTimeout: cfg.Limits.Connect, HeaderTimeout: cfg.Limits.FirstToken, IdleTimeout: cfg.Limits.Idle,
	})
	if err != nil {
		return err
	}
	p.onClose(func() error { p.upstream.Close(); return nil })
	return nil
}

// admitCallers makes what tells who may call, and all else that can change while
// serving.
func (p *gatewayProcess) admitCallers(ctx context.Context, cfg gatewayConfig, secret [32]byte) (err error) {
	if p.shared, err = newShared(ctx, cfg.Identity, p.log, p.logger, func() { p.gateway.Reauthenticate() }); err != nil {
		return err
	}
	p.onClose(p.shared.close)
	if p.proofs, err = dpopProofs(cfg, secret, p.shared.spend); err != nil {
		return err
	}
	first, err := p.buildLive(ctx, cfg)
	if err != nil {
		return err
	}
	p.live.Store(first)
	p.onClose(func() error { p.live.Load().close(); return nil })
	return nil
}

// assemble makes the gateway of its parts.
func (p *gatewayProcess) assemble(cfg gatewayConfig, key *tlog.Key, secret [32]byte, watched *telemetry) error {
	macs, err := mackey.Open(cfg.Audit.MACKeys)
	if err != nil {
		return err
	}
	tickets, err := ticket.NewSigner(key.Name(), key.Sign)
	if err != nil {
		return err
	}
	p.gateway, err = gateway.New(gateway.Config{
		Live: p.live.Load().Live, Policy: p.policy, Fleet: p.fleet, Upstream: p.upstream, Tickets: tickets,
		Log: p.log, Denials: p.denials, Quotas: audit.NewQuotas(int64(cmp.Or(cfg.Audit.Quota, logQuota))), Meter: watched.meters, Tracer: watched.spans, Region: cfg.Region,
		Ready:     p.ready,
		PromptMAC: macs.MAC,
		Secret:    secret, TrustTraceparent: cfg.Telemetry.TrustTraceparent,
		Durability: p.mode,
		Total:      cfg.Limits.Total, CountTimeout: cfg.Limits.Count,
		NotifyPrompt: p.doubts.notifyPrompt,
		Logger:       p.logger,
	})
	return err
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

// selfOf is who records say decided.
func selfOf(cfg gatewayConfig, source *workload.Source) audit.Gateway {
	return audit.Gateway{SPIFFE: source.ID().String(), Build: build(), Config: cfg.digest}
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
