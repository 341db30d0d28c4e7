package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/inbox"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policy"
)

const (
	// drainTime is how long running requests have to end after a stop was asked
	// for, where the configuration does not say.
	drainTime = 30 * time.Second
	// lastWords is how long they have then, to tell their callers and the log.
	lastWords = 5 * time.Second
	// logGrace is how long requests may go on while the log takes no decisions,
	// where the configuration does not say, and logCheck how often that is
	// looked at.
	logGrace = 10 * time.Second
	logCheck = time.Second
	// logQuota is how many bytes a tenant may put into the log in an hour, where
	// the configuration does not say: some five hundred requests a second.
	logQuota = 4 << 30
)

// run serves until ctx ends, lets running requests end, and closes everything.
func (p *gatewayProcess) run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return ignoreCancelled(p.fleet.Run(running)) })
	group.Go(func() error { return p.follow(running) })
	group.Go(func() error { p.members.run(running); return nil })
	dir := p.cfg.Audit.Dir
	group.Go(func() error { inbox.Run(running, dir, p.log, lookEvery, p.logger); return nil })
	group.Go(func() error { p.heedLog(running); return nil })
	group.Go(func() error { p.archive.run(running, dir, p.policy, p.logger); return nil })
	group.Go(func() error { return ignoreCancelled(p.denials.Run(running, time.Minute)) })
	listeners := []net.Listener{p.public, p.admin}
	for i, s := range p.servers {
		group.Go(func() error {
			if err := s.Serve(listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", listeners[i].Addr(), err)
			}
			return nil
		})
	}
	// While requests end, tokens may be revoked and replicas doubted as ever; and
	// what is written down then still goes out, if there is time.
	ending, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	exporting, stopExports := context.WithCancel(context.WithoutCancel(ctx))
	defer stopExports()
	group.Go(func() error { p.exports.Run(exporting); return nil })
	var notices sync.WaitGroup
	notices.Go(func() { p.doubts.run(ending) })
	notices.Go(func() { p.shared.run(ending) })
	group.Go(func() error {
		defer stopExports()
		<-running.Done()
		err := p.drain(context.WithoutCancel(ctx))
		ended()
		notices.Wait()
		return err
	})
	p.logger.Info("serving", "address", p.public.Addr().String(), "admin", p.adminAddr(), "log", p.log.Head().Size)
	return errors.Join(group.Wait(), p.close())
}

// heedLog ends what is being served once the log has taken no decisions for the
// configured grace: how a request goes on should be on record too. New ones are
// refused by the log itself.
func (p *gatewayProcess) heedLog(ctx context.Context) {
	tick := time.NewTicker(logCheck)
	defer tick.Stop()
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch {
		case p.log.Err() == nil && p.log.Short().IsZero():
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			p.logger.Error("the audit log takes no decisions: requests end soon", "grace", p.grace)
		case time.Since(since) >= p.grace:
			p.gateway.EndAll()
		}
	}
}

// drain stops taking requests and lets those there are end: first it says that
// it is not ready, then the public listener closes, last the admin listener.
// What has not ended in time is ended, with an error to its caller.
func (p *gatewayProcess) drain(ctx context.Context) error {
	p.draining.Store(true)
	patience := p.patience
	ctx, cancel := context.WithTimeout(ctx, patience+lastWords)
	defer cancel()
	defer time.AfterFunc(patience, func() {
		p.logger.Warn("ending the requests that did not end in time", "drain", patience)
		p.gateway.Stop()
	}).Stop()
	var errs []error
	for _, s := range p.servers {
		if err := s.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("drain: %w", err), s.Close())
		}
	}
	// A caller that did not read was cut off just now. How its request ended, and
	// who was turned away meanwhile, goes into the log before that is closed.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	return errors.Join(append(errs, p.gateway.Wait(ctx), p.denials.Flush(ctx))...)
}

// ready says why traffic should not come here, or nil.
func (p *gatewayProcess) ready() error {
	if p.draining.Load() {
		return errors.New("draining")
	}
	return errors.Join(p.source.Ready(), p.live.Load().ready(), p.log.Ready(p.mode))
}

func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// recordActivation writes down which policy decides from now on.
func recordActivation(ctx context.Context, log audit.Appender, a policy.Activation) error {
	event, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("record activation: %w", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("record activation: %w", err)
	}
	_, err = log.Append(ctx, &audit.Record{
		V: audit.Version, Kind: audit.KindPolicy, ID: id.String(), Durability: audit.Strict,
		Policy: &audit.Policy{Revision: a.Revision, Digest: a.Digest}, Event: event,
	})
	return err
}

// lastRevision is the revision of the policy that the log says was active last:
// an older one must not follow it, even over a restart.
func lastRevision(dir string) (string, error) {
	prefix := []byte(`{"v":1,"kind":"policy"`) // a record's fields have a fixed order
	revision := ""
	var decision []byte // the newest: it names the policy too, if its record has been pruned
	for e, err := range tlog.Read(dir, 0) {
		if err != nil {
			return "", fmt.Errorf("find last policy: %w", err)
		}
		if bytes.HasPrefix(e.Leaf, decisionPrefix) {
			decision = e.Leaf
		}
		if !bytes.HasPrefix(e.Leaf, prefix) {
			continue
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			return "", fmt.Errorf("find last policy: %w", err)
		}
		if r.Policy != nil && r.Policy.Revision != unversioned {
			revision = r.Policy.Revision
		}
	}
	if revision != "" || decision == nil {
		return revision, nil
	}
	r, err := audit.Decode(decision)
	if err != nil {
		return "", fmt.Errorf("find last policy: %w", err)
	}
	if r.Policy != nil && r.Policy.Revision != unversioned {
		revision = r.Policy.Revision
	}
	return revision, nil
}

var decisionPrefix = []byte(`{"v":1,"kind":"decision"`)

// unversioned is the revision of a bundle whose manifest names none.
const unversioned = "unversioned"

// checkGateway goes as far as a gateway can before it listens or talks to
// anybody: every file that it names must be what it is meant to be, and every
// name of a pool must be known.
func checkGateway(ctx context.Context, cfg gatewayConfig) error {
	_, perr := policy.Load(ctx, policyConfigOf(cfg, nil))
	merr := checkModels(cfg.Models)
	_, serr := sharedSecret(cfg.Identity.SecretFile)
	_, cerr := collectorRoots(cfg.Telemetry.CAFile)
	var kerr error
	if cfg.Identity.APIKeys.File != "" {
		_, kerr = apiKeys(cfg.Identity.APIKeys, nil)
	}
	_, lerr := tlog.ReadKeyFile(cfg.Audit.KeyFile)
	_, terr := workload.FileCertificate(cfg.Listen.CertFile, cfg.Listen.KeyFile)
	_, derr := discover(ctx, cfg)
	return errors.Join(perr, merr, serr, cerr, kerr, lerr, terr, derr)
}

// checkModels loads them, and keeps no tables: a check changes nothing.
func checkModels(models []modelConfig) error {
	var errs []error
	for _, m := range models {
		m.Cache = ""
		if _, err := m.open(); err != nil {
			errs = append(errs, fmt.Errorf("model %s: %w", m.Name, err))
		}
	}
	return errors.Join(errs...)
}

// adminAddr is where the admin listener is; empty where there is none.
func (p *gatewayProcess) adminAddr() string {
	if p.admin == nil {
		return ""
	}
	return p.admin.Addr().String()
}
