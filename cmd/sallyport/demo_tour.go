package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// demoStep is one line of the tour: what happened, taken from the answer and
// from the log. Fields that do not apply are nil.
type demoStep struct {
	Step       string  `json:"step"`
	Identity   *string `json:"identity"`
	Tenant     *string `json:"tenant"`
	Class      *string `json:"class"`
	Label      *string `json:"label"`
	Allow      *bool   `json:"allow"`
	Status     *int    `json:"status"`
	Pool       *string `json:"pool"`
	Replica    *string `json:"replica"`
	Basis      *string `json:"basis"`
	Prompt     *int    `json:"prompt_tokens"`
	Predicted  *int    `json:"predicted_cached_tokens"`
	Cached     *int    `json:"cached_tokens"`
	Reason     *string `json:"reason"`
	DecisionID *string `json:"decision_id"`

	// For the tour's own checks.
	excluded map[string]int // by reason
	depths   map[string]int // blocks that each candidate was known to hold
}

type demoSummary struct {
	Summary     bool   `json:"summary"`
	Steps       int    `json:"steps"`
	Records     uint64 `json:"records"`
	LogVerified bool   `json:"log_verified"`
	LogDir      string `json:"log_dir"`
	LogKey      string `json:"log_key"`
}

// tour walks through the steps and holds each against what it must show.
type tour struct {
	world *demoWorld
	print *printer
	steps int
	chat  *dialogue // acme's conversation, which several steps continue
}

func newTour(w *demoWorld, p *printer) *tour { return &tour{world: w, print: p} }

// run takes the steps in order. The first that is not as expected ends it.
func (t *tour) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	t.print.begin(t.world)
	for _, s := range []struct {
		name string
		says string
		take func(context.Context) (demoStep, error)
	}{
		{"cold-chat", "a new conversation is placed by load", t.coldChat},
		{"warm-chat", "its next turn goes where its blocks are", t.warmChat},
		{"other-tenant-same-prompt", "the same prompt of another tenant finds nothing", t.otherTenant},
		{"agent-tool-call", "tools make it an agent's, in the agents' pool", t.agentToolCall},
		{"rag-phi", "a medical record number makes it restricted", t.ragPHI},
		{"denied", "a tenant without the right is told no more than no", t.denied},
		{"bad-token", "a token that does not verify is nobody's", t.badToken},
		{"evicted", "blocks that were evicted are not counted on", t.evicted},
		{"impostor", "a replica with another identity is no candidate", t.impostor},
		{"failover", "the holder is killed; another permitted one answers", t.failover},
		{"tampered-log", "one flipped bit in a copy of the log is found", t.tamperedLog},
	} {
		step, err := s.take(ctx)
		step.Step = s.name
		t.steps++
		if perr := t.print.step(step, s.says); perr != nil {
			return perr
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// summarise verifies the log from outside, with the key that was pinned when it
// was made.
func (t *tour) summarise() error {
	key, err := tlog.ReadVerifierFile(t.world.logKey)
	if err != nil {
		return err
	}
	report, err := tlog.Verify(t.world.logDir, key, tlog.VerifyOptions{})
	if err != nil {
		return err
	}
	s := demoSummary{Summary: true, Steps: t.steps, Records: report.TreeSize, LogVerified: report.OK(), LogDir: t.world.logDir, LogKey: t.world.logKey}
	if err := t.print.summary(s); err != nil {
		return err
	}
	if !report.OK() {
		return &exitError{exitBad, fmt.Errorf("the log does not verify: record %d: %s: %s", report.FirstBad, report.Code, report.Detail)}
	}
	return nil
}

// fill completes a step from the records of its decision.
func (s *demoStep) fill(records []*audit.Record) error {
	for _, r := range records {
		switch r.Kind {
		case audit.KindDecision: // the last attempt is the one that counts
			s.Tenant = &r.Caller.Tenant
			if r.Class != nil {
				s.Class, s.Label = &r.Class.Name, &r.Label.Level
			}
			allowed := r.Status == audit.StatusAllowed
			s.Allow = &allowed
			s.Reason = nil
			if r.Reason != "" {
				s.Reason = &r.Reason
			}
			s.Prompt = &r.Request.PromptTokens
			if p := r.Placement; p != nil {
				s.Pool, s.Replica, s.Basis, s.Predicted = &p.Pool, &p.Replica, &p.Basis, &p.PredictedCached
				s.excluded, s.depths = p.Excluded, make(map[string]int)
				for _, c := range p.Candidates {
					s.depths[c.Replica] = c.Depth
				}
			}
		case audit.KindOutcome:
			if r.Outcome.Status == audit.StatusOK {
				s.Cached, s.Replica = r.Outcome.CachedTokens, &r.Outcome.Replica
			}
		}
	}
	if s.Tenant == nil {
		return errors.New("the log has no decision for it")
	}
	return nil
}

// check collects what is not as it must be.
type check struct{ errs []error }

func (c *check) that(ok bool, format string, args ...any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *check) err() error { return errors.Join(c.errs...) }

func val[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
