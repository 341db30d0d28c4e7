package roster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/audit"
)

var start = time.UnixMicro(1_800_000_000_000_000)

// book is a log of what a tracker says.
type book struct {
	t       testing.TB
	tracker Tracker
	records []*audit.Record
}

// see shows the tracker a fleet, and writes what is due.
func (b *book) see(now time.Time, all ...Seen) (written int) {
	b.t.Helper()
	if b.tracker.See(now, all); !b.tracker.Due(now) {
		return 0
	}
	events, err := b.tracker.Events(now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.write(events...)
	b.tracker.Written(now)
	return len(events)
}

func (b *book) write(events ...Event) {
	b.t.Helper()
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(text) > maxEvent+512 || !Is(text) {
			b.t.Fatalf("an event of %d bytes", len(text))
		}
		b.records = append(b.records, &audit.Record{Kind: audit.KindFleet, Time: audit.Time{Wall: e.At}, Event: text})
	}
}

// then is the fleet of a time as the log has it: "0 r0 general unhealthy".
func (b *book) then(at time.Time) (out []string, told bool) {
	b.t.Helper()
	r := NewReader(at.UnixMicro())
	for _, rec := range b.records {
		if err := r.Add(rec, rec.Time.Wall > at.UnixMicro()); err != nil {
			b.t.Fatal(err)
		}
	}
	all, told := r.Members()
	for _, m := range all {
		text := strings.TrimSpace(fmt.Sprint(m.N, " ", m.Replica, m.Address, " ", m.Pool, " ", m.Excluded))
		if m.Unsure {
			text += "?"
		}
		out = append(out, text)
	}
	return out, told
}

func (b *book) want(claim string, at time.Time, want ...string) {
	b.t.Helper()
	if got, told := b.then(at); !told || !slices.Equal(got, want) {
		b.t.Errorf("%s: %v (told: %v), want %v", claim, got, told, want)
	}
}

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// replica is one as it is seen, "" before it proved who it is.
func replica(address, id, excluded string) Seen {
	return Seen{Key: address, Address: address, Replica: id, Pool: "general", Region: "eu-1", Epoch: "e", Excluded: excluded}
}

func TestTheLogSaysWhichReplicasThereWere(t *testing.T) {
	b := &book{t: t}
	a, c := replica("a:1", "", "no_svid"), replica("c:1", "", "no_svid")
	if b.see(at(0), a, c) != 1 {
		t.Error("nothing is written at the start")
	}
	b.see(at(10), replica("a:1", "r0", ""), c)
	b.see(at(20), replica("a:1", "r0", "breaker"), c)
	b.see(at(30), replica("a:1", "r0", ""))
	b.see(at(40), replica("a:1", "r0", ""), replica("d:1", "r2", ""))
	b.see(at(50), replica("a:1", "r0", ""), replica("d:1", "r2", ""), replica("c:1", "r1", ""))
	b.want("the start", at(1), "0 a:1 general no_svid", "1 c:1 general no_svid")
	b.want("one has proven who it is", at(11), "0 r0 general", "1 c:1 general no_svid")
	b.want("it failed", at(21), "0 r0 general breaker", "1 c:1 general no_svid")
	b.want("it is back, and the other has gone", at(31), "0 r0 general")
	b.want("a third has a number of its own", at(41), "0 r0 general", "2 r2 general")
	b.want("who comes again has a new one", at(51), "0 r0 general", "2 r2 general", "3 r1 general")
	if _, told := b.then(at(-1)); told {
		t.Error("the log says what was before it began")
	}
}

func TestAChangeCountsFromWhenItWasSeenAndNotFromWhenItWasWritten(t *testing.T) {
	b := &book{t: t}
	r0, other := replica("a:1", "r0", ""), replica("c:1", "r1", "")
	b.see(at(0), r0, other)
	b.see(at(1), replica("a:1", "r0", "unhealthy"), other) // written at once
	if b.see(at(1.5), replica("a:1", "r0", "unhealthy"), replica("c:1", "r1", "draining")) != 0 {
		t.Fatal("written without being gathered")
	}
	b.see(at(60), replica("a:1", "r0", "unhealthy"), replica("c:1", "r1", "draining"))
	b.want("before", at(1.2), "0 r0 general unhealthy", "1 r1 general")
	b.want("after, long before it was written", at(2), "0 r0 general unhealthy", "1 r1 general draining")
}

func TestAReplicaThatFlapsFillsNoLogAndItsLastStateIsWritten(t *testing.T) {
	b := &book{t: t}
	b.see(at(0), replica("a:1", "r0", ""))
	records := 0
	const hour = 3599
	for s := 1; s <= hour; s++ {
		records += b.see(at(float64(s)), replica("a:1", "r0", []string{"", "breaker"}[s%2]))
	}
	if records > 80 {
		t.Errorf("%d records in an hour", records)
	}
	for s := hour + 1; s < hour+120; s++ {
		b.see(at(float64(s)), replica("a:1", "r0", "breaker")) // as it was last
	}
	b.want("the end", at(hour+110), "0 r0 general breaker")
	if got, _ := b.then(at(1800.5)); len(got) != 1 || !strings.HasSuffix(got[0], "?") {
		t.Errorf("in the midst of it the log is sure of %v", got)
	}
	before := len(b.records)
	if b.see(at(hour+600), replica("a:1", "r0", "")); len(b.records) != before+1 {
		t.Error("a change after long quiet is not written at once")
	}
}

func TestAFleetIsWrittenWholeOnceAnHour(t *testing.T) {
	b := &book{t: t}
	for m := range 181 {
		b.see(at(float64(60*m)), replica("a:1", "r0", ""))
	}
	if len(b.records) != 4 {
		t.Fatalf("%d records in three hours, want 4", len(b.records))
	}
	b.records = b.records[2:] // the rest was pruned
	b.want("after pruning", at(3*3600+1), "0 r0 general")
	if _, told := b.then(at(3600)); told {
		t.Error("the log says what was pruned")
	}
}

