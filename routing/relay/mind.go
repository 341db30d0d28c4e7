package relay

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"syscall"
	"time"
)

const (
	scrapeEvery   = 250 * time.Millisecond
	describeEvery = 10 * time.Second
	// probeEvery bounds how often a restarting engine is probed.
	probeEvery = 2 * time.Second
)

// mind keeps the relay's picture of the engine: it waits until the engine is
// there, proves the isolation of its routes, and watches until it goes away or
// becomes another.
func (r *Relay) mind(ctx context.Context) {
	wait := retryFirst
	for ctx.Err() == nil {
		in, err := r.prove(ctx)
		if err != nil {
			r.log.Warn("engine not ready", "error", err)
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, retryMost)
			continue
		}
		wait = retryFirst
		began := time.Now()
		r.setInfo(in)
		why := r.watchEngine(ctx, in)
		r.setInfo(nil)
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("engine is not what it was", "reason", why)
		if !sleep(ctx, probeEvery-time.Since(began)) {
			return
		}
	}
}

// prove describes the engine and probes its routes.
func (r *Relay) prove(ctx context.Context) (*info, error) {
	in, err := r.engine.describe(ctx)
	if err != nil {
		return nil, err
	}
	r.fitMirror(in)
	all := slices.Sorted(maps.Keys(probes))
	if r.cfg.Engine.Kind == External {
		in.sole = r.sole(all...)
		return in, nil
	}
	for _, rt := range all {
		err := probe(ctx, r.engine, r.salts, in, rt)
		var status errStatus
		switch {
		case err == nil:
			in.routes = append(in.routes, rt)
			r.log.Info("salt isolation proven", "route", string(rt))
		case errors.As(err, &status):
			r.log.Info("route not served by the engine", "route", string(rt), "status", int(status))
		case errors.Is(err, errNotIsolated), errors.Is(err, errNoHit), errors.Is(err, errNoReport), errors.Is(err, errShort):
			r.log.Warn("salt isolation not proven: route refused but for the configured domain", "route", string(rt),
				"domain", r.cfg.SaltDomain, "error", err)
			in.sole = append(in.sole, r.sole(rt)...)
		default:
			return nil, err // the engine went away
		}
	}
	for _, rt := range slices.Sorted(maps.Keys(countings)) {
		switch err := serves(ctx, r.engine, in, rt); {
		case err == nil:
			in.routes = append(in.routes, rt)
		case gone(err):
			return nil, err
		default:
			r.log.Debug("engine does not count prompts here", "route", string(rt), "error", err)
		}
	}
	return in, nil
}

// sole are those routes that the configured domain has for itself: none without
// one.
func (r *Relay) sole(routes ...route) []route {
	if r.cfg.SaltDomain == "" {
		return nil
	}
	return routes
}

// fitMirror adapts the mirrors to what the engine turned out to be.
func (r *Relay) fitMirror(in *info) {
	cfg := r.mirrorConfig(in.blockSize, in.numBlocks)
	for rank := range r.cfg.Engine.ranks() {
		r.hub.update(rank, func(s *stream) { s.fit(cfg) })
	}
}

// watchEngine scrapes the engine until it is gone or another, and says why.
func (r *Relay) watchEngine(ctx context.Context, in *info) string {
	scrape := time.NewTicker(scrapeEvery)
	defer scrape.Stop()
	described := time.Now()
	// A restart that the event stream saw before now led to this very probe.
	select {
	case <-r.restarted:
	default:
	}
	for {
		select {
		case <-ctx.Done():
			return "stopping"
		case <-r.restarted:
			return "event stream began anew"
		case at := <-scrape.C:
			if r.cfg.Engine.Kind != External {
				if why := r.scrapeOnce(ctx, at, in); why != "" {
					return why
				}
			}
			if time.Since(described) < describeEvery {
				continue
			}
			described = time.Now()
			now, err := r.engine.describe(ctx)
			switch {
			case err != nil && gone(err):
				return err.Error()
			case err == nil && !now.equal(in):
				return "engine changed what it serves"
			}
		}
	}
}

// scrapeOnce takes the engine's load. A slow answer is no reason to doubt an
// engine; a refused connection is.
func (r *Relay) scrapeOnce(ctx context.Context, at time.Time, in *info) string {
	m, err := r.engine.scrape(ctx)
	switch {
	case err != nil && gone(err):
		return err.Error()
	case err != nil:
		r.log.Debug("scrape failed", "error", err)
	case m.started != in.started:
		return "engine restarted"
	default:
		r.load.scraped(at, m)
		if m.asleep {
			r.hub.asleep()
		}
	}
	return ""
}

// gone reports whether nobody listens any more.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.ENOENT) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
