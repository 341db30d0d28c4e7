package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// A prompt's token ids come from the first of these that can give them:
//
//   - our own tokenizer, while the evidence (check.go) does not speak against it;
//   - an engine, asked through its relay like for an inference: only once policy
//     has allowed the request, only in the pools that it permits, with a ticket,
//     and with a decision record of its own that is durable before a byte leaves;
//   - nobody: the length is estimated, and the conversation is known by its text.
//
// None of this fails a request, and none takes longer than a budget.

// How prompt tokens were counted, as policy sees it.
const (
	basisNative   = "native"
	basisEngine   = "engine"
	basisEstimate = "estimate"
)

// Why a step of the chain was passed over, as records say it.
const (
	noTokenizer    = "no_tokenizer"    // the model's files are not here
	notNative      = "unsupported"     // our tokenizer cannot do this request
	doubted        = "mismatches"      // our tokenizer's ids were not the engine's
	countNoRoute   = "engine_no_route" // no permitted engine counts such prompts
	countBusy      = "engine_busy"     // as many counts as may be are under way
	countSlow      = "engine_timeout"
	countFailed    = "engine_failed"
	countMalformed = "engine_malformed"
	countUnlogged  = "engine_audit" // the log did not take the record in time
	countMoved     = "engine_moved" // credential or policy may have changed meanwhile
)

// tokens is the prompt as the engine will see it.
type tokens struct {
	ids       []uint32 // the first ones, of all unless the prompt holds media; nil where they are not known
	count     int
	basis     string
	why       []string                                   // why the basis is not better
	firstTurn []uint32                                   // of the first user message, for affinity; of its text where there are no ids
	blocks    func([]uint64, *blockid.Key, int) []uint64 // appends the ids of ids' blocks; nil: they are computed

	// Our own tokenizer's, believed or not; nil where it cannot do the request.
	own       []uint32
	ownBlocks func([]uint64, *blockid.Key, int) []uint64
	standing  *prompt.Standing
	level     prompt.Level // when they were made
	compared  bool         // with an engine's ids
}

// exact reports whether a count with that basis, as policy or a record names
// it, is the engine's.
func exact(basis string) bool { return basis == basisEngine || strings.HasPrefix(basis, basisNative) }

// named is the basis as records have it.
func (t *tokens) named() string {
	if t.basis == basisNative {
		return t.basis + "_" + t.level.String()
	}
	return t.basis
}

// estimate counts the prompt without any tokenizer.
func (x *exchange) estimate() tokens {
	t := tokens{count: (len(x.body) + 3) / 4, basis: basisEstimate}
	for _, b := range x.request.FirstUserText(turnBytes) {
		t.firstTurn = append(t.firstTurn, uint32(b))
	}
	return t
}

// turnBytes is how much of the first user turn is looked at.
const turnBytes = 4 << 10

// native tokenizes the prompt as the engine will, if that can be done here.
func (x *exchange) native(ctx context.Context) tokens {
	base, _ := x.served()
	m := x.live.Prompts[base]
	if m == nil {
		t := x.estimate()
		t.why = []string{noTokenizer}
		return t
	}
	// What is remembered of prompts is the tenant's own. The cache domain would
	// part it finer, but only policy names that, and policy wants the count; within
	// a tenant, time may tell what was sent before, across tenants it tells nothing.
	p, err := x.tokenize(ctx, m)
	if err != nil {
		// The error may quote the prompt, so it is not for any log.
		x.g.cfg.Logger.Debug("prompt not tokenized here", "decision_id", x.id, "model", x.model.Name)
		t := x.estimate()
		t.why = []string{notNative}
		return t
	}
	s := x.live.standings[base]
	t := tokens{
		ids: p.IDs, count: len(p.IDs), basis: basisNative, firstTurn: p.FirstUserTurn, blocks: p.AppendBlocks,
		own: p.IDs, ownBlocks: p.AppendBlocks, standing: s, level: s.Level(),
	}
	if t.level == prompt.Distrusted {
		e := x.estimate()
		t.ids, t.blocks, t.count, t.basis, t.why = nil, nil, e.count, e.basis, []string{doubted}
	}
	return t
}

// tokenize has the prompt of the request's kind made.
func (x *exchange) tokenize(ctx context.Context, m *prompt.Memory) (prompt.Prompt, error) {
	switch x.op.Engine {
	case wire.ChatCompletions.Engine:
		return m.Chat(ctx, x.principal.Tenant, x.request.Body)
	case wire.Completions.Engine:
		return m.Completion(ctx, x.principal.Tenant, x.request.Body)
	case wire.Responses.Engine:
		return m.Response(ctx, x.principal.Tenant, x.request.Body)
	default:
		return prompt.Prompt{}, prompt.ErrUnsupported
	}
}

