package audit

import (
	"errors"
	"fmt"
	"slices"
)

// Encode returns the leaf bytes of r: compact JSON, fields in struct order, no
// HTML escaping, no trailing newline. They are the bytes that encoding/json
// gives for the struct tags, at a fraction of its time.
func Encode(r *Record) ([]byte, error) { return AppendLeaf(nil, r) }

// AppendLeaf adds the leaf bytes of r to dst. On an error it adds nothing.
func AppendLeaf(dst []byte, r *Record) ([]byte, error) {
	if r == nil {
		return dst, errNoRecord
	}
	b := appendHead(dst, r)
	b = appendUint(b, r.Log.Seq)
	b = appendPlace(b, r)
	b = appendTime(b, r.Time)
	b, err := appendBody(b, r)
	if err != nil {
		return dst, fmt.Errorf("encode %s record: %w", r.Kind, err)
	}
	return b, nil
}

var errNoRecord = errors.New("encode record: there is none")

// Draft is a leaf that lacks only what its place in the log decides: its
// sequence number and its time. Encoding a record is most of the work, and can
// be done before the place is known; filling in three numbers is little.
//
// The zero value is ready for Encode, and can be used again and again.
type Draft struct {
	text []byte // of the leaf, without the three numbers
	seq  int    // where in text the sequence number goes
	time int    // where in text the time goes
}

// Encode sets d to the leaf of r without its Log.Seq and its Time. It keeps
// nothing of r.
func (d *Draft) Encode(r *Record) error {
	if r == nil {
		return errNoRecord
	}
	b := appendHead(d.text[:0], r)
	d.seq = len(b)
	b = appendPlace(b, r)
	d.time = len(b)
	b, err := appendBody(b, r)
	if err != nil {
		d.text, d.seq, d.time = b[:0], 0, 0
		return fmt.Errorf("encode %s record: %w", r.Kind, err)
	}
	d.text = b
	return nil
}

// Size is how many bytes the leaf can have at most.
func (d *Draft) Size() int { return len(d.text) + len(`,"mono_ns":`) + 3*maxDigits }

// AppendLeaf adds the leaf to dst, as it is at that place.
func (d *Draft) AppendLeaf(dst []byte, seq uint64, t Time) []byte {
	dst = append(dst, d.text[:d.seq]...)
	dst = appendUint(dst, seq)
	dst = append(dst, d.text[d.seq:d.time]...)
	dst = appendTime(dst, t)
	return append(dst, d.text[d.time:]...)
}

// AppendText adds s to dst as a JSON string, as a leaf has it: control
// characters, quotes, U+2028 and U+2029 escaped, what is not UTF-8 replaced.
func AppendText[S ~string](dst []byte, s S) []byte { return appendQuoted(dst, string(s)) }

// appendHead adds a record up to its sequence number.
func appendHead(b []byte, r *Record) []byte {
	b = num(b, `{"v":`, r.V)
	b = text(b, `,"kind":`, r.Kind)
	b = text(b, `,"id":`, r.ID)
	b = optText(b, `,"parent":`, r.Parent)
	b = text(b, `,"log":{"origin":`, r.Log.Origin)
	return append(b, `,"seq":`...)
}

// appendPlace adds what is between the sequence number and the time.
func appendPlace(b []byte, r *Record) []byte {
	b = text(b, `,"boot":`, r.Log.Boot)
	b = text(b, `},"salt":`, r.Salt)
	return append(b, `,"time":{"wall":`...)
}

// appendTime adds the numbers of a time, and the name between them.
func appendTime(b []byte, t Time) []byte {
	b = appendInt(b, t.Wall)
	return num(b, `,"mono_ns":`, t.MonoNS)
}

// appendBody adds what comes after the numbers of the time.
func appendBody(b []byte, r *Record) ([]byte, error) {
	b, err := AppendFields(append(b, '}'), r)
	return append(b, '}'), err
}

