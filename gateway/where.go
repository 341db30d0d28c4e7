package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// where picks a replica among the permitted pools and reserves room on it.
func (x *exchange) where(ctx context.Context) error {
	x.attempt = x.decided + 1
	x.recorded, x.stale, x.reservation, x.sent = false, nil, nil, time.Time{}
	model, adapter := x.served()
	ask := fleet.Request{
		Pools:        x.decision.Pools,
		Model:        model,
		Adapter:      adapter,
		Domain:       x.domain,
		Operation:    x.operation(),
		Tokens:       x.tokens.ids,
		TokensExact:  exact(x.tokens.basis),
		AppendBlocks: x.tokens.blocks,
		PromptTokens: x.tokens.count,
		Affinity:     x.affinity(),
		Strategy:     routing.Strategy(x.decision.Strategy),
		Seed:         Seed(x.id, x.attempt),
		MaxOutput:    x.maxOutput(),
		Region:       x.decision.Prefer.Region,
		Warm:         x.decision.Prefer.Warm,
		Exclude:      x.exclude,
	}
	res, err := x.g.cfg.Fleet.Reserve(ctx, ask)
	if err != nil {
		return x.nobody(ask, err)
	}
	x.reservation = res
	x.g.metrics.placed(ctx, x)
	if x.reason == "" && res.HolderDown {
		x.reason = string(routing.HolderDown)
	}
	return nil
}

// operation is the engine's route, as relays and tickets name it: not the
// caller's where the request was translated.
func (x *exchange) operation() string { return x.op.Method + " " + x.op.Engine }

// affinity keeps a conversation together where residency cannot: a digest of
// the namespace and the first user turn, not of the system prompt that many
// share. It is equal on every gateway and never logged.
func (x *exchange) affinity() [32]byte {
	if len(x.tokens.firstTurn) == 0 {
		return [32]byte{}
	}
	h := sha256.New()
	h.Write([]byte(x.model.Served))
	h.Write([]byte{0})
	h.Write([]byte(x.domain))
	h.Write([]byte{0})
	for _, t := range x.tokens.firstTurn {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], t)
		h.Write(b[:])
	}
	return [32]byte(h.Sum(nil))
}

// maxOutput is the most tokens the answer may have, or 0 where nobody said.
func (x *exchange) maxOutput() int {
	return leastOf(x.request.MaxTokens, x.decision.Limits.MaxOutputTokens)
}

// leastOf is the least of the limits that somebody set, or 0.
func leastOf(limits ...*int64) int {
	least := int64(0)
	for _, l := range limits {
		if l != nil && (least == 0 || *l < least) {
			least = *l
		}
	}
	return int(least)
}

// list answers GET /v1/models with what this principal may use.
func (x *exchange) list(ctx context.Context) error {
	shown, err := x.permittedModels(ctx)
	if err != nil {
		return err
	}
	if err := x.step(ctx, "write", x.write); err != nil {
		return err
	}
	end := ended{status: audit.StatusOK, http: http.StatusOK}
	if err := writeModels(x.w, shown); err != nil {
		end = failed(errClientGone)
	}
	x.settle(ctx, end)
	return nil
}
