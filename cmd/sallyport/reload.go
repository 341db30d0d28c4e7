package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// lookEvery is how often files and names are looked at for changes.
const lookEvery = 2 * time.Second

// follow keeps the process to what its files and its pools' names say, until
// ctx ends. SIGHUP reads everything again, changed or not.
func (p *gatewayProcess) follow(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	seen := p.fingerprint()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			seen = p.fingerprint()
			p.reload(ctx, "signal")
		case <-ticks.C:
			if now := p.fingerprint(); now != seen {
				seen = now
				p.reload(ctx, "file")
			} else {
				p.rediscover(ctx)
			}
		}
	}
}

// fingerprint changes when the configuration file or the policy bundle does.
func (p *gatewayProcess) fingerprint() string {
	h := sha256.New()
	b, err := os.ReadFile(p.cfg.path)
	fmt.Fprintf(h, "%x %v\n", sha256.Sum256(b), err)
	err = filepath.WalkDir(p.cfg.Policy.Bundle, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path) // through links, which is how some platforms replace files
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d %d\n", path, info.Size(), info.ModTime().UnixNano())
		return nil
	})
	fmt.Fprintln(h, err)
	return hex.EncodeToString(h.Sum(nil))
}

// change is the body of the admin record of a reload.
type change struct {
	Action string             `json:"action"`
	Cause  string             `json:"cause"` // signal, file or discovery
	From   string             `json:"from"`  // digests: of the configuration, or of the list of replicas
	To     string             `json:"to"`
	Result string             `json:"result"` // applied or refused
	Detail string             `json:"detail,omitempty"`
	Policy *policy.Activation `json:"policy,omitempty"`
}

// reload applies the file as it is now, whole or not at all, and writes down
// which. Streams go on.
func (p *gatewayProcess) reload(ctx context.Context, cause string) {
	ch := change{Action: "reload", Cause: cause, From: p.cfg.digest, Result: "applied"}
	next, err := loadGateway(p.cfg.path)
	ch.To = next.digest
	if err == nil {
		ch.Policy, err = p.apply(ctx, next)
	}
	if err != nil {
		ch.Result, ch.Detail = "refused", shortened(err.Error())
		p.logger.Error("configuration not reloaded; going on as before", "error", err)
	} else {
		p.logger.Info("configuration reloaded", "from", ch.From, "to", ch.To)
	}
	p.recordChange(ctx, ch)
}

// apply tries everything that can fail before it changes anything: the policy is
// the last, and swaps itself in whole or not at all. It returns the policy that
// was activated, if it is another one.
func (p *gatewayProcess) apply(ctx context.Context, next gatewayConfig) (*policy.Activation, error) {
	if err := p.cfg.mayBecome(next); err != nil {
		return nil, err
	}
	if err := membersKnown(next.Pools, p.source); err != nil {
		return nil, err
	}
	found, err := discover(ctx, next)
	if err != nil {
		return nil, err
	}
	live, err := p.buildLive(context.WithoutCancel(ctx), next)
	if err != nil {
		return nil, err
	}
	before := p.policy.Activation()
	activation, err := p.policy.Reload(ctx, poolNames(next))
	if err != nil {
		live.close()
		return nil, err
	}
	// Neither can fail now: addresses were found once each, and the live part
	// has its ways to authenticate, or the file would not have passed.
	targets := p.inRegions(found)
	if err := errors.Join(p.fleet.SetTargets(targets), p.gateway.Swap(live.Live)); err != nil {
		p.logger.Error("reloaded policy, but not all of the configuration", "error", err)
	}
	p.live.Swap(live).close()
	p.cfg, p.found = next, targets
	p.retain(targets)
	if before.Digest == activation.Digest {
		return nil, nil
	}
	if err := recordActivation(ctx, p.log, activation); err != nil {
		p.logger.Error("policy activation not recorded", "error", err)
	}
	return &activation, nil
}

// mayBecome refuses a change of what only a restart can change.
func (c gatewayConfig) mayBecome(next gatewayConfig) error {
	fixed := func(c gatewayConfig) gatewayConfig {
		c.Identity.Issuers, c.Models, c.Pools, c.digest = nil, nil, nil, ""
		c.Limits.BodyBytes, c.Limits.InflightBytes, c.Limits.JSONDepth = 0, 0, 0
		c.Limits.RequestsPerSecond, c.Limits.Burst, c.Limits.Tenants, c.Limits.Unauthenticated = 0, 0, nil, rateConfig{}
		return c
	}
	before, after := reflect.ValueOf(fixed(c)), reflect.ValueOf(fixed(next))
	var errs []error
	for i := range before.NumField() {
		field := before.Type().Field(i)
		if field.IsExported() && !reflect.DeepEqual(before.Field(i).Interface(), after.Field(i).Interface()) {
			errs = append(errs, fmt.Errorf("%s: changes only with a restart", field.Tag.Get("yaml")))
		}
	}
	return errors.Join(errs...)
}

