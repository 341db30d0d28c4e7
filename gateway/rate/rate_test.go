package rate_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/gateway/rate"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestACallerHasItsBurstAndThenItsRate(t *testing.T) {
	now := noon
	table := rate.NewTable(0, func() time.Time { return now })
	alice, limit := rate.Key{Group: "acme", Name: "alice"}, rate.Limit{PerSecond: 10, Burst: 5}
	take := func() (n int) {
		for ; ; n++ {
			if _, ok := table.Take(alice, limit); !ok {
				return n
			}
		}
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 5}, {0, 0}, {99 * time.Millisecond, 0}, {time.Millisecond, 1}, {300 * time.Millisecond, 3}, {time.Hour, 5}} {
		now = now.Add(step.after)
		if got := take(); got != step.want {
			t.Errorf("after %v more: %d", step.after, got)
		}
	}
	wait, ok := table.Take(alice, limit)
	if ok || wait != 100*time.Millisecond {
		t.Errorf("told to wait %v", wait)
	}
	now = now.Add(wait)
	if take() != 1 {
		t.Error("who waits as told is refused")
	}
	table.Give(alice, limit)
	if take() != 1 {
		t.Error("what was given back is lost")
	}
	if _, ok := table.Take(rate.Key{Group: "acme", Name: "bob"}, limit); !ok {
		t.Error("another caller waits for her")
	}
	for range 1000 {
		if _, ok := table.Take(alice, rate.Limit{}); !ok {
			t.Fatal("no bound bounds")
		}
	}
}

// Limits change while a gateway serves: who has spent a small one does not have to
// wait it out under one that is larger.
func TestALimitThatIsRaisedHoldsAtOnce(t *testing.T) {
	now := noon
	table := rate.NewTable(0, func() time.Time { return now })
	alice, small, large := rate.Key{Group: "acme", Name: "alice"}, rate.Limit{PerSecond: 0.001, Burst: 1000}, rate.Limit{PerSecond: 10, Burst: 5}
	for range small.Burst {
		table.Take(alice, small)
	}
	wait, ok := table.Take(alice, large)
	if ok || wait != 100*time.Millisecond {
		t.Errorf("of an empty bucket: told %v, to wait %v", ok, wait)
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{99 * time.Millisecond, 0}, {time.Millisecond, 1}, {time.Second, 5}} {
		now = now.Add(step.after)
		got := 0
		for ; ; got++ {
			if _, ok := table.Take(alice, large); !ok {
				break
			}
		}
		if got != step.want {
			t.Errorf("after %v more: %d, want %d", step.after, got, step.want)
		}
	}
}

// Over any time no caller gets more than its burst and what its rate gives
// meanwhile, whatever others do, however small the table, and whatever is forgotten.
func TestNobodyGetsMoreThanItsShare(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := noon
		table := rate.NewTable(rapid.IntRange(1, 8).Draw(rt, "max"), func() time.Time { return now })
		limit := rate.Limit{PerSecond: rapid.Float64Range(0.5, 100).Draw(rt, "rate"), Burst: rapid.IntRange(1, 5).Draw(rt, "burst")}
		got := map[rate.Key][]time.Time{}
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 200).Draw(rt, "ms")) * time.Millisecond)
			k := rate.Key{Group: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "group"), Name: rapid.SampledFrom([]string{"1", "2", "3", "4", "5"}).Draw(rt, "name")}
			if _, ok := table.Take(k, limit); ok {
				got[k] = append(got[k], now)
			}
		}
		for k, times := range got {
			for i := range times {
				for j := i; j < len(times); j++ {
					// A caller may move between a bucket of its own and one that is shared.
					most := 2*float64(limit.Burst) + limit.PerSecond*times[j].Sub(times[i]).Seconds()
					if n := float64(j - i + 1); n > most+1 {
						rt.Fatalf("%v got %v within %v", k, n, times[j].Sub(times[i]))
					}
				}
			}
		}
	})
}

func TestATenantThatFillsTheTableHindersItselfAlone(t *testing.T) {
	now := noon
	const most = 1000
	table := rate.NewTable(most, func() time.Time { return now })
	limit := rate.Limit{PerSecond: 1, Burst: 2}
	taken := func(group string, callers int) (n int) {
		for i := range callers {
			for range 2 {
				if _, ok := table.Take(rate.Key{Group: group, Name: fmt.Sprint(i)}, limit); ok {
					n++
				}
			}
		}
		return n
	}
	if got := taken("acme", 10*most); got < most || got > most+4 {
		t.Errorf("a tenant of very many callers got %d", got)
	}
	if got := taken("globex", 100); got != 200 {
		t.Errorf("another tenant's callers got %d of 200", got)
	}
	if n := table.Len(); n > most {
		t.Errorf("%d buckets", n)
	}
	now = now.Add(time.Hour)
	for range 1000 {
		taken("initech", 1)
	}
	if n := table.Len(); n > 10 {
		t.Errorf("an hour later, %d buckets are remembered", n)
	}
}

