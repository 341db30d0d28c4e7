package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// byTags is the encoding that the struct tags say.
func byTags(r *Record) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(r)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// agrees fails if our encodings of r, whole and as a draft, are not that of its
// tags.
func agrees(t testing.TB, what string, r *Record) {
	t.Helper()
	want, wantErr := byTags(r)
	got, err := AppendLeaf([]byte("before"), r)
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("%s: error %v, encoding/json has %v", what, err, wantErr)
	}
	var d Draft
	if draftErr := d.Encode(r); (draftErr != nil) != (wantErr != nil) {
		t.Fatalf("%s: error %v of a draft, encoding/json has %v", what, draftErr, wantErr)
	}
	if err != nil {
		if string(got) != "before" {
			t.Errorf("%s: an error left %q", what, got)
		}
		return
	}
	if string(got) != "before"+string(want) {
		t.Fatalf("%s:\n got %s\nwant before%s", what, got, want)
	}
	leaf := d.AppendLeaf(nil, r.Log.Seq, r.Time)
	if string(leaf) != string(want) {
		t.Fatalf("%s: as a draft:\n got %s\nwant %s", what, leaf, want)
	}
	if len(leaf) > d.Size() {
		t.Errorf("%s: %d bytes, more than the most, %d", what, len(leaf), d.Size())
	}
}

// source gives the values that a record is filled with.
type source interface {
	text() string
	number() uint64
	length() int // of lists; below 0: none
	raw() json.RawMessage
}

// fill sets all of v from s.
func fill(v reflect.Value, s source) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(s.text())
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(s.number()))
	case reflect.Uint64:
		v.SetUint(s.number())
	case reflect.Bool:
		v.SetBool(s.number()%2 == 1)
	case reflect.Pointer:
		if s.length() >= 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), s)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes(s.raw())
			return
		}
		n := s.length()
		if n < 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), s)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range s.length() {
			to := reflect.New(v.Type().Elem()).Elem()
			fill(to, s)
			v.SetMapIndex(reflect.ValueOf(s.text()), to)
		}
	default:
		panic(fmt.Sprintf("a record has a %v", v.Type()))
	}
}

// counting gives values that are all there, and differ.
type counting struct{ n uint64 }

func (c *counting) number() uint64       { c.n += 2; return c.n | 1 }
func (c *counting) text() string         { return fmt.Sprint("s", c.number()) }
func (c *counting) length() int          { return 2 }
func (c *counting) raw() json.RawMessage { return fmt.Appendf(nil, `{"n":%d}`, c.number()) }

// fields calls do for each field below v, however deep, with what it is called.
func fields(v reflect.Value, name string, do func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			at := name + "." + v.Type().Field(i).Name
			do(at, v.Field(i))
			fields(v.Field(i), at, do)
		}
	case reflect.Pointer:
		fields(v.Elem(), name, do)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			return
		}
		for i := range v.Len() {
			at := fmt.Sprintf("%s[%d]", name, i)
			do(at, v.Index(i))
			fields(v.Index(i), at, do)
		}
	}
}

func TestEveryFieldIsEncodedAsItsTagSays(t *testing.T) {
	full := func() (r *Record) {
		r = new(Record)
		fill(reflect.ValueOf(r).Elem(), new(counting))
		return r
	}
	agrees(t, "all of a record", full())
	agrees(t, "an empty record", new(Record))
	n := 0
	r := full()
	fields(reflect.ValueOf(r), "Record", func(name string, v reflect.Value) {
		n++
		held := reflect.New(v.Type()).Elem()
		held.Set(v)
		v.SetZero()
		agrees(t, "all but "+name, r)
		v.Set(held)
	})
	if n < 150 {
		t.Errorf("only %d fields were looked at", n)
	}
}

func TestAFieldAloneIsEncodedAsItsTagSays(t *testing.T) {
	// Each of the record's own fields alone; each of a group's in a group that
	// is empty otherwise.
	var alone func(v reflect.Value, root *Record, name string)
	alone = func(v reflect.Value, root *Record, name string) {
		for i := range v.NumField() {
			f, at := v.Field(i), name+"."+v.Type().Field(i).Name
			fill(f, new(counting))
			agrees(t, at, root)
			f.SetZero()
			switch {
			case f.Kind() == reflect.Struct:
				alone(f, root, at)
			case f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct:
				f.Set(reflect.New(f.Type().Elem()))
				alone(f.Elem(), root, at)
			case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
				f.Set(reflect.MakeSlice(f.Type(), 1, 1))
				alone(f.Index(0), root, at)
			}
			f.SetZero()
		}
	}
	r := new(Record)
	alone(reflect.ValueOf(r).Elem(), r, "Record")
}

