package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/policy"
)

// print tells the story in words.
func (s *story) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(label, format string, args ...any) {
		sayf(t, "%s\t"+format+"\n", append([]any{label}, args...)...)
	}
	r := s.Decision
	line(strings.ToUpper(r.Status), "%s, attempt %d, record %d of %s, %s", r.ID, r.Attempt, s.Index, r.Log.Origin, clock(r))
	if r.Reason != "" || r.Detail != "" {
		line("because", "%s%s", r.Reason, ifAny(": ", r.Detail))
	}
	s.who(line)
	s.may(line)
	s.where(line)
	s.ended(line)
	for _, part := range []struct {
		what string
		r    recomputed
	}{{"policy", s.Policy}, {"placement", s.Placement}, {"seed", s.Seed}} {
		word := map[string]string{
			sameAgain: "the same again", differentAgain: "DIFFERENT", unknownAgain: "cannot be made again", nothingAgain: "nothing to make again",
		}[part.r.Result]
		line("again", "%s: %s%s", part.what, word, ifAny(": ", part.r.Detail))
	}
	return t.Flush()
}

func clock(r *audit.Record) string { return time.UnixMicro(r.Time.Wall).UTC().Format(timeFormat) }

func (s *story) who(line func(label, format string, args ...any)) {
	r := s.Decision
	if c := r.Caller; c != nil {
		name := c.Ref
		if c.Mode == "pseudonym" {
			name = "a pseudonym, " + c.Ref
		}
		line("who", "%s %s of tenant %s, by %s%s%s", c.Kind, name, c.Tenant, c.Method, ifAny(" of ", c.Issuer), ifAny(", registered as ", c.Registration))
		for _, a := range c.Chain {
			line("on behalf of", "%s %s", a.Type, a.Subject)
		}
	}
	if r.Parent != "" {
		line("part of", "decision %s", r.Parent)
	}
	if q := r.Request; q != nil {
		line("asked", "%s of %s%s, %d tokens (%s), %d bytes", q.Operation, q.Model, ifAny(", served as ", q.Served), q.PromptTokens, q.PromptBasis, q.BodyBytes)
		if len(q.PromptWhy) > 0 {
			line("counted so", "because of %s", strings.Join(q.PromptWhy, ", then "))
		}
		if len(q.Removed) > 0 {
			line("removed", "%s", strings.Join(q.Removed, ", "))
		}
	}
	if c := r.Class; c != nil {
		line("class", "%s%s", c.Name, ifAny(", from ", strings.Join(c.Facts, ", ")))
		if c.Mismatch {
			line("mismatch", "the caller claimed less than the request is")
		}
	}
	if l := r.Label; l != nil {
		line("label", "%s%s", l.Level, ifAny(" with ", strings.Join(l.Categories, ", ")))
		for _, src := range l.Sources {
			line("", "%s by %s%s", src.Level, src.Source, ifAny(": ", src.Detail))
		}
	}
}

func (s *story) may(line func(label, format string, args ...any)) {
	p := s.Decision.Policy
	if p == nil {
		return
	}
	line("policy", "%s, digest %.12s, in %d µs", p.Revision, p.Digest, p.EvalUS)
	for _, id := range p.Rules {
		line("rule", "%s%s", id, ifAny(": ", s.rules[id]))
	}
	for _, c := range p.Clamps {
		line("narrowed", "%s: %s", c, policy.ClampText(c))
	}
	var d policy.Decision
	if json.Unmarshal(s.Decision.Decision, &d) == nil && len(d.Pools) > 0 {
		line("answer", "pools %s, %s, cache of the %s, recorded %s", strings.Join(d.Pools, ", "), d.Strategy, d.CacheDomain, d.Durability)
	}
	if p.ShadowDiff != "" {
		line("shadow", "would differ: %s", p.ShadowDiff)
	}
}

func (s *story) where(line func(label, format string, args ...any)) {
	p := s.Decision.Placement
	if p == nil {
		s.Fleet.print(p, line)
		return
	}
	line("where", "%s of pool %s, because of %s among %d, by %s%s", p.Replica, p.Pool, p.ChosenBecause, p.Considered, p.Basis, ifAny(": ", p.BasisReason))
	line("predicted", "%d tokens cached of %d blocks of %d", p.PredictedCached, p.Blocks, p.BlockSize)
	for _, c := range p.Candidates {
		mark := ""
		if c.Replica == p.Replica {
			mark = ", chosen"
		}
		line("candidate", "%s: %d ns, %d blocks cached, %d tokens before it%s", c.Replica, c.CostNS, c.Depth, c.Waiting, mark)
	}
	if s.Fleet == nil || !s.Fleet.Told {
		for _, reason := range slices.Sorted(maps.Keys(p.Excluded)) {
			line("excluded", "%d: %s", p.Excluded[reason], reason)
		}
	}
	s.Fleet.print(p, line)
}

func (s *story) ended(line func(label, format string, args ...any)) {
	if s.Outcome == nil {
		if s.Decision.Status == audit.StatusAllowed {
			line("ended", "not yet, as far as the log goes")
		}
		return
	}
	o := s.Outcome.Outcome
	line("ended", "%s%s, %s", s.Outcome.Status, ifAny(": ", s.Outcome.Reason), clock(s.Outcome))
	if o == nil {
		return
	}
	if o.Peer != "" {
		line("peer", "%s", o.Peer)
	}
	cached := "the engine did not say how many of them cached"
	if o.CachedTokens != nil {
		cached = fmt.Sprintf("%d of them cached", *o.CachedTokens)
	}
	line("took", "%d ms, %d ms to the first token; %d prompt tokens, %s; %d of answer%s", o.DurationMS, o.TTFTMS, o.PromptTokens, cached, o.CompletionTokens, ifAny("; finished by ", o.Finish))
}