// Names that nobody vouches for cannot make it grow either.
func TestTheTableIsBoundedHoweverManyGroupsThereAre(t *testing.T) {
	table := rate.NewTable(16, func() time.Time { return noon })
	refused := 0
	for i := range 20_000 {
		if _, ok := table.Take(rate.Key{Group: fmt.Sprint(i), Name: "x"}, rate.Limit{PerSecond: 1, Burst: 1}); !ok {
			refused++
		}
	}
	if table.Len() > 16 || refused < 10_000 {
		t.Errorf("%d buckets, %d refused", table.Len(), refused)
	}
}

// A request takes no longer for how many there were once. The ratio was some 500
// while the map was walked through that had held them.
func TestWhatWasRememberedOnceCostsNothingLater(t *testing.T) {
	now := noon
	full, fresh := rate.NewTable(0, func() time.Time { return now }), rate.NewTable(0, func() time.Time { return now })
	for i := range rate.MaxBuckets {
		full.Take(rate.Key{Group: fmt.Sprint(i % 100), Name: fmt.Sprint(i)}, rate.Limit{PerSecond: 1, Burst: 1})
	}
	now = now.Add(time.Hour)
	alice, limit := rate.Key{Group: "acme", Name: "alice"}, rate.Limit{PerSecond: 1000, Burst: 1e6}
	took := func(table *rate.Table) time.Duration {
		least := time.Hour
		for range 20 { // whatever else the machine does meanwhile
			began := time.Now()
			for range 100 {
				table.Take(alice, limit)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	for range rate.MaxBuckets {
		full.Take(alice, limit)
	}
	if n := full.Len(); n != 1 {
		t.Fatalf("%d buckets are remembered", n)
	}
	if after, before := took(full), took(fresh); after > 30*before {
		t.Errorf("100 requests take %v, of a table that held nothing else ever %v", after, before)
	}
}

// Those who had to share once do not hold up the place of others for ever.
func TestASharedBucketIsForgottenToo(t *testing.T) {
	now := noon
	table := rate.NewTable(1, func() time.Time { return now })
	limit := rate.Limit{PerSecond: 1, Burst: 2}
	long := rate.Key{Group: "initech", Name: "batch"}
	for range 1000 {
		table.Take(long, rate.Limit{PerSecond: 0.001, Burst: 1000}) // it has the only room
	}
	for i := range 10_000 {
		table.Take(rate.Key{Group: fmt.Sprint(i)}, limit)
	}
	now = now.Add(time.Minute)
	for range 10_000 {
		table.Take(long, limit)
	}
	for i := range 1000 {
		for range 2 {
			if _, ok := table.Take(rate.Key{Group: fmt.Sprint("new", i)}, limit); !ok {
				t.Fatalf("group %d shares a bucket with others", i)
			}
		}
	}
}

func TestALimitThatMeansNothingIsRefused(t *testing.T) {
	for _, c := range []struct {
		limit rate.Limit
		ok    bool
	}{
		{rate.Limit{}, true},
		{rate.Limit{PerSecond: 1}, true},
		{rate.Limit{PerSecond: 0.001, Burst: 1}, true},
		{rate.Limit{PerSecond: 1e6, Burst: 1e6}, true},
		{rate.Limit{PerSecond: -1}, false},
		{rate.Limit{PerSecond: 1e-4}, false},
		{rate.Limit{PerSecond: 1e7}, false},
		{rate.Limit{PerSecond: math.NaN()}, false},
		{rate.Limit{PerSecond: math.Inf(1)}, false},
		{rate.Limit{Burst: 1}, false},
		{rate.Limit{PerSecond: 1, Burst: -1}, false},
		{rate.Limit{PerSecond: 1, Burst: 1e7}, false},
	} {
		if err := c.limit.Check(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.limit, err)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	table := rate.NewTable(0, nil)
	keys := make([]rate.Key, 10_000)
	for i := range keys {
		keys[i] = rate.Key{Group: fmt.Sprint("tenant-", i%100), Name: fmt.Sprint("caller-", i)}
	}
	for i := 0; b.Loop(); i++ {
		table.Take(keys[i%len(keys)], rate.Limit{PerSecond: 100, Burst: 200})
	}
}
