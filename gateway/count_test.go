package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/test/await"
)

// patient gives engines all the time to count.
func patient(c *Config) { c.CountTimeout = 10 * time.Second }

// withoutTokenizer is a gateway that has none of the model's files.
func withoutTokenizer(c *Config) { c.Live.Prompts = nil }

// counts are the decisions to have a prompt counted that belong to a request,
// with their outcomes.
func (s *service) counts(a answer) (decisions, outcomes []*audit.Record) {
	s.tb.Helper()
	await.That(s.tb, "the outcomes of counts", func() bool {
		decisions, outcomes = nil, nil
		for e, err := range tlog.Read(s.logDir, 0) {
			if err != nil {
				s.tb.Fatal(err)
			}
			if !bytes.Contains(e.Leaf, []byte(`"parent":"`+a.id()+`"`)) {
				continue
			}
			r := tlogtest.Decode(s.tb, e)
			if r.Kind == audit.KindDecision {
				decisions = append(decisions, r)
			} else {
				outcomes = append(outcomes, r)
			}
		}
		return len(decisions) == len(outcomes)
	})
	return decisions, outcomes
}

func TestAPromptThatCannotBeTokenizedHereIsCountedByAnEngine(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	for _, p := range protocols {
		mark := s.newMark()
		a := s.ask(p, "acme", p.body(mark))
		if a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", p.op.Name, a.status, a.body)
		}
		d, o := s.lone(a)
		if d.Request.PromptBasis != basisEngine || d.Request.PromptTokens != o.Outcome.PromptTokens || !slices.Equal(d.Request.PromptWhy, []string{noTokenizer}) {
			t.Errorf("%s: counted %d (%s %v), the engine %d", p.op.Name, d.Request.PromptTokens, d.Request.PromptBasis, d.Request.PromptWhy, o.Outcome.PromptTokens)
		}
		if !strings.Contains(string(d.Input), `"prompt_tokens_basis":"engine"`) {
			t.Errorf("%s: policy was asked with %s", p.op.Name, d.Input)
		}
		if got := s.engine.counted(mark); len(got) != 1 || got[0].path != p.op.Engine+"/render" || strings.Contains(got[0].body, "cache_salt") {
			t.Fatalf("%s: the engines got %+v", p.op.Name, got)
		}
		cd, co := s.counts(a)
		if len(cd) != 1 || len(co) != 1 {
			t.Fatalf("%s: %d decisions to count, %d outcomes", p.op.Name, len(cd), len(co))
		}
		if c := cd[0]; c.Reason != reasonCount || c.Request.Operation != "POST "+p.op.Engine+"/render" || c.Placement.Pool != "general" ||
			c.Status != audit.StatusAllowed || c.Request.PromptBasis != basisEstimate || c.Log.Seq >= d.Log.Seq || c.Request.PromptMAC != d.Request.PromptMAC {
			t.Errorf("%s: decision %+v %+v", p.op.Name, c, c.Request)
		}
		if c := co[0]; c.Status != audit.StatusOK || c.Outcome.PromptTokens != d.Request.PromptTokens || c.Outcome.Replica == "" || c.Outcome.Peer != c.Outcome.Replica {
			t.Errorf("%s: outcome %+v", p.op.Name, c.Outcome)
		}
	}
}

func TestACountIsWorthAsMuchAsOurOwn(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	mark := s.newMark()
	body := chat(mark+strings.Repeat(" and the harbour", 40), `"max_tokens":4`)
	s.want(s.post("acme", body), http.StatusOK, "")
	await.That(t, "a prediction that comes true", func() bool {
		d, o := s.lone(s.post("acme", body))
		return d.Placement.Basis == string(routing.KVEvents) && d.Placement.PredictedCached > 0 && *o.Outcome.CachedTokens == d.Placement.PredictedCached
	})
}

