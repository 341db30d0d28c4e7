package format

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

func TestEveryFormatWritesOneLineOfWhatItWasGiven(t *testing.T) {
	for _, f := range All() {
		for _, e := range events(t) {
			b, err := f.Event(e, 0)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.ContainsAny(b, "\n\r\x00") {
				t.Errorf("%s breaks lines: %q", f.Name, b)
			}
			if f.ContentType == "application/json" && !json.Valid(b) {
				t.Errorf("%s is no JSON: %s", f.Name, b)
			}
			if f.Name == "record" && !bytes.Equal(b, e.Leaf) {
				t.Errorf("not the leaf: %s", b)
			}
			if f.Name != "record" && !bytes.Contains(b, []byte(strings.TrimSuffix(e.Hash.String(), "="))) {
				t.Errorf("%s holds no leaf hash: %s", f.Name, b)
			}
		}
		b, err := f.Anchor(anchor())
		if err != nil || bytes.ContainsAny(b, "\n") || !bytes.Contains(b, []byte("c2ln")) {
			t.Errorf("%s anchor: %s, %v", f.Name, b, err)
		}
	}
}

func TestWhatIsTooLongKeepsItsPlaceAndHash(t *testing.T) {
	for _, f := range All() {
		for _, e := range events(t)[:3] {
			whole, err := f.Event(e, 0)
			if err != nil {
				t.Fatal(err)
			}
			for limit := len(whole) - 1; limit > 64; limit /= 2 {
				b, err := f.Event(e, limit)
				if err != nil {
					t.Fatal(err)
				}
				if len(b) > limit && len(b) > 3100 {
					t.Errorf("%s: %d bytes where %d are allowed", f.Name, len(b), limit)
				}
				if !bytes.Contains(b, []byte(strings.TrimSuffix(e.Hash.String(), "="))) && len(b) < len(whole) {
					t.Errorf("%s lost the hash of record %d", f.Name, e.Index)
				}
			}
		}
	}
}

func TestFormatsAreFoundByName(t *testing.T) {
	if f, err := Find(""); err != nil || f.Name != "record" {
		t.Errorf("the default is %q, %v", f.Name, err)
	}
	if _, err := Find("leef"); err == nil || !strings.Contains(err.Error(), "record, ocsf, ecs, cef") {
		t.Errorf("an unknown one: %v", err)
	}
}

func TestFieldsThatRulesRelyOn(t *testing.T) {
	all := events(t)
	for _, c := range []struct {
		format string
		event  int
		holds  string
	}{
		{"ocsf", 0, `"class":{"name":"agent_tool_call"`},
		{"ocsf", 0, `"mismatch":true`},
		{"ocsf", 0, `"severity_id":3`},
		{"ocsf", 0, `"tenant_uid":"acme"`},
		{"ocsf", 0, `"chain_uid":"sallyport.example/g0"`},
		{"ocsf", 1, `"action":"Denied"`},
		{"ocsf", 1, `"prev_event":{"uid":"sallyport.example/g0/0"`},
		{"ocsf", 9, `"event":{"action":"doubt"}`},
		{"ecs", 0, `"event":{"kind":"event","category":["api","network"],"type":["access","allowed"],"outcome":"success"`},
		{"ecs", 1, `"type":["access","denied"],"outcome":"failure"`},
		{"ecs", 2, `"cached_tokens":512`},
		{"ecs", 0, `"label":{"level":"restricted"`},
		{"cef", 0, `cs5Label=label cs5=restricted`},
		{"cef", 1, ` act=denied outcome=failure reason=policy_denied `},
		{"cef", 1, ` cn2Label=previousIndex cn2=0 `},
	} {
		f, err := Find(c.format)
		if err != nil {
			t.Fatal(err)
		}
		b, err := f.Event(all[c.event], 0)
		if err != nil || !strings.Contains(string(b), c.holds) {
			t.Errorf("%s of record %d has no %s: %s, %v", c.format, c.event, c.holds, b, err)
		}
	}
}

// parseCEF reads a line back as its specification has it.
func parseCEF(t testing.TB, line string) (header []string, extension map[string]string) {
	t.Helper()
	var part strings.Builder
	rest := line
	for len(header) < 7 {
		if rest == "" {
			t.Fatalf("no header: %q", line)
		}
		switch {
		case rest[0] == '\\' && len(rest) > 1:
			part.WriteByte(rest[1])
			rest = rest[2:]
			continue
		case rest[0] == '|':
			header = append(header, part.String())
			part.Reset()
		default:
			part.WriteByte(rest[0])
		}
		rest = rest[1:]
	}
	extension = make(map[string]string)
	keys := regexp.MustCompile(`(?:^| )([A-Za-z0-9]+)=`).FindAllStringSubmatchIndex(rest, -1)
	for i, k := range keys {
		end := len(rest)
		if i+1 < len(keys) {
			end = keys[i+1][0]
		}
		extension[rest[k[2]:k[3]]] = strings.NewReplacer(`\\`, `\`, `\=`, `=`, `\n`, "\n", `\r`, "\r").Replace(rest[k[1]:end])
	}
	return header, extension
}

func FuzzCEFSaysWhatItWasGiven(f *testing.F) {
	for _, s := range []string{`a=b|c\d`, "line1\nline2\r\n", `\`, `|`, `a|`, ` x=1 y=2`, "tab\tnul\x00bel\a", "\xff\xfe", `\n`, `act=denied outcome=success`} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, model, reason string) {
		e := &Event{Index: 7, Record: &audit.Record{
			Kind: audit.KindDecision, Status: audit.StatusDenied, Reason: reason,
			Request: &audit.Request{Operation: "chat.completions", Model: model}, Caller: &audit.Caller{Tenant: "acme", Ref: model},
		}}
		b, err := cefEvent(e, whole)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(string(b), "\n\r\x00") {
			t.Fatalf("breaks the line: %q", b)
		}
		header, ext := parseCEF(t, string(b))
		want := strings.NewReplacer("\n", " ", "\r", " ").Replace(printable(reason))
		if reason != "" && !strings.HasSuffix(header[5], "("+want+")") {
			t.Errorf("name %q of reason %q", header[5], reason)
		}
		if got := ext["requestContext"]; got != printable(model) {
			t.Errorf("model %q came as %q", printable(model), got)
		}
		if ext["act"] != "denied" || ext["cn1"] != "7" {
			t.Errorf("a value became a field: %v", ext)
		}
	})
}

func BenchmarkFormats(b *testing.B) {
	e := events(b)[0]
	for _, f := range All() {
		b.Run(f.Name, func(b *testing.B) {
			b.SetBytes(int64(len(e.Leaf)))
			began := cpu(b)
			for b.Loop() {
				d, err := NewEvent(e.Index, e.Leaf)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := f.Event(d, 0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(len(e.Leaf)), "leaf-bytes")
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

func TestWhichReplicasThereAreIsNoAlarm(t *testing.T) {
	for event, want := range map[string]int{
		`{"action":"members","state":1,"full":true}`: 1,
		`{"action":"doubt","doubt":"over_claims"}`:   3,
		`{"action":"members_of_something"}`:          3,
		``:                                           3,
	} {
		e := &Event{Record: &audit.Record{Kind: audit.KindFleet, Event: json.RawMessage(event)}}
		if got := e.Severity(); got != want {
			t.Errorf("%s is of severity %d, want %d", event, got, want)
		}
	}
}
