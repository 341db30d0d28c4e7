package routing

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// TestScenarios places what testdata/*.txt describes. A case is
//
//	# what it shows
//	query KEY=VALUE …
//	replica ID KEY=VALUE …
//	=>
//	what Place answers
//
// and ends with an empty line. Replicas inherit the defaults of baseline.
// go test -run Scenarios -update rewrites what follows the arrows.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScenarios(t, file) })
	}
}

func runScenarios(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, c := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		in, want, _ := strings.Cut(c+"\n", "=>\n")
		got := runScenario(t, in)
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "%s=>\n%s", in, got)
		if want = strings.TrimSpace(want) + "\n"; got != want && !*update {
			t.Errorf("%sgot\n%swant\n%s", in, got, want)
		}
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func runScenario(t *testing.T, in string) string {
	var q Query
	var s Snapshot
	for line := range strings.Lines(in) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		switch fields[0] {
		case "query":
			q = Query{TokensExact: true}
			apply(t, fields[1:], queryFields(&q))
		case "replica":
			c := Candidate{
				ID: fields[1], Pool: "general", Stream: StreamLive, BlockSize: 16, Confidence: 1000,
				PrefillPS: 62_500_000, KVTotal: 10_000, KVFree: 10_000,
			}
			apply(t, fields[2:], candidateFields(&c))
			s.Candidates = append(s.Candidates, c)
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return describe(Place(q, s))
}

func apply(t *testing.T, pairs []string, fields map[string]any) {
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch p := fields[key].(type) {
		case *string:
			*p, err = value, nil
		case *Strategy:
			*p, err = Strategy(value), nil
		case *Reason:
			*p, err = Reason(value), nil
		case *BasisReason:
			*p, err = BasisReason(value), nil
		case *Stream:
			*p, err = streamNamed(value), nil
		case *[32]byte:
			p[0] = byte(n)
		case *bool:
			*p, err = strconv.ParseBool(value)
		case *int:
			*p = int(n)
		case *int64:
			*p = n
		case *uint64:
			*p = uint64(n)
		default:
			t.Fatalf("unknown field %q", key)
		}
		if err != nil {
			t.Fatalf("%s: %v", pair, err)
		}
	}
}

func streamNamed(name string) Stream {
	for s := StreamUnknown; s <= StreamLive; s++ {
		if s.String() == name {
			return s
		}
	}
	return StreamUnknown
}

func queryFields(q *Query) map[string]any {
	return map[string]any{
		"strategy": &q.Strategy, "prompt": &q.PromptTokens, "exact": &q.TokensExact, "output": &q.MaxOutput,
		"seed": &q.Seed, "affinity": &q.Affinity, "region": &q.Region, "warm": &q.Warm,
	}
}

func candidateFields(c *Candidate) map[string]any {
	return map[string]any{
		"excluded": &c.Excluded, "stream": &c.Stream, "why": &c.StreamReason, "region": &c.Region, "block": &c.BlockSize,
		"depth": &c.Depth, "overlay": &c.Overlay, "confidence": &c.Confidence, "waiting": &c.WaitingTokens, "ps": &c.PrefillPS,
		"decode": &c.DecodeNS, "free": &c.KVFree, "total": &c.KVTotal, "load": &c.Load,
		"requests": &c.Waiting, "lower": &c.Lower, "lowerps": &c.LowerPS,
	}
}

func describe(p Placement, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s because %s, basis %s", p.ID, p.ChosenBecause, p.Basis)
	if p.BasisReason != "" {
		fmt.Fprintf(&b, " (%s)", p.BasisReason)
	}
	fmt.Fprintf(&b, ", predicted %d\n", p.Predicted)
	for _, c := range p.Candidates {
		fmt.Fprintf(&b, "  %s costs %d ns", c.ID, c.CostNS)
		b.WriteByte('\n')
	}
	for _, r := range slices.Sorted(maps.Keys(p.Excluded)) {
		fmt.Fprintf(&b, "  %s: %d\n", r, p.Excluded[r])
	}
	return b.String()
}