func says200(body string) act {
	return func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

func TestACountThatDoesNotComeCostsNothingButItsBudget(t *testing.T) {
	for _, c := range []struct {
		name string
		act  act
		why  string
		edit func(*Config)
	}{
		{"slow", func(_ http.ResponseWriter, r *http.Request, _ call, _ func()) { <-r.Context().Done() }, countSlow, func(c *Config) { c.CountTimeout = 200 * time.Millisecond }},
		{"trickling", func(w http.ResponseWriter, r *http.Request, _ call, _ func()) {
			_, _ = io.WriteString(w, `{"token_ids":[`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, countSlow, func(c *Config) { c.CountTimeout = 200 * time.Millisecond }},
		{"erroring", replies(http.StatusInternalServerError, engineText), countFailed, patient},
		{"breaking", func(http.ResponseWriter, *http.Request, call, func()) { panic(http.ErrAbortHandler) }, countFailed, patient},
		{"huge", func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
			for range 3 << 10 {
				if _, err := io.WriteString(w, strings.Repeat("1,", 1<<10)); err != nil {
					return
				}
			}
		}, countMalformed, patient},
		{"empty", says200(`{}`), countMalformed, patient},
		{"no JSON", says200(`token_ids`), countMalformed, patient},
		{"negative ids", says200(`{"token_ids":[-1]}`), countMalformed, patient},
		{"fractions", says200(`{"token_ids":[1.5]}`), countMalformed, patient},
		{"ids beyond 32 bits", says200(`{"token_ids":[4294967296]}`), countMalformed, patient},
		{"texts", says200(`{"token_ids":["1"]}`), countMalformed, patient},
		{"a list", says200(`[{"token_ids":[1]}]`), countMalformed, patient},
		{"media outside", says200(`{"token_ids":[1,2],"features":{"mm_placeholders":{"image":[{"offset":3,"length":1}]}}}`), countMalformed, patient},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, withoutTokenizer, c.edit)
			mark := s.newMark()
			s.engine.onCount(mark, c.act)
			body := chat(mark)
			a := s.post("acme", body)
			s.want(a, http.StatusOK, "")
			d, o := s.lone(a)
			if d.Request.PromptBasis != basisEstimate || d.Request.PromptTokens != (len(body)+3)/4 || !slices.Equal(d.Request.PromptWhy, []string{noTokenizer, c.why}) {
				t.Errorf("counted %d (%s %v)", d.Request.PromptTokens, d.Request.PromptBasis, d.Request.PromptWhy)
			}
			if o.Status != audit.StatusOK || d.Placement.BasisReason != string(routing.TokensEstimated) {
				t.Errorf("outcome %s, basis %s %s", o.Status, d.Placement.Basis, d.Placement.BasisReason)
			}
			_, co := s.counts(a)
			if len(co) != 1 || co[0].Status != audit.StatusError || co[0].Reason != c.why {
				t.Errorf("outcomes of the count: %+v", co)
			}
		})
	}
}

func TestAReplicaThatFailsCountsIsLeftAlone(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	mark := s.newMark()
	s.engine.onCount(mark, replies(http.StatusInternalServerError, engineText))
	asked, began := 0, time.Now()
	for range 20 {
		a := s.post("globex", chat(mark))
		s.want(a, http.StatusOK, "")
		d, _ := s.lone(a)
		if why := d.Request.PromptWhy[1]; why == countFailed {
			asked++
		} else if why != countNoRoute {
			t.Fatalf("why %s", why)
		}
	}
	// On a busy machine a rest ends meanwhile.
	if most := (countErrors + int(time.Since(began)/countRest)) * pools["general"]; asked < countErrors || asked > most {
		t.Errorf("asked %d times, at most %d", asked, most)
	}
}

