package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/sallyport-ai/sallyport/gateway/classify"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// The headers with which a client may raise, never lower, what we take its
// request for, and with which it continues a conversation.
const (
	labelHeader        = "Sallyport-Label"
	classHeader        = "Sallyport-Class"
	conversationHeader = "Sallyport-Conversation"
)

// what reads, decodes, classifies and labels the request, and counts its prompt.
func (x *exchange) what(ctx context.Context) error {
	if err := x.hints(); err != nil {
		return err
	}
	if x.op.HasBody() {
		if err := x.read(); err != nil {
			return err
		}
	}
	subject := classify.Subject{Operation: x.op, Request: x.request, Hint: x.r.Header.Get(classHeader)}
	if x.op.HasBody() {
		subject.Registration = x.raisedTo() // of requests with content: a listing has none to take for more
	}
	result := classify.Classify(subject)
	x.class, x.facts, x.mismatch = result.Class, result.Facts, result.Mismatch
	x.weigh()
	if x.request != nil {
		x.model, _ = x.snap.Model(x.request.Model) // an unknown one is denied by policy
		x.tokens = x.native(ctx)
	}
	return nil
}

// hints checks the headers that are ours. Two of one kind could be read two
// ways, so they are refused.
func (x *exchange) hints() error {
	for _, name := range []string{labelHeader, classHeader, conversationHeader} {
		if len(x.r.Header.Values(name)) > 1 {
			return fmt.Errorf("%w: %s given twice", errHeader, name)
		}
	}
	if v := x.r.Header.Get(labelHeader); v != "" {
		if _, err := policy.ParseLevel(v); err != nil {
			return fmt.Errorf("%w: %s: %w", errHeader, labelHeader, err)
		}
	}
	if v := x.r.Header.Get(classHeader); v != "" {
		if _, err := policy.ParseClass(v); err != nil {
			return fmt.Errorf("%w: %s: %w", errHeader, classHeader, err)
		}
	}
	x.conversation = newConversation()
	if v := x.r.Header.Get(conversationHeader); v != "" {
		c, err := x.g.convKey.open(v, x.owner()...)
		if err != nil {
			return err
		}
		x.conversation = c
	}
	return nil
}

// owner is whose a conversation is.
func (x *exchange) owner() []string {
	p := x.principal
	return []string{p.Tenant, p.Issuer, p.Subject, p.Workload}
}

// read takes the whole body, bounded, before anything is done with it: a
// request must not be half forwarded when the other half turns out bad.
func (x *exchange) read() error {
	gzipped, err := wire.CheckContent(x.r.Header)
	if err != nil {
		return err
	}
	limit := int64(x.live.Limits.BodyBytes)
	size := bodySize(x.r, gzipped, limit)
	if !x.g.inflight.take(size, x.live.InflightBytes) {
		return errInflight
	}
	x.held = size // until the request is over
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fmt.Errorf("%w: over %d bytes", errTooLarge, limit)
	case err != nil && x.r.Context().Err() != nil:
		return fmt.Errorf("%w: read body: %w", errClientGone, err)
	case err != nil:
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if gzipped {
		// From here on nothing knows that it ever was: what is judged is what is
		// forwarded.
		if body, err = wire.Gunzip(body, x.live.Limits); err != nil {
			return err
		}
	}
	x.g.inflight.give(size - int64(len(body)))
	x.body, x.held = body, int64(len(body))
	x.request, err = wire.Decode(x.op, body, x.live.Limits)
	return err
}

// weigh composes the label.
func (x *exchange) weigh() {
	s := classify.Sensitivity{
		WorkloadFloor: x.labelFloor(),
		TenantDefault: x.tenant.LabelDefault,
		TokenClaim:    x.principal.Label,
		Hint:          x.r.Header.Get(labelHeader),
	}
	if x.conversation.level > policy.Public {
		s.Session = x.conversation.level.String()
	}
	if x.request != nil {
		s.Scan, s.Unscannable = classify.Scan(x.g.detect, x.request), x.request.Media
	}
	label, mismatch := classify.Label(s)
	label.Categories = append(label.Categories, x.conversation.categories...)
	slices.Sort(label.Categories)
	label.Categories = slices.Compact(label.Categories)
	x.label, x.mismatch = label, x.mismatch || mismatch
	if x.request != nil {
		next := conversation{id: x.conversation.id, level: label.Level, categories: label.Categories}
		x.w.Header().Set(conversationHeader, x.g.convKey.seal(next, x.owner()...))
	}
}

// served names the model as engines do, and the adapter on it where it is one.
func (x *exchange) served() (model, adapter string) {
	if x.model.Base == "" {
		return x.model.Served, ""
	}
	base, _ := x.snap.Model(x.model.Base) // the data was checked when it was loaded
	return base.Served, x.model.Served
}
