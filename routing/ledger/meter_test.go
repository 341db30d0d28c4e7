package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// engine is one that computes 16,000 tokens a second, in order.
type engine struct {
	free time.Time
}

const perSecond = 16_000

func (e *engine) first(came time.Time, tokens int64) time.Time {
	if came.After(e.free) {
		e.free = came
	}
	e.free = e.free.Add(time.Duration(tokens) * time.Second / perSecond)
	return e.free
}

func TestTheMeterFindsTheRateAtAnyLoad(t *testing.T) {
	for name, every := range map[string]float64{"seldom": 4, "often": 0.3, "all at once": 0.001} {
		var m Meter
		var e engine
		r := rand.New(rand.NewPCG(1, 2))
		type request struct {
			at     time.Time
			tokens int64
			first  bool
		}
		var all []request
		now := time.Unix(1000, 0)
		for range 200 {
			now = now.Add(time.Duration(r.ExpFloat64() * every * float64(time.Second)))
			tokens := 1024 + r.Int64N(6000)
			all = append(all, request{now, tokens, false}, request{e.first(now, tokens), tokens, true})
		}
		// In the order in which they happen.
		for len(all) > 0 {
			k := 0
			for i := range all {
				if all[i].at.Before(all[k].at) {
					k = i
				}
			}
			if x := all[k]; x.first {
				m.First(x.at, x.tokens)
			} else {
				m.Start(x.at, x.tokens)
			}
			all = append(all[:k], all[k+1:]...)
		}
		if got := m.Rate(); got < perSecond*99/100 || got > perSecond*101/100 {
			t.Errorf("%s: %d tokens a second, want %d", name, got, perSecond)
		}
	}
}

func TestWhatCannotBeMeasuredIsNot(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	for _, c := range []struct {
		claim string
		run   func(m *Meter)
	}{
		{"short prompts, where the round trip counts for more", func(m *Meter) {
			for i := range 1000 {
				m.Start(at(100*i), 100)
				m.First(at(100*i+10), 100)
			}
		}},
		{"a request of unknown length among them", func(m *Meter) {
			m.Start(at(0), 5000)
			m.Start(at(1), 0)
			m.First(at(900), 5000)
		}},
		{"one that went away", func(m *Meter) {
			m.Start(at(0), 5000)
			m.Start(at(1), 5000)
			m.Gone()
			m.First(at(900), 5000)
		}},
		{"no time at all", func(m *Meter) {
			m.Start(at(0), 5000)
			m.First(at(0), 5000)
		}},
	} {
		var m Meter
		if c.run(&m); m.Rate() != 0 {
			t.Errorf("%s: %d tokens a second", c.claim, m.Rate())
		}
	}
	// And it starts over once nothing waits.
	var m Meter
	m.Start(at(0), 0)
	m.Gone()
	m.Start(at(1000), 8000)
	m.First(at(1500), 8000)
	if m.Rate() != perSecond {
		t.Errorf("afterwards: %d tokens a second", m.Rate())
	}
}

func TestTheMeterSurvivesAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var m Meter
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			at, tokens := time.Unix(0, rapid.Int64().Draw(rt, "at")), rapid.Int64Range(-1, 1<<28).Draw(rt, "tokens")
			switch rapid.IntRange(0, 2).Draw(rt, "what") {
			case 0:
				m.Start(at, tokens)
			case 1:
				m.First(at, tokens)
			default:
				m.Gone()
			}
			if m.waiting < 0 || m.rate < 0 || m.took < 0 {
				rt.Fatalf("%+v", m)
			}
		}
	})
}