// One caller must not be able to have the prompts of others estimated.
func TestAReplicaIsNotLeftAloneForWhatACallerSends(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	bad, gone := s.newMark(), s.newMark()
	s.engine.onCount(bad, replies(http.StatusBadRequest, engineText))
	for range 2 * countErrors * pools["general"] {
		s.want(s.post("acme", chat(bad)), http.StatusOK, "")
	}
	asked, client := make(chan struct{}), s.clientAs(nil)
	s.engine.onCount(gone, func(_ http.ResponseWriter, r *http.Request, _ call, _ func()) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	for range 2 * countErrors * pools["general"] {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		req := s.request(ctx, "acme", chat(gone))
		if resp, err := client.Do(req); err == nil {
			t.Fatal("a caller that has gone got an answer: ", resp.Status, resp.Body.Close())
		}
	}
	a := s.post("globex", chat(s.newMark()))
	s.want(a, http.StatusOK, "")
	if d, _ := s.lone(a); d.Request.PromptBasis != basisEngine {
		t.Errorf("another's prompt was counted as %s %v", d.Request.PromptBasis, d.Request.PromptWhy)
	}
}

func TestCountersRestLongerEachTimeAndForgetAtASuccess(t *testing.T) {
	var c counters
	now := time.Unix(1000, 0)
	fail := func() bool { c.over("r", false, now); return len(c.open(now)) == 1 }
	for i := range countErrors {
		if fail() != (i == countErrors-1) {
			t.Fatalf("after %d failures: %v", i+1, c.open(now))
		}
	}
	for want := countRest; want <= countRestMost; want *= 2 {
		if now = now.Add(want - 1); len(c.open(now)) != 1 {
			t.Fatalf("a rest of %v is over early", want)
		}
		if now = now.Add(1); len(c.open(now)) != 0 {
			t.Fatalf("a rest of %v is not over", want)
		}
		if !fail() {
			t.Fatal("a failure after a rest began none")
		}
	}
	now = now.Add(countRestMost)
	c.over("r", true, now)
	if len(c.open(now)) != 0 || fail() {
		t.Error("a success was not the end of it")
	}
	for range mostCounts {
		if !c.enter() {
			t.Fatal("a place is missing")
		}
	}
	if c.enter() {
		t.Error("more counts than places")
	}
	c.leave()
	if !c.enter() {
		t.Error("a place was not given back")
	}
}

func TestReplicasThatAreGoneAreForgotten(t *testing.T) {
	var c counters
	now := time.Now()
	for i := range 1000 {
		now = now.Add(time.Second)
		for range countErrors {
			c.over(fmt.Sprint("replica-", i), false, now)
		}
		if len(c.bad) > int(countForget/time.Second)+1 {
			t.Fatalf("%d replicas are remembered", len(c.bad))
		}
	}
	if len(c.open(now)) == 0 {
		t.Error("the last is asked again at once")
	}
}

func TestNoPromptIsCountedWherePolicyDoesNotPermitIt(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	for who, want := range map[string]struct {
		status int
		pool   string
	}{"initech": {http.StatusForbidden, ""}, "agent": {http.StatusOK, "agents"}} {
		mark := s.newMark()
		more := []string{}
		if who == "agent" {
			more = append(more, `"tools":[{"type":"function","function":{"name":"lookup","parameters":{"type":"object"}}}]`)
		}
		a := s.post(who, chat(mark, more...))
		if a.status != want.status {
			t.Fatalf("%s: %d %s", who, a.status, a.body)
		}
		all := append(s.engine.got(mark), s.engine.counted(mark)...)
		for _, c := range all {
			if want.pool == "" || !strings.Contains(c.replica, "/pool/"+want.pool+"/") {
				t.Errorf("%s: %s got %s", who, c.replica, c.path)
			}
		}
		if n := len(all); want.pool == "" && n != 0 || want.pool != "" && n != 2 {
			t.Errorf("%s: engines got %d requests", who, n)
		}
	}
}

func TestNothingIsCountedThatCouldNotBeWrittenDown(t *testing.T) {
	w := inWorld(t)
	s := serve(t, withoutTokenizer, func(c *Config) {
		c.CountTimeout = 200 * time.Millisecond
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			if r.Reason == reasonCount {
				<-ctx.Done() // a disk that is busy
				return audit.Position{}, ctx.Err()
			}
			return w.log.Append(ctx, r)
		})
	})
	mark := s.newMark()
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusOK, "")
	if d, _ := s.lone(a); d.Request.PromptBasis != basisEstimate || d.Request.PromptWhy[1] != countUnlogged {
		t.Errorf("counted by %s, %v", d.Request.PromptBasis, d.Request.PromptWhy)
	}
	if got := s.engine.counted(mark); len(got) != 0 {
		t.Errorf("the engines got %+v", got)
	}
}

