package audit

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Decode parses leaf bytes. Fields it does not know are ignored, so that an
// older reader can show a newer log; verification never decodes.
func Decode(leaf []byte) (*Record, error) {
	if r, ok := DecodeExact(leaf); ok {
		return r, nil
	}
	r := new(Record)
	if err := json.Unmarshal(leaf, r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	return r, nil
}

// DecodeExact parses a leaf of the very form that [Encode] gives it, an order of
// magnitude faster than its JSON can be read. It says no to any other, also to
// one that Decode would understand: with white space, or with a field that is
// not known, stands twice, or stands elsewhere. The record shares nothing with
// leaf. Its texts are parts of one string as long as the leaf: whoever keeps one
// of them for long and not the others should keep a [strings.Clone].
func DecodeExact(leaf []byte) (*Record, bool) {
	d := &exact{b: leaf, s: string(leaf)}
	r := d.record()
	return r, !d.bad && d.i == len(d.b)
}

// DecodeOutline is DecodeExact for who needs neither the policy input nor the
// candidates of a placement, which are most of a record: the record has none.
// They are checked to be JSON, and no more.
func DecodeOutline(leaf []byte) (*Record, bool) {
	d := &exact{b: leaf, s: string(leaf), outline: true}
	r := d.record()
	return r, !d.bad && d.i == len(d.b)
}

// exact reads a leaf from left to right. The names that it is asked for are the
// text between two values, with all punctuation.
type exact struct {
	b   []byte // the leaf
	s   string // the same; texts of the record are parts of it
	i   int    // what has been read
	bad bool   // it is not of the form; nothing more is read

	outline bool // see DecodeOutline
}

func (d *exact) record() *Record {
	r := new(Record)
	r.V = d.num(`{"v":`)
	r.Kind = kindOf(d.text(`,"kind":`))
	r.ID = d.text(`,"id":`)
	r.Parent = d.optText(`,"parent":`)
	r.Log.Origin = d.text(`,"log":{"origin":`)
	r.Log.Seq = d.uint(`,"seq":`)
	r.Log.Boot = d.text(`,"boot":`)
	r.Salt = d.text(`},"salt":`)
	r.Time.Wall = d.int(`,"time":{"wall":`)
	r.Time.MonoNS = d.int(`,"mono_ns":`)
	d.must(`}`)
	r.Gateway = d.gateway()
	r.Caller = d.caller()
	r.Policy = d.policy()
	if d.outline {
		d.skip(`,"input":`)
	} else {
		r.Input = d.raw(`,"input":`)
	}
	r.Decision = d.raw(`,"decision":`)
	r.Class = d.class()
	r.Label = d.label()
	r.Request = d.request()
	r.Placement = d.placement()
	r.Attempt = d.optNum(`,"attempt":`)
	r.Durability = Durability(d.optText(`,"durability":`))
	r.Reason = d.optText(`,"reason":`)
	r.Status = d.optText(`,"status":`)
	r.HTTP = d.optNum(`,"http":`)
	r.Detail = d.optText(`,"detail":`)
	r.Outcome = d.outcome()
	r.Denials = optEach(d, `,"denials":[`, 8, (*exact).denialCount)
	r.Event = d.raw(`,"event":`)
	d.must(`}`)
	return r
}

// kindOf spares that a kind keeps its leaf in memory.
func kindOf(s string) Kind {
	for _, k := range Kinds {
		if s == string(k) {
			return k
		}
	}
	return Kind(s)
}

func (d *exact) gateway() *Gateway {
	if !d.is(`,"gateway":{"spiffe":`) {
		return nil
	}
	g := new(Gateway)
	g.SPIFFE = d.text(``)
	g.Build = d.text(`,"build":`)
	g.Config = d.text(`,"config":`)
	d.must(`}`)
	return g
}

func (d *exact) caller() *Caller {
	if !d.is(`,"caller":{"mode":`) {
		return nil
	}
	c := new(Caller)
	c.Mode = d.text(``)
	c.Ref = d.text(`,"ref":`)
	c.Tenant = d.text(`,"tenant":`)
	c.Kind = d.text(`,"kind":`)
	c.Method = d.text(`,"method":`)
	c.Issuer = d.optText(`,"issuer":`)
	c.CredFP = d.optText(`,"cred_fp":`)
	c.Workload = d.optText(`,"workload":`)
	c.Registration = d.optText(`,"registration":`)
	c.Chain = optEach(d, `,"chain":[`, 2, (*exact).actor)
	d.must(`}`)
	return c
}

func (d *exact) actor(a *Actor) {
	a.Type = d.text(`{"type":`)
	a.Subject = d.text(`,"subject":`)
	a.Registration = d.optText(`,"registration":`)
	d.must(`}`)
}

func (d *exact) policy() *Policy {
	if !d.is(`,"policy":{"revision":`) {
		return nil
	}
	p := new(Policy)
	p.Revision = d.text(``)
	p.Digest = d.text(`,"digest":`)
	p.Rules = d.optTexts(`,"rules":`)
	p.EvalUS = d.int(`,"eval_us":`)
	p.Clamps = d.optTexts(`,"clamps":`)
	p.ShadowDiff = d.optText(`,"shadow_diff":`)
	d.must(`}`)
	return p
}

func (d *exact) class() *Class {
	if !d.is(`,"class":{"name":`) {
		return nil
	}
	c := new(Class)
	c.Name = d.text(``)
	c.Facts = d.optTexts(`,"facts":`)
	c.Mismatch = d.is(`,"mismatch":true`)
	c.Table = d.text(`,"table":`)
	d.must(`}`)
	return c
}

func (d *exact) label() *Label {
	if !d.is(`,"label":{"level":`) {
		return nil
	}
	l := new(Label)
	l.Level = d.text(``)
	l.Rank = d.num(`,"rank":`)
	l.Categories = d.optTexts(`,"categories":`)
	l.Sources = optEach(d, `,"sources":[`, 2, (*exact).labelSource)
	d.must(`}`)
	return l
}

func (d *exact) labelSource(s *LabelSource) {
	s.Source = d.text(`{"source":`)
	s.Level = d.text(`,"level":`)
	s.Detail = d.optText(`,"detail":`)
	d.must(`}`)
}

func (d *exact) request() *Request {
	if !d.is(`,"request":{"operation":`) {
		return nil
	}
	r := new(Request)
	r.Operation = d.text(``)
	r.Model = d.text(`,"model":`)
	r.Served = d.optText(`,"served":`)
	r.Stream = d.is(`,"stream":true`)
	r.BodyBytes = d.num(`,"body_bytes":`)
	r.PromptTokens = d.num(`,"prompt_tokens":`)
	r.PromptBasis = d.optText(`,"prompt_tokens_basis":`)
	r.PromptWhy = d.optTexts(`,"prompt_tokens_why":`)
	r.PromptMAC = d.optText(`,"prompt_mac":`)
	r.Removed = d.optTexts(`,"removed":`)
	d.must(`}`)
	return r
}

func (d *exact) placement() *Placement {
	if !d.is(`,"placement":{"strategy":`) {
		return nil
	}
	p := new(Placement)
	p.Strategy = d.text(``)
	p.Basis = d.text(`,"basis":`)
	p.BasisReason = d.optText(`,"basis_reason":`)
	p.Pool = d.text(`,"pool":`)
	p.Replica = d.text(`,"replica":`)
	p.Epoch = d.optText(`,"epoch":`)
	p.Rank = d.optNum(`,"rank":`)
	p.Seed = d.uint(`,"seed":`)
	p.PredictedCached = d.num(`,"predicted_cached_tokens":`)
	p.BlockSize = d.num(`,"block_size":`)
	p.Blocks = d.num(`,"blocks":`)
	p.EventLagMS = d.int(`,"event_lag_ms":`)
	p.ChosenBecause = d.text(`,"chosen_because":`)
	p.Others = d.int(`,"others_per_mille":`)
	p.Usual = d.int(`,"usual_ns":`)
	if d.outline {
		d.skip(`,"candidates":`)
	} else {
		p.Candidates = optEach(d, `,"candidates":[`, strings.Count(d.s[d.i:], `{"replica":`), (*exact).candidate)
	}
	p.Omitted = d.optNum(`,"omitted":`)
	p.Excluded = d.excluded()
	p.Considered = d.num(`,"considered":`)
	d.must(`}`)
	return p
}

func (d *exact) excluded() map[string]int {
	if !d.is(`,"excluded":{`) {
		return nil
	}
	m := make(map[string]int)
	for !d.bad {
		reason := d.text(``)
		if _, twice := m[reason]; twice {
			d.fail()
		}
		m[reason] = d.num(`:`)
		if !d.is(`,`) {
			d.must(`}`)
			break
		}
	}
	return m
}

func (d *exact) candidate(c *Candidate) {
	c.Replica = d.text(`{"replica":`)
	c.Region = d.optText(`,"region":`)
	c.Stream = d.text(`,"stream":`)
	c.BlockSize = d.num(`,"block_size":`)
	c.Depth = d.num(`,"depth":`)
	c.Overlay = d.num(`,"overlay":`)
	c.Lower = d.optNum(`,"lower":`)
	c.Confidence = d.num(`,"confidence":`)
	c.Waiting = d.int(`,"waiting_tokens":`)
	c.PrefillPS = d.int(`,"prefill_ps":`)
	c.LowerPS = d.optInt(`,"lower_ps":`)
	c.DecodeNS = d.int(`,"decode_ns":`)
	c.KVFree = d.int(`,"kv_free_blocks":`)
	c.KVTotal = d.int(`,"kv_total_blocks":`)
	c.Running = d.int(`,"running":`)
	c.WaitingRequests = d.int(`,"waiting":`)
	c.Load = d.int(`,"load_tokens":`)
	c.CostNS = d.int(`,"cost_ns":`)
	c.PreferPenalty = d.optInt(`,"prefer_penalty_ns":`)
	d.must(`}`)
}

func (d *exact) outcome() *Outcome {
	if !d.is(`,"outcome":{"status":`) {
		return nil
	}
	o := new(Outcome)
	o.Status = d.text(``)
	o.HTTP = d.num(`,"http":`)
	o.UpstreamHTTP = d.num(`,"upstream_http":`)
	o.Replica = d.optText(`,"replica":`)
	o.Peer = d.optText(`,"peer":`)
	o.TTFTMS = d.int(`,"ttft_ms":`)
	o.DurationMS = d.int(`,"duration_ms":`)
	o.PromptTokens = d.num(`,"prompt_tokens":`)
	o.CompletionTokens = d.num(`,"completion_tokens":`)
	if !d.is(`,"cached_tokens":null`) {
		cached := d.num(`,"cached_tokens":`)
		o.CachedTokens = &cached
	}
	o.Finish = d.optText(`,"finish":`)
	o.ErrorClass = d.optText(`,"error_class":`)
	o.Inspected.Request = d.texts(`,"inspected":{"request":`)
	o.Inspected.Response = d.texts(`,"response":`)
	d.must(`}}`)
	return o
}

func (d *exact) denialCount(c *DenialCount) {
	c.Prefix = d.text(`{"prefix":`)
	c.Code = d.text(`,"code":`)
	c.Count = d.uint(`,"count":`)
	c.First = d.int(`,"first":`)
	c.Last = d.int(`,"last":`)
	d.must(`}`)
}

// fail ends the reading: nothing can follow.
func (d *exact) fail() { d.bad, d.i = true, len(d.b) }

// is reads text if that is what comes next.
func (d *exact) is(text string) bool {
	if !strings.HasPrefix(d.s[d.i:], text) {
		return false
	}
	d.i += len(text)
	return true
}

func (d *exact) must(text string) {
	if !d.is(text) {
		d.fail()
	}
}

func (d *exact) text(name string) string {
	d.must(name)
	if d.i >= len(d.b) || d.b[d.i] != '"' {
		d.fail()
		return ""
	}
	from := d.i
	end := endOfString(d.b, from+1)
	if end < 0 {
		d.fail()
		return ""
	}
	d.i = end
	s := d.s[from+1 : end-1]
	if strings.IndexByte(s, '\\') < 0 && utf8.ValidString(s) {
		return s
	}
	var unquoted string
	if err := json.Unmarshal(d.b[from:end], &unquoted); err != nil {
		d.fail()
	}
	return unquoted
}

func (d *exact) optText(name string) string {
	if !d.is(name) {
		return ""
	}
	return d.text(``)
}

func (d *exact) texts(name string) []string {
	d.must(name)
	if d.is(`null`) {
		return nil
	}
	d.must(`[`)
	list := []string{}
	if d.is(`]`) {
		return list
	}
	for !d.bad {
		list = append(list, d.text(``))
		if !d.is(`,`) {
			d.must(`]`)
			break
		}
	}
	return list
}

func (d *exact) optTexts(name string) []string {
	if !d.is(name) {
		return nil
	}
	return d.texts(``)
}

// optEach reads a list that has an element, for about n of which there is room.
func optEach[T any](d *exact, name string, n int, read func(*exact, *T)) []T {
	if !d.is(name) {
		return nil
	}
	list := make([]T, 0, n)
	for !d.bad {
		var zero T
		list = append(list, zero)
		read(d, &list[len(list)-1])
		if !d.is(`,`) {
			d.must(`]`)
			break
		}
	}
	return list
}

// uint reads a number as Encode writes it: digits, the first not a zero unless
// it is all.
func (d *exact) uint(name string) uint64 {
	d.must(name)
	from, n := d.i, uint64(0)
	for ; d.i < len(d.b); d.i++ {
		c := uint64(d.b[d.i] - '0')
		if c > 9 {
			break
		}
		if n > math.MaxUint64/10 || n*10 > math.MaxUint64-c {
			d.fail()
			return 0
		}
		n = n*10 + c
	}
	if d.i == from || d.i > from+1 && d.b[from] == '0' {
		d.fail()
	}
	return n
}

func (d *exact) int(name string) int64 {
	d.must(name)
	if d.is(`-`) {
		n := d.uint(``)
		if n == 0 || n > -math.MinInt64 {
			d.fail()
		}
		return -int64(n)
	}
	n := d.uint(``)
	if n > math.MaxInt64 {
		d.fail()
	}
	return int64(n)
}

func (d *exact) optInt(name string) int64 {
	if !d.is(name) {
		return 0
	}
	return d.int(``)
}

func (d *exact) num(name string) int {
	n := d.int(name)
	if int64(int(n)) != n {
		d.fail()
	}
	return int(n)
}

func (d *exact) optNum(name string) int { return int(d.optInt(name)) }

// raw reads a value that may be missing, as it is.
func (d *exact) raw(name string) json.RawMessage {
	from, end := d.skip(name)
	if from == end {
		return nil
	}
	return json.RawMessage(d.s[from:end])
}

// skip passes over a value that may be missing, and says where it is.
func (d *exact) skip(name string) (from, end int) {
	if !d.is(name) {
		return 0, 0
	}
	from, end = d.i, endOfValue(d.b, d.i)
	if end < 0 {
		d.fail()
		return 0, 0
	}
	d.i = end
	return from, end
}