// AppendFields adds to dst what of a leaf comes after its time, in the same
// form: each field with a comma before it. So another form of a record can hold
// the same fields.
func AppendFields(b []byte, r *Record) (_ []byte, err error) {
	b = appendGateway(b, r.Gateway)
	b = appendCaller(b, r.Caller)
	b = appendPolicy(b, r.Policy)
	if b, err = raw(b, `,"input":`, r.Input); err != nil {
		return b, fmt.Errorf("input: %w", err)
	}
	if b, err = raw(b, `,"decision":`, r.Decision); err != nil {
		return b, fmt.Errorf("decision: %w", err)
	}
	b = appendClass(b, r.Class)
	b = appendLabel(b, r.Label)
	b = appendRequest(b, r.Request)
	b = appendPlacement(b, r.Placement)
	b = optNum(b, `,"attempt":`, r.Attempt)
	b = optText(b, `,"durability":`, r.Durability)
	b = optText(b, `,"reason":`, r.Reason)
	b = optText(b, `,"status":`, r.Status)
	b = optNum(b, `,"http":`, r.HTTP)
	b = optText(b, `,"detail":`, r.Detail)
	b = appendOutcome(b, r.Outcome)
	b = optList(b, `,"denials":[`, r.Denials, appendDenialCount)
	if b, err = raw(b, `,"event":`, r.Event); err != nil {
		return b, fmt.Errorf("event: %w", err)
	}
	return b, nil
}

func appendGateway(b []byte, g *Gateway) []byte {
	if g == nil {
		return b
	}
	b = text(b, `,"gateway":{"spiffe":`, g.SPIFFE)
	b = text(b, `,"build":`, g.Build)
	b = text(b, `,"config":`, g.Config)
	return append(b, '}')
}

func appendCaller(b []byte, c *Caller) []byte {
	if c == nil {
		return b
	}
	b = text(b, `,"caller":{"mode":`, c.Mode)
	b = text(b, `,"ref":`, c.Ref)
	b = text(b, `,"tenant":`, c.Tenant)
	b = text(b, `,"kind":`, c.Kind)
	b = text(b, `,"method":`, c.Method)
	b = optText(b, `,"issuer":`, c.Issuer)
	b = optText(b, `,"cred_fp":`, c.CredFP)
	b = optText(b, `,"workload":`, c.Workload)
	b = optText(b, `,"registration":`, c.Registration)
	b = optList(b, `,"chain":[`, c.Chain, appendActor)
	return append(b, '}')
}

func appendActor(b []byte, a *Actor) []byte {
	b = text(b, `{"type":`, a.Type)
	b = text(b, `,"subject":`, a.Subject)
	b = optText(b, `,"registration":`, a.Registration)
	return append(b, '}')
}

func appendPolicy(b []byte, p *Policy) []byte {
	if p == nil {
		return b
	}
	b = text(b, `,"policy":{"revision":`, p.Revision)
	b = text(b, `,"digest":`, p.Digest)
	b = optTexts(b, `,"rules":`, p.Rules)
	b = num(b, `,"eval_us":`, p.EvalUS)
	b = optTexts(b, `,"clamps":`, p.Clamps)
	b = optText(b, `,"shadow_diff":`, p.ShadowDiff)
	return append(b, '}')
}

func appendClass(b []byte, c *Class) []byte {
	if c == nil {
		return b
	}
	b = text(b, `,"class":{"name":`, c.Name)
	b = optTexts(b, `,"facts":`, c.Facts)
	b = optTrue(b, `,"mismatch":true`, c.Mismatch)
	b = text(b, `,"table":`, c.Table)
	return append(b, '}')
}

func appendLabel(b []byte, l *Label) []byte {
	if l == nil {
		return b
	}
	b = text(b, `,"label":{"level":`, l.Level)
	b = num(b, `,"rank":`, l.Rank)
	b = optTexts(b, `,"categories":`, l.Categories)
	b = optList(b, `,"sources":[`, l.Sources, appendLabelSource)
	return append(b, '}')
}

func appendLabelSource(b []byte, s *LabelSource) []byte {
	b = text(b, `{"source":`, s.Source)
	b = text(b, `,"level":`, s.Level)
	b = optText(b, `,"detail":`, s.Detail)
	return append(b, '}')
}

func appendRequest(b []byte, r *Request) []byte {
	if r == nil {
		return b
	}
	b = text(b, `,"request":{"operation":`, r.Operation)
	b = text(b, `,"model":`, r.Model)
	b = optText(b, `,"served":`, r.Served)
	b = optTrue(b, `,"stream":true`, r.Stream)
	b = num(b, `,"body_bytes":`, r.BodyBytes)
	b = num(b, `,"prompt_tokens":`, r.PromptTokens)
	b = optText(b, `,"prompt_tokens_basis":`, r.PromptBasis)
	b = optTexts(b, `,"prompt_tokens_why":`, r.PromptWhy)
	b = optText(b, `,"prompt_mac":`, r.PromptMAC)
	b = optTexts(b, `,"removed":`, r.Removed)
	return append(b, '}')
}