func TestTextIsQuotedAsEncodingJSONDoes(t *testing.T) {
	check := func(text string) {
		t.Helper()
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(text); err != nil {
			t.Fatal(err)
		}
		if got, want := string(AppendText(nil, text)), strings.TrimSuffix(b.String(), "\n"); got != want {
			t.Fatalf("%q is written as %s and not as %s", text, got, want)
		}
	}
	for c := range 0x10000 + 0x100 {
		check(string(rune(c)))
	}
	for c := range 0x100 {
		one := string([]byte{byte(c)})
		for at := range 20 { // in each place of a word
			check(strings.Repeat("a", at) + one + strings.Repeat("z", 19-at))
		}
		check(one + one)
		check("é" + one)
	}
}

var raws = []string{
	`null`, `true`, `false`, `0`, `-0`, `1.5e-3`, `10`, `[]`, `{}`, `[[]]`, `{"a":{}}`, `""`, `"\u00e9\n\/"`, `[1,"a",{"b":[null]}]`,
	`{"a":1,"a":2}`, "\"\u2028<&>\"", "\"\xff\"", `"` + strings.Repeat("long ", 10) + `\""`, strings.Repeat("[", 64) + strings.Repeat("]", 64),
	" {\"a\" :\t[ 1 ,\n2 ] }\r\n", `[1, 2]`, `{"a": 1}`, ` 1`, `1 `, "[ ]", "{ }", strings.Repeat("[", 65) + strings.Repeat("]", 65),
	strings.Repeat("[", 10001) + strings.Repeat("]", 10001), strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70),
	` `, `{`, `[`, `]`, `}`, `[}`, `{]`, `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `[1`, `1,2`, `1 2`, `{}{}`, `{1:2}`, `{a:1}`,
	`"`, `"a`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\u123`, "\"\n\"", "\"\x00\"", "\"12345678\x1f\"", `-`, `01`, `1.`, `.5`, `1e`, `1e+`, `+1`, `- 1`, `--1`,
	`nul`, `nulL`, `tru`, `truee`, `True`, `NaN`, `'a'`, `{"a":1 "b":2}`, `["a" "b"]`, `{"a",1}`, `[1:2]`, `{"a":1]`, `["a"}`, `1}`, `]1`, "\xef\xbb\xbf1",
	`{"a":` + strings.Repeat("[", 65) + strings.Repeat("]", 66), "[" + strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 65),
}

func TestRawJSONIsCheckedAndCompactedAsEncodingJSONDoes(t *testing.T) {
	for _, text := range raws {
		agrees(t, fmt.Sprintf("input %.40q", text), &Record{Input: json.RawMessage(text)})
		agrees(t, fmt.Sprintf("event %.40q", text), &Record{Decision: json.RawMessage(`null`), Event: json.RawMessage(text)})
	}
	for _, empty := range []json.RawMessage{nil, {}} {
		agrees(t, "nothing", &Record{Input: empty, Decision: empty, Event: empty})
	}
}

func TestThereIsNoRecordToEncode(t *testing.T) {
	if leaf, err := Encode(nil); err == nil {
		t.Errorf("encoded as %s", leaf)
	}
	if err := new(Draft).Encode(nil); err == nil {
		t.Error("a draft of none")
	}
}

func TestADraftHoldsOnlyItsLastRecord(t *testing.T) {
	var d Draft
	for _, r := range []*Record{
		{ID: strings.Repeat("long", 1000)},
		{ID: "bad", Input: json.RawMessage(`{`)},
		{ID: "good", Log: LogRef{Seq: 1 << 63}, Time: Time{Wall: -1, MonoNS: 1}},
	} {
		want, wantErr := byTags(r)
		if err := d.Encode(r); (err != nil) != (wantErr != nil) {
			t.Fatalf("%s: %v", r.ID, err)
		}
		if leaf := d.AppendLeaf(nil, r.Log.Seq, r.Time); wantErr == nil && string(leaf) != string(want) {
			t.Errorf("%s:\n got %s\nwant %s", r.ID, leaf, want)
		}
	}
}

