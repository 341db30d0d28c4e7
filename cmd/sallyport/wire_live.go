package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/apikey"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/svid"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/prompt"
)

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
			Rates:    cfg.Limits.rates(),
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