func appendPlacement(b []byte, p *Placement) []byte {
	if p == nil {
		return b
	}
	b = text(b, `,"placement":{"strategy":`, p.Strategy)
	b = text(b, `,"basis":`, p.Basis)
	b = optText(b, `,"basis_reason":`, p.BasisReason)
	b = text(b, `,"pool":`, p.Pool)
	b = text(b, `,"replica":`, p.Replica)
	b = optText(b, `,"epoch":`, p.Epoch)
	b = optNum(b, `,"rank":`, p.Rank)
	b = appendUint(append(b, `,"seed":`...), p.Seed)
	b = num(b, `,"predicted_cached_tokens":`, p.PredictedCached)
	b = num(b, `,"block_size":`, p.BlockSize)
	b = num(b, `,"blocks":`, p.Blocks)
	b = num(b, `,"event_lag_ms":`, p.EventLagMS)
	b = text(b, `,"chosen_because":`, p.ChosenBecause)
	b = num(b, `,"others_per_mille":`, p.Others)
	b = num(b, `,"usual_ns":`, p.Usual)
	b = optList(b, `,"candidates":[`, p.Candidates, appendCandidate)
	b = optNum(b, `,"omitted":`, p.Omitted)
	b = appendExcluded(b, p.Excluded)
	b = num(b, `,"considered":`, p.Considered)
	return append(b, '}')
}

// appendExcluded adds the reasons in their order, as a map has none.
func appendExcluded(b []byte, m map[string]int) []byte {
	if len(m) == 0 {
		return b
	}
	var room [16]string
	reasons := room[:0]
	for reason := range m {
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	b = append(b, `,"excluded":`...)
	for i, reason := range reasons {
		b = text(b, between(i, "{"), reason)
		b = num(b, `:`, m[reason])
	}
	return append(b, '}')
}

func appendCandidate(b []byte, c *Candidate) []byte {
	b = text(b, `{"replica":`, c.Replica)
	b = optText(b, `,"region":`, c.Region)
	b = text(b, `,"stream":`, c.Stream)
	b = num(b, `,"block_size":`, c.BlockSize)
	b = num(b, `,"depth":`, c.Depth)
	b = num(b, `,"overlay":`, c.Overlay)
	b = optNum(b, `,"lower":`, c.Lower)
	b = num(b, `,"confidence":`, c.Confidence)
	b = num(b, `,"waiting_tokens":`, c.Waiting)
	b = num(b, `,"prefill_ps":`, c.PrefillPS)
	b = optNum(b, `,"lower_ps":`, c.LowerPS)
	b = num(b, `,"decode_ns":`, c.DecodeNS)
	b = num(b, `,"kv_free_blocks":`, c.KVFree)
	b = num(b, `,"kv_total_blocks":`, c.KVTotal)
	b = num(b, `,"running":`, c.Running)
	b = num(b, `,"waiting":`, c.WaitingRequests)
	b = num(b, `,"load_tokens":`, c.Load)
	b = num(b, `,"cost_ns":`, c.CostNS)
	b = optNum(b, `,"prefer_penalty_ns":`, c.PreferPenalty)
	return append(b, '}')
}

func appendOutcome(b []byte, o *Outcome) []byte {
	if o == nil {
		return b
	}
	b = text(b, `,"outcome":{"status":`, o.Status)
	b = num(b, `,"http":`, o.HTTP)
	b = num(b, `,"upstream_http":`, o.UpstreamHTTP)
	b = optText(b, `,"replica":`, o.Replica)
	b = optText(b, `,"peer":`, o.Peer)
	b = num(b, `,"ttft_ms":`, o.TTFTMS)
	b = num(b, `,"duration_ms":`, o.DurationMS)
	b = num(b, `,"prompt_tokens":`, o.PromptTokens)
	b = num(b, `,"completion_tokens":`, o.CompletionTokens)
	if o.CachedTokens == nil {
		b = append(b, `,"cached_tokens":null`...)
	} else {
		b = num(b, `,"cached_tokens":`, *o.CachedTokens)
	}
	b = optText(b, `,"finish":`, o.Finish)
	b = optText(b, `,"error_class":`, o.ErrorClass)
	b = texts(b, `,"inspected":{"request":`, o.Inspected.Request)
	b = texts(b, `,"response":`, o.Inspected.Response)
	return append(b, "}}"...)
}

func appendDenialCount(b []byte, d *DenialCount) []byte {
	b = text(b, `{"prefix":`, d.Prefix)
	b = text(b, `,"code":`, d.Code)
	b = appendUint(append(b, `,"count":`...), d.Count)
	b = num(b, `,"first":`, d.First)
	b = num(b, `,"last":`, d.Last)
	return append(b, '}')
}