// tape gives values that a fuzzer chooses.
type tape struct{ left []byte }

func (p *tape) next(n int) []byte {
	n = min(n, len(p.left))
	out := p.left[:n]
	p.left = p.left[n:]
	return out
}

func (p *tape) number() uint64 {
	var w [8]byte
	copy(w[:], p.next(int(p.size())%9))
	return binary.LittleEndian.Uint64(w[:])
}

func (p *tape) size() byte {
	if b := p.next(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (p *tape) text() string         { return string(p.next(int(p.size()) % 24)) }
func (p *tape) length() int          { return int(p.size())%5 - 1 }
func (p *tape) raw() json.RawMessage { return p.next(int(p.size()) % 48) }

// drawn gives values by chance, raw ones of those that are good or nearly so.
type drawn struct{ *rand.Rand }

func (d drawn) number() uint64 { return d.Uint64() >> d.IntN(65) }
func (d drawn) length() int    { return d.IntN(4) - 1 }
func (d drawn) text() string {
	var b []byte
	for range d.IntN(20) {
		b = append(b, []string{"a", "bc", "é", "\u2028", "\xe2\x80", "\"", "\\", "\n", "\x7f", "<", "😀", "\xff"}[d.IntN(12)]...)
	}
	return string(b)
}

func (d drawn) raw() json.RawMessage {
	if d.IntN(30) == 0 {
		return json.RawMessage(raws[d.IntN(len(raws))])
	}
	return json.RawMessage(raws[d.IntN(27)])
}

func TestRecordsByChanceAreEncodedAsTheirTagsSay(t *testing.T) {
	good := 0
	for seed := range uint64(600) {
		var r Record
		fill(reflect.ValueOf(&r).Elem(), drawn{rand.New(rand.NewPCG(seed, 7))})
		agrees(t, fmt.Sprint("seed ", seed), &r)
		if _, err := Encode(&r); err == nil {
			good++
		}
	}
	if good < 200 {
		t.Errorf("only %d could be encoded at all", good)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte{}, []byte(`{}`))
	for i, text := range raws[:60] {
		b := make([]byte, 600)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(b) // never fails
		f.Add(b, []byte(text))
	}
	f.Fuzz(func(t *testing.T, b, event []byte) {
		var r Record
		fill(reflect.ValueOf(&r).Elem(), &tape{b})
		agrees(t, "filled", &r)
		agrees(t, "event", &Record{Kind: Kind(b), Event: event})
	})
}

// BenchmarkEncode encodes decisions with four candidates and their outcomes in
// turn, by our encoder, as a draft that is then put in its place, and by the
// struct tags.
func BenchmarkEncode(b *testing.B) {
	rs := benchRecords(512)
	size := 0
	for _, r := range rs {
		leaf, err := Encode(r)
		if err != nil {
			b.Fatal(err)
		}
		size += len(leaf)
	}
	var buf []byte
	var d Draft
	for _, c := range []struct {
		name string
		do   func(*Record) error
	}{
		{"leaf", func(r *Record) (err error) { buf, err = AppendLeaf(buf[:0], r); return err }},
		{"draft", func(r *Record) error {
			err := d.Encode(r)
			buf = d.AppendLeaf(buf[:0], r.Log.Seq, r.Time)
			return err
		}},
		{"tags", func(r *Record) error { _, err := byTags(r); return err }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			i, began := 0, cpu(b)
			for b.Loop() {
				if err := c.do(rs[i%len(rs)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/record")
			b.ReportMetric(float64(size)/float64(len(rs)), "bytes/record")
		})
	}
}

// cpu is the time that this process has computed for, in ns.
func cpu(tb testing.TB) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// benchRecords are what a gateway writes for n requests.
func benchRecords(n int) (rs []*Record) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range n {
		id, salt := NewID(), fmt.Sprintf("%022x", rng.Uint64())
		place := LogRef{Origin: "gw-1.example.org/log", Seq: rng.Uint64N(1e9), Boot: NewID()}
		now := Time{Wall: 1_790_000_000_000_000 + rng.Int64N(1e12), MonoNS: rng.Int64N(1e15)}
		tenant, replica := fmt.Sprint("tenant-", rng.IntN(50)), fmt.Sprint("spiffe://example.org/pool/general/r", rng.IntN(32))
		d := &Record{
			V: Version, Kind: KindDecision, ID: id, Log: place, Salt: salt, Time: now, Attempt: 1, Status: StatusAllowed,
			Gateway:  &Gateway{SPIFFE: "spiffe://example.org/gateway/g1", Build: "1.0.0", Config: fmt.Sprintf("%064x", rng.Uint64())},
			Caller:   &Caller{Mode: "clear", Ref: fmt.Sprint("user-", rng.IntN(1e6)), Tenant: tenant, Kind: "human", Method: "oidc", Issuer: "https://idp.example"},
			Policy:   &Policy{Revision: "r1", Digest: fmt.Sprintf("%064x", rng.Uint64()), Rules: []string{"chat.allowed"}, EvalUS: rng.Int64N(300)},
			Input:    fmt.Appendf(nil, `{"v":1,"principal":{"tenant":%q,"subject":"user","kind":"human","method":"oidc","issuer":"https://idp.example","groups":["a","b"],"scopes":[],"chain":[],"workload":"","registration":""},"request":{"operation":"chat.completions","model":"small","stream":true,"tools":[],"max_tokens":512,"prompt_tokens":%d,"prompt_tokens_basis":"native","region":"eu-1"},"class":{"name":"chat","facts":["system_prompt"],"mismatch":false,"table":"2026.11"},"label":{"level":"internal","rank":1,"categories":[],"sources":[]},"exemptions":[]}`, tenant, rng.IntN(1e4)),
			Decision: json.RawMessage(`{"allow":true,"reasons":["chat.allowed"],"pools":["general"],"strategy":"probabilistic","prefer":{"region":"eu-1","warm":true},"cache_domain":"tenant","inspect":{"request":[],"response":[]},"tools_allow":null,"limits":{"max_output_tokens":null},"durability":"strict","expose_cached_tokens":false,"reauthorize_s":300}`),
			Class:    &Class{Name: "chat", Facts: []string{"system_prompt"}, Table: "2026.11"},
			Label:    &Label{Level: "internal", Rank: 1, Sources: []LabelSource{{Source: "tenant_default", Level: "internal"}}},
			Request:  &Request{Operation: "chat.completions", Model: "small", Served: "small", Stream: true, BodyBytes: rng.IntN(1e5), PromptTokens: rng.IntN(1e4), PromptBasis: "native_verified"},
			Placement: &Placement{
				Strategy: "probabilistic", Basis: "kv_events", Pool: "general", Replica: replica, Seed: rng.Uint64(),
				PredictedCached: 16 * rng.IntN(200), BlockSize: 16, Blocks: rng.IntN(400), ChosenBecause: "lowest_cost", Considered: 4,
			},
		}
		for range 4 {
			d.Placement.Candidates = append(d.Placement.Candidates, Candidate{
				Replica: fmt.Sprint("spiffe://example.org/pool/general/r", rng.IntN(32)), Region: "eu-1", Stream: "live", BlockSize: 16,
				Depth: rng.IntN(300), Overlay: rng.IntN(300), Confidence: 1000, Waiting: rng.Int64N(1e5), PrefillPS: rng.Int64N(1e8), DecodeNS: rng.Int64N(1e6),
				KVFree: rng.Int64N(1e5), KVTotal: 1e5, Running: rng.Int64N(40), WaitingRequests: rng.Int64N(5), Load: rng.Int64N(1e5), CostNS: rng.Int64N(1e9),
			})
		}
		cached := rng.IntN(1000)
		o := &Record{V: Version, Kind: KindOutcome, ID: id, Log: place, Salt: salt, Time: now, Attempt: 1, Status: StatusOK, Gateway: d.Gateway, Outcome: &Outcome{
			Status: StatusOK, HTTP: 200, UpstreamHTTP: 200, Replica: replica, Peer: replica, TTFTMS: rng.Int64N(900), DurationMS: rng.Int64N(9000),
			PromptTokens: d.Request.PromptTokens, CompletionTokens: rng.IntN(500), CachedTokens: &cached, Finish: "stop",
		}}
		rs = append(rs, d, o)
	}
	return rs
}