// count asks an engine for the token ids that our own tokenizer cannot give, and
// policy once more with what came of it. Only policy can make it fail.
func (x *exchange) count(ctx context.Context) error {
	defer func() { x.g.metrics.prompted(ctx, x) }()
	if x.tokens.basis == basisNative {
		return nil
	}
	began := time.Now()
	got, why := x.askEngine(ctx)
	x.g.metrics.askedEngine(ctx, why, time.Since(began))
	if why != "" {
		x.tokens.why = append(x.tokens.why, why)
		return nil
	}
	x.compare(ctx, got)
	t := &x.tokens
	t.ids, t.count, t.basis = got.known, got.count, basisEngine
	return x.may(ctx)
}

// countAnswer is an engine's answer.
type countAnswer struct {
	known []uint32 // ids up to the first that stands for media
	count int
}

// askEngine returns the engine's ids, or why there are none.
func (x *exchange) askEngine(ctx context.Context) (countAnswer, string) {
	ctx, cancel := context.WithTimeout(ctx, x.g.cfg.CountTimeout)
	defer cancel()
	if !x.g.counting.enter() {
		return countAnswer{}, countBusy
	}
	defer x.g.counting.leave()
	id := uuid.NewString()
	if v7, err := uuid.NewV7(); err == nil {
		id = v7.String()
	}
	for _, q := range x.questions() {
		res, err := x.g.cfg.Fleet.Reserve(ctx, x.countingRequest(id, q))
		switch {
		case errors.Is(err, routing.ErrNoReplica):
			continue // the next question may be one that somebody answers
		case err != nil:
			return countAnswer{}, countSlow
		}
		got, err := x.askReplica(ctx, id, q, res)
		return got, whyNot(ctx, err)
	}
	return countAnswer{}, countNoRoute
}

// whyNot names an error of a count.
func whyNot(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errCountUnlogged):
		return countUnlogged
	case errors.Is(err, errCountMoved):
		return countMoved
	case errors.Is(err, errCount):
		return countMalformed
	case ctx.Err() != nil, errors.Is(err, upstream.ErrTimeout):
		return countSlow
	default:
		return countFailed
	}
}

var (
	errCount         = errors.New("engine's count is not understood")
	errCountUnlogged = errors.New("count could not be written down")
	errCountMoved    = errors.New("permission may have changed")
)

// countingRequest asks for a replica that answers the question. It is placed
// like the request itself, so that its record can be made again in the same
// way, but the load that it counts for is given back as soon as it is over.
func (x *exchange) countingRequest(id string, q question) fleet.Request {
	model, adapter := x.served()
	return fleet.Request{
		Pools: x.decision.Pools, Model: model, Adapter: adapter, Domain: x.domain, Operation: q.operation(),
		PromptTokens: x.tokens.count, MaxOutput: x.maxOutput(), Strategy: routing.Strategy(x.decision.Strategy), Seed: Seed(id, 1),
		Region: x.decision.Prefer.Region, Warm: x.decision.Prefer.Warm, Exclude: x.g.counting.open(time.Now()),
	}
}

// askReplica writes down that the prompt goes to a replica, sends it there and
// reads the ids.
func (x *exchange) askReplica(ctx context.Context, id string, q question, res *fleet.Reservation) (countAnswer, error) {
	rec := x.record()
	rec.ID, rec.Parent, rec.Attempt = id, x.id, 1
	rec.Status, rec.Reason, rec.Placement = audit.StatusAllowed, reasonCount, placementOf(res)
	rec.Request.Operation, rec.Durability = q.operation(), x.durability()
	if err := x.append(ctx, rec); err != nil {
		res.Release()
		return countAnswer{}, fmt.Errorf("%w: %w", errCountUnlogged, err)
	}
	end := countEnd{err: errPanic}
	defer func() { // owed whatever happens
		if end.sent {
			res.Finish(fleet.Result{Aside: true})
		} else {
			res.Release()
		}
		if end.err == nil || end.blames() && x.r.Context().Err() == nil {
			x.g.counting.over(res.Replica.ID, end.err == nil, time.Now())
		}
		x.settleCount(ctx, rec, res, end)
	}()
	switch {
	case ctx.Err() != nil: // the log took it at the last moment
		end.err = fmt.Errorf("%w: %w", errCountUnlogged, context.Cause(ctx))
		return countAnswer{}, end.err
	case x.moved():
		end.err = errCountMoved
		return countAnswer{}, end.err
	}
	got := x.sendCount(ctx, id, q, res, &end)
	return got, end.err
}

