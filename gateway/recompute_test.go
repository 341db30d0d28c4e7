package gateway

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/routing"
)

// TestARecordedPlacementComesOutAgain places requests that differ, writes down
// what the gateway would, and places them again from the written bytes alone.
func TestARecordedPlacementComesOutAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	again, different := 0, 0
	for range 2000 {
		q, s := randomPlacement(rng)
		p, err := routing.Place(q, s)
		if err != nil {
			continue
		}
		rec := recorded(t, q, p)
		got, err := Recompute(rec)
		if errors.Is(err, ErrNotRecorded) {
			if len(s.Candidates) <= 8 || q.Strategy == routing.Deterministic {
				t.Fatalf("%v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		again++
		if got.ID != p.ID || got.CostNS != p.CostNS || got.ChosenBecause != p.ChosenBecause {
			t.Fatalf("placed on %s for %d ns (%s), and then on %s for %d ns (%s)\n%+v", p.ID, p.CostNS, p.ChosenBecause, got.ID, got.CostNS, got.ChosenBecause, rec.Placement)
		}
		if len(got.Candidates) > 1 && got.Candidates[0].CostNS != got.Candidates[1].CostNS {
			different++
		}
	}
	if again < 1000 || different < again/2 {
		t.Errorf("only %d placed again, %d of them with a choice", again, different)
	}
}

func TestAPlacementThatIsNotWhollyRecordedIsNotMadeAgain(t *testing.T) {
	q := routing.Query{PromptTokens: 100}
	p, err := routing.Place(q, routing.Snapshot{Candidates: []routing.Candidate{{ID: "a", PrefillPS: 1}, {ID: "b", PrefillPS: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	for claim, change := range map[string]func(*audit.Record){
		"there was none":                        func(r *audit.Record) { r.Placement = nil },
		"it followed from the conversation":     func(r *audit.Record) { r.Placement.Basis = string(routing.Affinity) },
		"candidates were left out":              func(r *audit.Record) { r.Placement.Omitted = 1 },
		"candidates are missing without a word": func(r *audit.Record) { r.Placement.Considered++ },
	} {
		rec := recorded(t, q, p)
		change(rec)
		if _, err := Recompute(rec); !errors.Is(err, ErrNotRecorded) {
			t.Errorf("%s: %v", claim, err)
		}
	}
}

// recorded writes a placement down and reads it back.
func recorded(t *testing.T, q routing.Query, p routing.Placement) *audit.Record {
	t.Helper()
	basis := "estimate"
	if q.TokensExact {
		basis = basisNative
	}
	leaf, err := audit.Encode(&audit.Record{
		V: audit.Version, Kind: audit.KindDecision, ID: audit.NewID(),
		Input:     []byte(`{"v":1,"request":{"max_tokens":64}}`),
		Decision:  []byte(`{"prefer":{"region":"` + q.Region + `","warm":false}}`),
		Request:   &audit.Request{PromptTokens: q.PromptTokens, PromptBasis: basis},
		Placement: recordOf(p),
	})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := audit.Decode(leaf)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// randomPlacement is a query among up to twelve replicas, some not eligible.
func randomPlacement(rng *rand.Rand) (routing.Query, routing.Snapshot) {
	q := routing.Query{
		Strategy: routing.Deterministic, PromptTokens: 1 + rng.IntN(8000), TokensExact: rng.IntN(4) > 0, MaxOutput: 64, Seed: rng.Uint64(),
	}
	if rng.IntN(2) == 0 {
		q.Strategy = routing.Probabilistic
	}
	if rng.IntN(3) == 0 {
		q.Region = "eu-1"
	}
	var s routing.Snapshot
	for i := range 1 + rng.IntN(12) {
		c := routing.Candidate{
			ID: "spiffe://example.org/pool/general/" + string(rune('a'+i)), Pool: "general", Region: []string{"eu-1", "us-1"}[rng.IntN(2)],
			Stream: routing.Stream(rng.IntN(5)), BlockSize: 16, Depth: rng.IntN(300), Confidence: rng.IntN(1001),
			WaitingTokens: rng.Int64N(4000), PrefillPS: 100_000_000 + rng.Int64N(3)*50_000_000, DecodeNS: rng.Int64N(3) * 1_000_000,
			KVFree: 2000 + rng.Int64N(2000), KVTotal: 4000, Running: rng.Int64N(20), Waiting: rng.Int64N(5), Load: rng.Int64N(30_000),
		}
		c.Overlay = c.Depth + rng.IntN(20)
		if rng.IntN(3) == 0 {
			c.Lower, c.LowerPS = c.Overlay+rng.IntN(100), 20_000_000
		}
		if rng.IntN(5) == 0 {
			c.Excluded = routing.Unhealthy
		}
		s.Candidates = append(s.Candidates, c)
	}
	return q, s
}
