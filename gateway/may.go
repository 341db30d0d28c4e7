package gateway

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/gateway/classify"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/blockid"
)

// inspections are the obligations of a decision that this gateway can meet. The
// detectors run on every request, before policy is asked; nothing inspects
// answers yet, so a policy that asks for that is refused.
var inspections = struct{ request, response []string }{
	request:  []string{"detectors"},
	response: []string{},
}

// reasonTooLong is the shipped policy's reason for a prompt beyond the model's
// window.
const reasonTooLong = "prompt_too_long"

// may asks policy and holds the request against the answer.
func (x *exchange) may(ctx context.Context) error {
	x.input = x.question()
	if err := x.ask(ctx); err != nil {
		return err
	}
	if err := x.obey(); err != nil {
		return err
	}
	if !x.op.HasBody() {
		return nil
	}
	if x.tooLong() {
		return errTooLong
	}
	body, err := x.request.Upstream(wire.Edits{Model: x.model.Served, MaxOutputTokens: x.decision.Limits.MaxOutputTokens})
	if err != nil {
		return fmt.Errorf("edit body: %w", err)
	}
	x.upstream, x.domain = body, x.cacheDomain()
	return nil
}

// ask evaluates the current input under the current snapshot.
func (x *exchange) ask(ctx context.Context) error {
	d, ev, err := x.snap.Decide(ctx, x.input)
	x.decision, x.evaluation = d, ev
	x.g.metrics.decided(ctx, ev.Elapsed, d.Allow, err)
	switch {
	case err != nil:
		return err
	case d.Allow:
		return nil
	case x.class == policy.Unclassified:
		return errUnclassified
	case len(d.Reasons) == 1 && d.Reasons[0] == reasonTooLong:
		return errTooLong // everything else is permitted, so the caller may know
	default:
		f := faultOf(errDenied)
		if len(d.Reasons) > 0 {
			f.Reason = bounded(d.Reasons[0]) // policy's own reason, for the record alone
		}
		return f
	}
}

// obey refuses what the decision does not let through.
func (x *exchange) obey() error {
	for _, want := range x.decision.Inspect.Request {
		if !slices.Contains(inspections.request, want) {
			return fmt.Errorf("%w: request %s", errInspection, want)
		}
	}
	for _, want := range x.decision.Inspect.Response {
		if !slices.Contains(inspections.response, want) {
			return fmt.Errorf("%w: response %s", errInspection, want)
		}
	}
	if x.decision.ToolsAllow == nil {
		return nil
	}
	for _, name := range x.input.Request.Tools {
		if !slices.Contains(x.decision.ToolsAllow, name) {
			return fmt.Errorf("%w: %s", errTool, name)
		}
	}
	return nil
}

// surelyTooLong is how many times the window an estimate must be to be held
// against it: no tokenizer makes one token of 32 bytes on average.
const surelyTooLong = 8

// tooLong refuses what nobody could count and no window of the model holds.
// Policy holds exact counts against the window, but not estimates, which may be
// far above the truth: it cannot tell text from media, nor one prompt from many,
// without the permission growing where media is added. Without this, the caller
// would be told to come again, since no replica has the room.
func (x *exchange) tooLong() bool {
	window := x.model.ContextWindow
	return window > 0 && x.tokens.basis == basisEstimate && !x.request.Media && x.request.Prompts < 2 &&
		int64(x.tokens.count) > surelyTooLong*window
}

// question builds the policy input. It holds no text of the request, no time
// and no id.
func (x *exchange) question() policy.Input {
	p := x.principal
	in := policy.Input{
		V: 1,
		Principal: policy.InputPrincipal{
			Tenant: p.Tenant, Subject: x.subject, Kind: string(p.Kind), Method: string(p.Method), Issuer: p.Issuer,
			Groups: notNil(p.Groups), Scopes: notNil(p.Scopes), Chain: x.chain,
			Workload: p.Workload, Registration: x.registration.Name, Client: x.client.Name,
		},
		Request: policy.InputRequest{Operation: x.op.Name, Region: x.g.cfg.Region, Tools: []string{}, PromptTokensBasis: basisEstimate},
		Class:   policy.InputClass{Name: x.class.String(), Facts: []string{}, Mismatch: x.mismatch, Table: classify.Table},
		Label: policy.InputLabel{
			Level: x.label.Level.String(), Rank: x.label.Level.Rank(),
			Categories: []string{}, Sources: []policy.InputSource{},
		},
		Exemptions: x.snap.ExemptionsInForce(p.Tenant, time.Now()),
	}
	for _, f := range x.facts {
		in.Class.Facts = append(in.Class.Facts, string(f))
	}
	for _, c := range x.label.Categories {
		in.Label.Categories = append(in.Label.Categories, string(c))
	}
	for _, s := range x.label.Sources {
		in.Label.Sources = append(in.Label.Sources, policy.InputSource{Source: string(s.Source), Level: s.Level.String(), Detail: s.Detail})
	}
	if x.request != nil {
		x.describe(&in.Request)
	}
	return in
}

// describe adds what the body says of itself.
func (x *exchange) describe(in *policy.InputRequest) {
	in.Model = x.model.Name
	if in.Model == "" {
		in.Model = x.request.Model // nobody knows it; policy denies
	}
	in.Stream, in.MaxTokens = x.request.Stream, x.request.MaxTokens
	in.PromptTokens, in.PromptTokensBasis = int64(x.tokens.count), x.tokens.basis
	for _, t := range x.request.Tools {
		in.Tools = append(in.Tools, t.Name)
	}
	slices.Sort(in.Tools)
	in.Tools = slices.Compact(in.Tools)
}

// cacheDomain names the set of requests that may share cached prompt blocks.
// No kind but public is the same for two tenants.
func (x *exchange) cacheDomain() string {
	var parts []string
	switch kind := x.decision.CacheDomain; kind {
	case "public":
		parts = []string{kind}
	case "conversation":
		parts = []string{kind, x.principal.Tenant, string(x.conversation.id[:])}
	case "none":
		parts = []string{kind, x.principal.Tenant, x.id}
	default:
		parts = []string{"tenant", x.principal.Tenant}
	}
	return base64.RawURLEncoding.EncodeToString(blockid.LenPrefix(parts...))
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
