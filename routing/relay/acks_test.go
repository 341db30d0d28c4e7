package relay

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/routing/ledger"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// A gateway's books against a relay's acknowledgements, over a wire on which
// tickets and reports come late or not at all: no request is taken for seen before
// the relay has it. That a number was given back and is used again, or that the
// relay went on without one that never came, changes nothing.
func TestNothingIsTakenForSeenThatTheRelayHasNotSeen(t *testing.T) {
	type report struct {
		upTo   uint64
		beyond []uint64
	}
	rapid.Check(t, func(rt *rapid.T) {
		var (
			books    ledger.Work
			relay    acks
			reports  []report
			held     []uint64 // dispatched, and not sent yet
			inFlight = map[uint64]bool{}
			order    []uint64
		)
		dispatch := func() { held = append(held, books.Dispatch(1)) }
		take := func(from *[]uint64) (n uint64, ok bool) {
			if len(*from) == 0 {
				return 0, false
			}
			i := rapid.IntRange(0, len(*from)-1).Draw(rt, "which")
			n = (*from)[i]
			*from = slices.Delete(*from, i, i+1)
			return n, true
		}
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			switch rapid.IntRange(0, 7).Draw(rt, "what") {
			case 0, 1:
				dispatch()
			case 2: // many come and go while others wait
				for range rapid.IntRange(1, 300).Draw(rt, "burst") {
					dispatch()
					n := held[len(held)-1]
					held = held[:len(held)-1]
					relay.add(n)
				}
			case 3: // sent
				if n, ok := take(&held); ok {
					inFlight[n] = true
					order = append(order, n)
				}
			case 4: // never sent
				if n, ok := take(&held); ok {
					books.Seen(n)
					books.Unused(n)
				}
			case 5: // arrives, or is lost
				if n, ok := take(&order); ok {
					delete(inFlight, n)
					if rapid.Bool().Draw(rt, "arrives") {
						relay.add(n)
					}
				}
			case 6:
				reports = append(reports, report{relay.upTo, slices.Clone(relay.beyond)})
			default:
				if len(reports) > 0 {
					books.Acknowledged(reports[0].upTo, reports[0].beyond)
					reports = reports[1:]
				}
			}
			waiting := len(held) + len(inFlight)
			if n, _ := books.Unseen(); n < waiting {
				rt.Fatalf("%d requests are not seen by the relay, and the books have %d", waiting, n)
			}
		}
	})
}

// What is kept of all work at once is what looking at each request would find.
func TestTheLoadIsThatOfAllWork(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, at := newLoad(), time.Unix(1000, 0)
		var all []*work
		for n := range rapid.IntRange(0, 60).Draw(rt, "steps") {
			at = at.Add(time.Millisecond)
			if len(all) == 0 || rapid.IntRange(0, 2).Draw(rt, "new") == 0 {
				w := &work{
					tokens: rapid.Uint64Range(0, 1000).Draw(rt, "tokens"), stream: rapid.Bool().Draw(rt, "stream"),
					rank: rapid.IntRange(0, 2).Draw(rt, "rank"), started: at,
				}
				all = append(all, w)
				l.start(gatewayLog{}, uint64(n+1), w)
			}
			w := all[rapid.IntRange(0, len(all)-1).Draw(rt, "which")]
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				l.answer(w)
			case 1:
				l.end(w) // for some a second time
			case 2:
				l.scraped(at, metrics{hasWaiting: true})
			}
			var want residencyv1.Load
			for w := range l.work {
				if w.answered {
					want.Running++
				} else {
					want.Waiting++
					want.WaitingPrefillTokens += w.tokens
				}
			}
			if got := l.report(gatewayLog{}); got.Running != want.Running || got.Waiting != want.Waiting || got.WaitingPrefillTokens != want.WaitingPrefillTokens {
				rt.Fatalf("told %v, is %v", got, &want)
			}
		}
	})
}