func TestALargeFleetIsWrittenInParts(t *testing.T) {
	b := &book{t: t}
	var all []Seen
	for i := range 1000 {
		all = append(all, replica(fmt.Sprintf("10.0.0.%d:1", i), fmt.Sprintf("spiffe://example.org/pool/general/replica-%d", i), "unhealthy"))
	}
	if parts := b.see(at(0), all...); parts < 8 || parts > 20 {
		t.Errorf("%d parts", parts)
	}
	if got, told := b.then(at(1)); !told || len(got) != 1000 {
		t.Errorf("%d replicas, told: %v", len(got), told)
	}
	b.see(at(10))
	b.want("all gone", at(11))
	b.records = append(b.records[:1], b.records[2:3]...)
	if _, told := b.then(at(1)); told {
		t.Error("parts are taken for the whole")
	}
}

// A gateway that could write only the first part of what is whole begins anew.
func TestPartsOfTwoStatesAreNoWhole(t *testing.T) {
	part := func(state uint64, n, part, parts int) Event {
		return Event{Action: Action, State: state, Full: true, Part: part, Parts: parts, At: at(0).UnixMicro(), Replicas: []Member{{N: n, Replica: fmt.Sprint("r", n), Pool: "general", At: at(0).UnixMicro()}}}
	}
	for _, c := range []struct {
		claim  string
		events []Event
		want   []string
	}{
		{"two parts of one", []Event{part(1, 0, 1, 2), part(1, 1, 2, 2)}, []string{"0 r0 general", "1 r1 general"}},
		{"the first of one and the second of another", []Event{part(1, 0, 1, 2), part(2, 1, 2, 2)}, nil},
		{"a first part, and both of the next", []Event{part(1, 0, 1, 2), part(2, 1, 1, 2), part(2, 2, 2, 2)}, []string{"1 r1 general", "2 r2 general"}},
		{"a second part alone", []Event{part(1, 1, 2, 2)}, nil},
		{"a part twice", []Event{part(1, 0, 1, 3), part(1, 1, 2, 3), part(1, 1, 2, 3), part(1, 2, 3, 3)}, nil},
	} {
		b := &book{t: t}
		b.write(c.events...)
		if got, told := b.then(at(1)); told != (c.want != nil) || told && !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, told: %v; want %v", c.claim, got, told, c.want)
		}
	}
}

func TestWhatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	b := &book{t: t}
	b.see(at(0), replica("a:1", "r0", ""))
	b.tracker.See(at(10), []Seen{replica("c:1", "r1", "")})
	if _, err := b.tracker.Events(at(10)); err != nil { // and the log took nothing
		t.Fatal(err)
	}
	if b.see(at(20), replica("d:1", "r2", "")) == 0 {
		t.Fatal("nothing is due")
	}
	b.want("what came and went meanwhile", at(15), "1 r1 general")
	b.want("what is there now", at(21), "2 r2 general")
}

func TestNumbersBeginAnewWithEachStart(t *testing.T) {
	b := &book{t: t}
	b.see(at(0), replica("a:1", "r0", ""), replica("c:1", "r1", ""))
	b.records = append(b.records, &audit.Record{Kind: audit.KindBoot, Time: audit.Time{Wall: at(100).UnixMicro()}})
	if _, told := b.then(at(101)); told {
		t.Error("the log says what fleet a gateway has that has just been started")
	}
	b.tracker = Tracker{}
	b.see(at(110), replica("c:1", "r1", ""))
	b.want("the second start", at(111), "0 r1 general")
	b.want("the first", at(50), "0 r0 general", "1 r1 general")
}

// Whatever happens, and whenever it is written: the log is right about each
// moment, or says that it is not sure.
func TestTheLogIsRightOrUnsure(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := &book{t: t}
		states := []string{"", "unhealthy", "breaker"}
		type moment struct {
			at  time.Time
			all map[string]string
		}
		var history []moment
		now := start
		for range rapid.IntRange(2, 40).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(rt, "seconds")) * time.Second)
			m := moment{now, make(map[string]string)}
			var all []Seen
			for _, id := range []string{"r0", "r1", "r2"} {
				if rapid.IntRange(0, 9).Draw(rt, "there") == 0 {
					continue
				}
				m.all[id] = rapid.SampledFrom(states).Draw(rt, "state")
				all = append(all, replica(id+":1", id, m.all[id]))
			}
			history = append(history, m)
			b.see(now, all...)
		}
		last := history[len(history)-1].all
		var all []Seen
		for id, state := range last {
			all = append(all, replica(id+":1", id, state))
		}
		b.see(now.Add(2*gatherMost), all...)
		for _, m := range history {
			r := NewReader(m.at.UnixMicro())
			for _, rec := range b.records {
				if err := r.Add(rec, rec.Time.Wall > m.at.UnixMicro()); err != nil {
					rt.Fatal(err)
				}
			}
			got, told := r.Members()
			if !told {
				rt.Fatalf("nothing is told of %v", m.at)
			}
			seen := make(map[string]bool)
			for _, g := range got {
				state, there := m.all[g.Replica]
				if !g.Unsure && (!there || state != g.Excluded) {
					rt.Errorf("at %v the log has %s as %q; it was %q, there: %v", m.at.Sub(start), g.Replica, g.Excluded, state, there)
				}
				seen[g.Replica] = true
			}
			for id := range m.all {
				if !seen[id] {
					rt.Errorf("at %v the log has no %s", m.at.Sub(start), id)
				}
			}
		}
	})
}
