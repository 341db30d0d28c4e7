package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/classify"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// write puts the decision into the log and returns once it is as durable as the
// decision asks. After an error nothing may be forwarded.
func (x *exchange) write(ctx context.Context) error {
	rec := x.record()
	rec.Status, rec.Reason, rec.Placement = audit.StatusAllowed, x.reason, placementOf(x.reservation)
	rec.Durability = x.durability()
	if err := x.append(ctx, rec); err != nil {
		if x.reservation != nil {
			x.reservation.Release()
		}
		// As far as it can be: the log itself owes the outcome. Of what it has no
		// room for it holds nothing yet.
		x.recorded = !errors.Is(err, audit.ErrTooLarge)
		return err
	}
	x.recorded, x.open, x.decided = true, true, rec.Attempt
	return nil
}

// durability is what policy asks for, but no less than the configuration does.
func (x *exchange) durability() audit.Durability {
	asked, least := audit.Durability(x.decision.Durability), x.g.cfg.Durability
	switch {
	case asked == audit.Strict2 || least == audit.Strict2:
		return audit.Strict2
	case asked == audit.Bounded && least == audit.Bounded:
		return audit.Bounded
	default:
		return audit.Strict
	}
}

// withinQuota refuses a caller whose tenant has put too much into the log.
func (x *exchange) withinQuota() error {
	wait, ok := x.g.cfg.Quotas.Admit(x.principal.Tenant)
	if !ok {
		x.wait = wait
		return errLogQuota
	}
	return nil
}

// recordRefusal puts a refusal into the log, or counts it there if the tenant has
// spent its share or the caller asks too often.
func (x *exchange) recordRefusal(ctx context.Context, f *Fault) {
	if errors.Is(f.Err, errTooOften) || x.withinQuota() != nil {
		if tenant := x.tenantOf(x.principal); tenant != "" {
			x.g.cfg.Denials.CountTenant(bounded(tenant), f.Code)
		} else {
			x.g.cfg.Denials.Count(source(x.r), f.Code)
		}
		return
	}
	x.writeRefusal(ctx, f)
}

// writeRefusal puts a refusal into the log. The caller is refused even if that
// fails; what cannot be recorded is at least not done.
func (x *exchange) writeRefusal(ctx context.Context, f *Fault) {
	rec := x.record()
	rec.Status, rec.Reason, rec.HTTP = audit.StatusDenied, f.Reason, f.Status
	rec.Durability = audit.Strict
	rec.Detail = detailOf(f.Err)
	err := x.step(context.WithoutCancel(ctx), "write", func(ctx context.Context) error {
		err := x.append(ctx, rec)
		if errors.Is(err, audit.ErrTooLarge) {
			rec.Input, rec.Decision = omitted(rec.Input), omitted(rec.Decision)
			err = x.append(ctx, rec)
		}
		return err
	})
	if err != nil {
		x.g.cfg.Logger.Error("refusal not recorded", "decision_id", x.id, "reason", f.Reason, "error", err)
	}
}

// detailOf is the cause of a refusal as far as it comes from our own code or from
// policy. What the decoder and the readers of headers say quotes the caller, who
// can put a secret there; the reason alone is recorded of that.
func detailOf(err error) string {
	var quoting *wire.Error
	if err == nil || errors.As(err, &quoting) || errors.Is(err, errHeader) {
		return ""
	}
	return bounded(err.Error())
}

// omitted stands in the record of a refusal for what the log has no room for.
func omitted(raw json.RawMessage) json.RawMessage {
	if raw == nil || string(raw) == "null" {
		return raw
	}
	return fmt.Appendf(nil, `{"omitted":true,"sha256":"%x","bytes":%d}`, sha256.Sum256(raw), len(raw))
}

func (x *exchange) append(ctx context.Context, rec *audit.Record) error {
	ctx, cancel := context.WithTimeout(ctx, x.g.cfg.AppendTimeout)
	defer cancel()
	began := time.Now()
	at, err := x.g.cfg.Log.Append(ctx, rec)
	x.g.cfg.Quotas.Spend(x.principal.Tenant, at.Bytes)
	x.g.metrics.appended(ctx, rec.Kind, time.Since(began), err)
	switch {
	case err == nil:
		return nil
	case ours(ctx) != nil:
		return ours(ctx)
	case x.r.Context().Err() != nil:
		return fmt.Errorf("%w: %w", errClientGone, err)
	default:
		// Whatever kept the log from taking it, a deadline too: it is not down.
		return fmt.Errorf("%w: %w", audit.ErrUnavailable, err)
	}
}

// record is everything that is known of the request so far.
func (x *exchange) record() *audit.Record {
	rec := &audit.Record{
		V: audit.Version, Kind: audit.KindDecision, ID: x.id, Gateway: &x.live.Self, Attempt: x.decided + 1,
		Caller: x.caller(),
		Request: &audit.Request{
			Operation: x.op.Name, BodyBytes: len(x.body),
			PromptTokens: x.tokens.count, PromptBasis: x.tokens.named(), PromptWhy: x.tokens.why,
		},
		Policy:   &audit.Policy{Revision: x.snap.Revision(), Digest: x.snap.Digest()},
		Decision: json.RawMessage("null"),
	}
	if x.label.Level != policy.Absent {
		x.describeClass(rec)
	}
	if x.request != nil {
		rec.Request.Model, rec.Request.Served, rec.Request.Stream = bounded(x.request.Model), x.model.Served, x.request.Stream
		rec.Request.Removed, rec.Request.PromptMAC = x.request.Removed, x.promptMAC()
	}
	if ev := x.evaluation; ev.InputJSON != nil {
		rec.Policy.Rules, rec.Policy.EvalUS, rec.Policy.ShadowDiff = ev.Rules, ev.Elapsed.Microseconds(), ev.ShadowDiff
		rec.Policy.Clamps = ev.Clamps
		rec.Input = ev.InputJSON
		if ev.DecisionJSON != nil {
			rec.Decision = ev.DecisionJSON
		}
	}
	return rec
}