// impatience is a context that is found to have ended only once it is waited for.
type impatience struct {
	context.Context
	looked atomic.Bool
}

func (g *impatience) Done() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}

func (g *impatience) Err() error {
	if g.looked.CompareAndSwap(false, true) {
		return nil
	}
	return context.DeadlineExceeded
}

// A record of a count that is durable too late has its outcome all the same: that
// nothing was forwarded.
func TestACountThatIsWrittenDownTooLateIsNotForwarded(t *testing.T) {
	w := inWorld(t)
	for claim, c := range map[string]struct {
		append func(ctx context.Context, r *audit.Record) (audit.Position, error)
		reason string
	}{
		"durable once nobody waits": {func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			return w.log.Append(&impatience{Context: ctx}, r)
		}, "audit_timeout"},
		"acknowledged as the time for it ends": {func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			at, err := w.log.Append(ctx, r)
			<-ctx.Done()
			return at, err
		}, countUnlogged},
	} {
		s := serve(t, withoutTokenizer, func(cfg *Config) {
			cfg.CountTimeout = 500 * time.Millisecond
			cfg.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
				if r.Reason == reasonCount {
					return c.append(ctx, r)
				}
				return w.log.Append(ctx, r)
			})
		})
		mark := s.newMark()
		a := s.post("acme", chat(mark))
		s.want(a, http.StatusOK, "")
		if d, _ := s.lone(a); d.Request.PromptBasis != basisEstimate || d.Request.PromptWhy[1] != countUnlogged {
			t.Errorf("%s: counted by %s, %v", claim, d.Request.PromptBasis, d.Request.PromptWhy)
		}
		if got := s.engine.counted(mark); len(got) != 0 {
			t.Errorf("%s: the engines got %+v", claim, got)
		}
		decision, outcome := s.countOf(a)
		if decision.Status != audit.StatusAllowed || outcome.Status != audit.StatusNotForwarded || outcome.Reason != c.reason {
			t.Errorf("%s: %s ended as %s, %s", claim, decision.Status, outcome.Status, outcome.Reason)
		}
	}
}

// countOf is the only count of a request, with its only outcome, whoever wrote
// that.
func (s *service) countOf(a answer) (decision, outcome *audit.Record) {
	s.tb.Helper()
	await.That(s.tb, "the outcome of the count", func() bool {
		decision, outcome = nil, nil
		for e, err := range tlog.Read(s.logDir, 0) {
			if err != nil {
				s.tb.Fatal(err)
			}
			switch r := tlogtest.Decode(s.tb, e); {
			case r.Kind == audit.KindDecision && r.Parent == a.id():
				if decision != nil {
					s.tb.Fatal("two counts")
				}
				decision = r
			case r.Kind == audit.KindOutcome && decision != nil && r.ID == decision.ID:
				if outcome != nil {
					s.tb.Fatalf("two outcomes: %s, %s", outcome.Status, r.Status)
				}
				outcome = r
			}
		}
		return outcome != nil
	})
	return decision, outcome
}

func TestNothingIsCountedForATokenRevokedMeanwhile(t *testing.T) {
	w := inWorld(t)
	var revoked atomic.Bool
	var s *service
	s = serve(t, patient, withoutTokenizer, func(c *Config) {
		c.Live.Identity.Revoked = func(identity.Principal, string) error {
			if revoked.Load() {
				return identity.ErrBadCredential
			}
			return nil
		}
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			if r.Reason == reasonCount {
				revoked.Store(true)
				s.g.Reauthenticate()
			}
			return w.log.Append(ctx, r)
		})
	})
	mark := s.newMark()
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusUnauthorized, "bad_credential")
	if got := s.engine.counted(mark); len(got) != 0 {
		t.Errorf("the engines got %+v", got)
	}
	if _, ends := s.counts(a); len(ends) != 1 || ends[0].Caller == nil || ends[0].Caller.Tenant != "acme" || ends[0].Status != audit.StatusNotForwarded || ends[0].Reason != countMoved {
		t.Errorf("the count ended with %+v", ends)
	}
}

