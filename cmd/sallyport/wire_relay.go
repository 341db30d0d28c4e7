package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/relay"
)

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