// rediscover looks again where the replicas of pools with a file or a name are.
func (p *gatewayProcess) rediscover(ctx context.Context) {
	if !p.cfg.discovers() {
		return
	}
	targets, err := p.targets(ctx, p.cfg)
	if err != nil {
		p.logger.Warn("replicas not looked up; going on with those there were", "error", err)
		return
	}
	from, to := digestOf(p.found), digestOf(targets)
	if from == to {
		return
	}
	ch := change{Action: "replicas", Cause: "discovery", From: from, To: to, Result: "applied"}
	if err := p.fleet.SetTargets(targets); err != nil {
		ch.Result, ch.Detail = "refused", err.Error()
	} else {
		p.found = targets
		p.retain(targets)
	}
	p.recordChange(ctx, ch)
}

func (c gatewayConfig) discovers() bool {
	for _, p := range c.Pools {
		if p.File != "" || p.DNS != "" {
			return true
		}
	}
	return false
}

// targets are the replicas there should be now. With an error come those that
// could be found all the same.
func (p *gatewayProcess) targets(ctx context.Context, cfg gatewayConfig) ([]fleet.Target, error) {
	found, err := discover(ctx, cfg)
	return p.inRegions(found), err
}

// inRegions adds the region of each target's pool, which is data of the policy.
func (p *gatewayProcess) inRegions(targets []fleet.Target) []fleet.Target {
	snap := p.policy.Snapshot()
	for i := range targets {
		data, _ := snap.Pool(targets[i].Pool) // activation has checked that the pools agree
		targets[i].Region = data.Region
	}
	return targets
}

// discover lists the replicas of the configuration and those found by file and
// name, each address and identity once: where two say the same, the first
// counts.
func discover(ctx context.Context, cfg gatewayConfig) ([]fleet.Target, error) {
	var out []fleet.Target
	seen := make(map[string]bool)
	add := func(t fleet.Target) {
		if !seen[t.Address] && (t.ID == "" || !seen[t.ID]) {
			seen[t.Address], seen[t.ID] = true, true
			out = append(out, t)
		}
	}
	var errs []error
	for _, pool := range cfg.Pools {
		like := fleet.Target{Pool: pool.Name, Members: pool.Members, Models: pool.Models}
		for _, r := range pool.Replicas {
			t := like
			t.Address, t.ID = r.Address, r.ID
			add(t)
		}
		for _, source := range pool.sources() {
			found, err := source(ctx, like)
			if err != nil {
				errs = append(errs, fmt.Errorf("pool %s: %w", pool.Name, err))
			}
			for _, t := range found {
				add(t)
			}
		}
	}
	return out, errors.Join(errs...)
}

func (p poolConfig) sources() (s []fleet.Source) {
	if p.File != "" {
		s = append(s, fleet.FromFile(p.File))
	}
	if p.DNS != "" {
		s = append(s, fleet.FromDNS(p.DNS))
	}
	return s
}

func digestOf(targets []fleet.Target) string {
	var b bytes.Buffer
	for _, t := range targets {
		fmt.Fprintf(&b, "%q %q %q\n", t.Pool, t.Address, t.ID)
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:])
}

// retain closes the connections to replicas that are gone.
func (p *gatewayProcess) retain(targets []fleet.Target) { p.upstream.Retain(listed(targets)) }

// listed tells the replicas that are among the targets, where one without an ID
// may be whoever proved itself there.
func listed(targets []fleet.Target) func(upstream.Replica) bool {
	ids := make(map[string]string, len(targets))
	for _, t := range targets {
		ids[t.Address] = t.ID
	}
	return func(r upstream.Replica) bool {
		id, ok := ids[r.Address]
		return ok && (id == "" || id == r.ID)
	}
}

func (p *gatewayProcess) recordChange(ctx context.Context, ch change) {
	event, err := json.Marshal(ch)
	if err == nil {
		_, err = p.log.Append(context.WithoutCancel(ctx), &audit.Record{
			V: audit.Version, Kind: audit.KindAdmin, ID: uuid.NewString(), Durability: audit.Strict, Event: event,
		})
	}
	if err != nil {
		p.logger.Error("change not recorded", "error", err)
	}
}

func poolNames(cfg gatewayConfig) []string {
	names := make([]string, len(cfg.Pools))
	for i, p := range cfg.Pools {
		names[i] = p.Name
	}
	return names
}

// shortened bounds text for a record: a file can have any number of problems.
func shortened(s string) string {
	const most = 4 << 10
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d more bytes)", strings.ToValidUTF8(s[:most], ""), len(s)-most)
}