func TestPolicyIsAskedAgainWithWhatTheEngineCounted(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	mark := s.newMark()
	long := make([]string, 1<<20)
	for i := range long {
		long[i] = "7"
	}
	s.engine.onCount(mark, says200(`{"token_ids":[`+strings.Join(long, ",")+`]}`))
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusBadRequest, "invalid_request")
	d, _ := s.lone(a)
	if d.Reason != reasonTooLong || d.Request.PromptTokens != 1<<20 || d.Request.PromptBasis != basisEngine {
		t.Errorf("%s, %d (%s)", d.Reason, d.Request.PromptTokens, d.Request.PromptBasis)
	}
	s.unreached(mark)
}

// What a kill leaves on the disk is what is there at that moment.
func TestAKillBetweenTheRecordOfACountAndItsAnswerLeavesNoHarm(t *testing.T) {
	s := serve(t, patient, withoutTokenizer)
	mark, left := s.newMark(), t.TempDir()
	s.engine.onCount(mark, func(_ http.ResponseWriter, _ *http.Request, _ call, pass func()) {
		if err := os.CopyFS(left, os.DirFS(s.logDir)); err != nil {
			t.Error(err)
		}
		pass()
	})
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusOK, "")
	log, err := tlog.Open(tlog.Config{Dir: left, Key: s.key, Boot: audit.Gateway{SPIFFE: s.self.ID().String()}, SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	if _, err := tlog.Find(left, a.id(), 0); !errors.Is(err, tlog.ErrNotFound) {
		t.Errorf("the request has a decision already: %v", err)
	}
	counts, _ := s.counts(a)
	entries, err := tlog.Find(left, counts[0].ID, 0)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%d records of the count, %v", len(entries), err)
	}
	for i, want := range []string{audit.StatusAllowed, audit.StatusUnknownCrash} {
		if r, err := audit.Decode(entries[i].Leaf); err != nil || r.Status != want {
			t.Errorf("record %d: %s, %v; want %s", i, r.Status, err, want)
		}
	}
}

func TestIDsAfterMediaAreNotHeldForText(t *testing.T) {
	got, err := readRendered([]byte(`{"token_ids":[1,2,3,4,5],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":3,"length":1}],"audio":[{"offset":2,"length":1}]},"kwargs_data":null}}`))
	if err != nil || got.count != 5 || !slices.Equal(got.known, []uint32{1, 2}) {
		t.Errorf("%+v, %v", got, err)
	}
	if !sameIDs([]uint32{1, 2, 9, 9, 9}, got) || sameIDs([]uint32{1, 2, 9, 9}, got) || sameIDs([]uint32{1, 3, 9, 9, 9}, got) {
		t.Error("ids were compared where they are not known, or not where they are")
	}
}

func TestTokenizeIsAskedOnlyWhatItKnows(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":[1],"temperature":1,"tools":[2],"stream":true}`: `{"messages":[1],"model":"m","tools":[2]}`,
		`{"model":"m","prompt":"a","max_tokens":3}`:                              `{"model":"m","prompt":"a"}`,
		`{"model":"m","messages":[1],"documents":[2]}`:                           "",
		`{"model":"m","messages":[1],"reasoning_effort":"low"}`:                  "",
		`{"model":"m","messages":[1],"reasoning_effort":null}`:                   `{"messages":[1],"model":"m"}`,
		`{"model":"m","prompt":["a"]}`:                                           "",
	} {
		if got := string(TokenizeBody([]byte(body))); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

func FuzzACountIsWholeOrRefused(f *testing.F) {
	for _, seed := range []string{`{"token_ids":[1,2]}`, `[{"token_ids":[1]}]`, `{"count":1,"tokens":[1]}`, `{"token_ids":[1],"features":{"mm_placeholders":{"image":[{"offset":0,"length":1}]}}}`, `{"token_ids":null}`, `{`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []func([]byte) (countAnswer, error){readRendered, readRenderedList, readTokenized} {
			if got, err := read(body); err == nil && (got.count < 1 || len(got.known) > got.count) || err != nil && got.count != 0 {
				t.Fatalf("%q: %+v, %v", body, got, err)
			}
		}
	})
}