// describeClass adds what the request was taken for, once that is known.
func (x *exchange) describeClass(rec *audit.Record) {
	rec.Class = &audit.Class{Name: x.class.String(), Mismatch: x.mismatch, Table: classify.Table}
	rec.Label = &audit.Label{Level: x.label.Level.String(), Rank: x.label.Level.Rank()}
	for _, f := range x.facts {
		rec.Class.Facts = append(rec.Class.Facts, string(f))
	}
	for _, c := range x.label.Categories {
		rec.Label.Categories = append(rec.Label.Categories, string(c))
	}
	for _, s := range x.label.Sources {
		rec.Label.Sources = append(rec.Label.Sources, audit.LabelSource{Source: string(s.Source), Level: s.Level.String(), Detail: s.Detail})
	}
}

// maxText is the most bytes of a text in a record that somebody else chose.
const maxText = 256

// bounded cuts a text to what a log can bear, between two characters.
func bounded(s string) string {
	if len(s) <= maxText {
		return s
	}
	end := maxText
	for end > maxText-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

func (x *exchange) caller() *audit.Caller {
	p := x.principal
	mode := x.tenant.SubjectMode
	if mode == "" {
		mode = "clear"
	}
	c := &audit.Caller{
		Mode: mode, Ref: x.subject, Tenant: p.Tenant, Kind: string(p.Kind), Method: string(p.Method), Issuer: p.Issuer,
		CredFP: p.Fingerprint, Workload: p.Workload, Registration: x.registration.Name,
	}
	for _, a := range x.chain {
		c.Chain = append(c.Chain, audit.Actor{Type: a.Type, Subject: a.Subject, Registration: a.Registration})
	}
	return c
}

// promptMAC lets an auditor with the key check that a record is about a prompt
// that they hold. Without the key, which can be destroyed, it says nothing. The
// record is not held up for want of it.
func (x *exchange) promptMAC() string {
	if x.g.cfg.PromptMAC == nil {
		return ""
	}
	mac, err := x.g.cfg.PromptMAC(x.principal.Tenant, x.began, x.body)
	if err != nil {
		x.g.cfg.Logger.Error("prompt not in the record, not even as a MAC", "decision_id", x.id, "error", err)
	}
	return mac
}

// maxCandidates bounds the candidates in a record: a leaf of the log has at most
// 64 KiB.
const maxCandidates = 96

// recordable is the candidates that a record has room for: all, or the chosen
// one and the cheapest.
func recordable(p routing.Placement) []routing.Scored {
	if len(p.Candidates) <= maxCandidates {
		return p.Candidates
	}
	kept := slices.Clone(p.Candidates)
	slices.SortStableFunc(kept, func(a, b routing.Scored) int {
		switch {
		case a.ID == p.ID:
			return -1
		case b.ID == p.ID:
			return 1
		}
		return cmp.Compare(a.CostNS, b.CostNS)
	})
	return kept[:maxCandidates]
}

// placementOf is the choice of replica with the inputs it was made from.
func placementOf(res *fleet.Reservation) *audit.Placement {
	if res == nil {
		return nil
	}
	return recordOf(res.Placement)
}

// recordOf writes a placement down, so that [Recompute] can make it again.
func recordOf(p routing.Placement) *audit.Placement {
	out := &audit.Placement{
		Strategy: string(p.Strategy), Basis: string(p.Basis), BasisReason: string(p.BasisReason),
		Pool: p.Pool, Replica: p.ID, Epoch: p.Epoch, Rank: p.Rank, Seed: p.Seed,
		PredictedCached: p.Predicted, BlockSize: p.BlockSize, Blocks: p.Blocks, EventLagMS: p.LagMS,
		ChosenBecause: string(p.ChosenBecause), Others: p.Others, Usual: p.Usual, Considered: p.Considered,
		Excluded: make(map[string]int, len(p.Excluded)),
	}
	for reason, n := range p.Excluded {
		out.Excluded[string(reason)] = n
	}
	kept := recordable(p)
	out.Omitted = len(p.Candidates) - len(kept)
	for _, c := range kept {
		lowerPS := int64(0)
		if c.Lower > 0 {
			lowerPS = c.LowerPS
		}
		out.Candidates = append(out.Candidates, audit.Candidate{
			Replica: c.ID, Region: c.Region, Stream: c.Stream.String(), BlockSize: c.BlockSize,
			Depth: c.Depth, Overlay: c.Overlay, Lower: c.Lower, Confidence: c.Confidence,
			Waiting: c.WaitingTokens, PrefillPS: c.PrefillPS, DecodeNS: c.DecodeNS,
			KVFree: c.KVFree, KVTotal: c.KVTotal, Running: c.Running, WaitingRequests: c.Waiting, Load: c.Load,
			LowerPS: lowerPS, CostNS: c.CostNS, PreferPenalty: c.PenaltyNS,
		})
	}
	return out
}