// moved reports whether what let the prompt go may have changed while its record
// was written. Then it is not counted; recheck finds out what became of it.
func (x *exchange) moved() bool {
	return x.expired(time.Now()) || closed(x.withdrawn) || x.g.cfg.Policy.Snapshot() != x.snap
}

// reasonCount is the reason of a decision that lets a prompt go to an engine to
// be counted, and no more.
const reasonCount = "count_prompt"

// sendCount asks the replica of the reservation, and notes how that ended.
func (x *exchange) sendCount(ctx context.Context, id string, q question, res *fleet.Reservation, end *countEnd) (got countAnswer) {
	model, adapter := x.served()
	signed, err := x.g.cfg.Tickets.Sign(ticket.Ticket{
		ID: id, Attempt: 1, N: res.Counter, Op: q.operation(),
		Audience: res.Replica.ID, Epoch: res.Replica.Epoch, Pool: res.Replica.Pool,
		Model: model, Adapter: adapter, Domain: x.domain, Rank: res.Replica.Rank,
		Body: sha256.Sum256(q.body), Exp: time.Now().Add(ticket.Lifetime).Unix(),
	})
	if err != nil {
		end.err = fmt.Errorf("sign ticket: %w", err)
		return got
	}
	end.sent = true // or so it may be
	resp, err := x.g.cfg.Upstream.Do(ctx, upstream.Replica{Address: res.Replica.Address, ID: res.Replica.ID}, upstream.Request{
		Method: http.MethodPost, Path: q.path, Body: q.body,
		Header: http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json"}, "User-Agent": {"sallyport"},
			ticket.Header: {signed},
		},
	})
	if err != nil {
		end.err = err
		return got
	}
	defer func() { _ = resp.Body.Close() }() // read to its end or given up
	end.peer, end.status = resp.Peer, resp.Status
	if resp.Status != http.StatusOK {
		end.err = fmt.Errorf("%w: status %d", errEngineFailed, resp.Status)
		return got
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxCountAnswer+1))
	switch {
	case err != nil:
		end.err = fmt.Errorf("read count: %w", err)
	case len(body) > maxCountAnswer:
		end.err = fmt.Errorf("%w: over %d bytes", errCount, maxCountAnswer)
	default:
		got, end.err = q.read(body)
		end.count = got.count
	}
	return got
}

// countEnd is how a count ended.
type countEnd struct {
	sent   bool
	peer   string
	status int
	count  int
	err    error
}

// blames reports whether a failure says anything of the replica: that an engine
// does not take a prompt says that of the prompt.
func (c *countEnd) blames() bool {
	return c.sent && c.status != http.StatusBadRequest && c.status != http.StatusUnprocessableEntity
}

// settleCount writes the outcome of a count. It is owed, but nobody waits for it
// before the end of the request.
func (x *exchange) settleCount(ctx context.Context, d *audit.Record, res *fleet.Reservation, c countEnd) {
	rec := &audit.Record{
		V: audit.Version, Kind: audit.KindOutcome, ID: d.ID, Parent: d.Parent, Attempt: 1, Status: audit.StatusOK,
		Outcome: &audit.Outcome{
			Status: audit.StatusOK, UpstreamHTTP: c.status, Peer: c.peer, Replica: res.Replica.ID,
			DurationMS: time.Since(x.began).Milliseconds(), PromptTokens: c.count,
			Inspected: audit.Inspected{Request: notNil(x.decision.Inspect.Request), Response: []string{}},
		},
		Durability: d.Durability,
	}
	x.nameParties(rec)
	if c.err != nil {
		rec.Status = audit.StatusError
		if !c.sent {
			rec.Status = audit.StatusNotForwarded
		}
		rec.Outcome.Status = rec.Status
		rec.Reason = whyNot(ctx, c.err)
	}
	ctx = context.WithoutCancel(ctx)
	x.owed.Go(func() {
		if err := x.append(ctx, rec); err != nil {
			x.g.cfg.Logger.Error("outcome of a count not recorded", "decision_id", rec.ID, "error", err)
		}
	})
}

// sameIDs reports whether our ids are the engine's, as far as those are known.
func sameIDs(own []uint32, got countAnswer) bool {
	return len(own) == got.count && slices.Equal(own[:len(got.known)], got.known)
}
