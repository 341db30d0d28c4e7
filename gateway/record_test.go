package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/test/await"
)

// appendFunc is a log whose appends a test gets between.
type appendFunc func(ctx context.Context, r *audit.Record) (audit.Position, error)

func (f appendFunc) Append(ctx context.Context, r *audit.Record) (audit.Position, error) {
	return f(ctx, r)
}

// allows says whether r is the decision that lets a request through.
func allows(r *audit.Record) bool {
	return r.Kind == audit.KindDecision && r.Status == audit.StatusAllowed
}

func TestNothingIsForwardedThatCannotBeWrittenDown(t *testing.T) {
	w := inWorld(t)
	blocked := func(ctx context.Context, r *audit.Record) (audit.Position, error) {
		<-ctx.Done()
		return audit.Position{}, context.Cause(ctx)
	}
	t.Run("", func(t *testing.T) { // ends when all in it have
		for claim, log := range map[string]appendFunc{
			"the log is halted": func(context.Context, *audit.Record) (audit.Position, error) {
				return audit.Position{}, audit.ErrUnavailable
			},
			"the log fails in a way of its own": func(context.Context, *audit.Record) (audit.Position, error) {
				return audit.Position{}, errors.New("no space left on /var/log/sallyport")
			},
			"the log does not answer": blocked,
			"the log answers after the deadline": func(ctx context.Context, r *audit.Record) (audit.Position, error) {
				at, err := w.log.Append(ctx, r)
				if err == nil && allows(r) {
					return blocked(ctx, r)
				}
				return at, err
			},
		} {
			for _, op := range []string{"chat", "streamed", "models"} {
				t.Run(claim+", "+op, func(t *testing.T) {
					t.Parallel()
					s := serve(t, func(c *Config) { c.Log, c.AppendTimeout = log, 0 })
					mark := s.newMark()
					req := s.request(t.Context(), "acme", chat(mark))
					switch op {
					case "streamed":
						req = s.request(t.Context(), "acme", chat(mark, streamed))
					case "models":
						req.Method, req.URL.Path = http.MethodGet, "/v1/models"
					}
					began := time.Now()
					a := s.do(req)
					s.want(a, http.StatusServiceUnavailable, "audit_unavailable")
					if took := time.Since(began); took > await.Limit/2 {
						t.Errorf("took %v", took)
					}
					if strings.Contains(a.body, "var/log") || strings.Contains(a.body, "small") {
						t.Errorf("the caller reads %s", a.body)
					}
					s.unreached(mark)
				})
			}
		}
	})
	await.That(t, "all reservations to be given back", func() bool {
		waiting := int64(0)
		for _, r := range w.fleet.Replicas() {
			waiting += r.Waiting
		}
		return waiting == 0
	})
}

// The log owes an outcome to a decision that it took too late for its caller.
func TestADecisionThatCameTooLateIsNotForwarded(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		c.AppendTimeout = time.Nanosecond // over before the log can sync
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) { return w.log.Append(ctx, r) })
	})
	mark := s.newMark()
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusServiceUnavailable, "audit_unavailable")
	s.unreached(mark)
	for _, r := range s.records(t, a.id()) {
		if r.Kind == audit.KindOutcome && r.Status != audit.StatusNotForwarded {
			t.Errorf("outcome %s", r.Status)
		}
	}
}

func TestARefusalStandsEvenIfItCannotBeWrittenDown(t *testing.T) {
	s := serve(t, func(c *Config) {
		c.Log = appendFunc(func(context.Context, *audit.Record) (audit.Position, error) {
			return audit.Position{}, audit.ErrUnavailable
		})
	})
	s.want(s.post("initech", chat(s.newMark())), http.StatusForbidden, "policy_denied")
	s.want(s.post("acme", "{"), http.StatusBadRequest, "malformed_json")
	if !strings.Contains(s.logged.String(), "refusal not recorded") {
		t.Error("the operator is not told")
	}
}

// An engine must not see a prompt before the decision about it is on disk.
func TestTheDecisionIsDurableBeforeTheEngineSeesThePrompt(t *testing.T) {
	w := inWorld(t)
	var appended atomic.Bool
	hold := make(chan struct{})
	s := serve(t, func(c *Config) {
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			at, err := w.log.Append(ctx, r)
			if allows(r) {
				<-hold
				appended.Store(true)
			}
			return at, err
		})
	})
	mark := s.newMark()
	found := make(chan string, 1)
	s.engine.on(mark, func(_ http.ResponseWriter, _ *http.Request, c call, pass func()) {
		found <- onDisk(w.logDir, c)
		if !appended.Load() {
			t.Error("the prompt came before the log had answered")
		}
		pass()
	})
	go func() {
		time.Sleep(60 * time.Millisecond) // a forward that does not wait would be there by now
		if len(s.engine.got(mark)) != 0 {
			t.Error("the prompt was sent while the log was still writing")
		}
		close(hold)
	}()
	a := s.post("acme", chat(mark, `"user":"`+strings.Repeat("u", 777)+`"`))
	if a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	if got := <-found; got != a.id() {
		t.Errorf("when the prompt arrived the log held decision %q, not %s", got, a.id())
	}
}

// onDisk looks for the decision about a request that has arrived: the one that
// allowed so long a body at that replica.
func onDisk(dir string, c call) (id string) {
	const owned = len(`,"max_tokens":2048,"cache_salt":""`) + 43
	for e, err := range tlog.Read(dir, 0) {
		if err != nil {
			return err.Error()
		}
		if r, err := audit.Decode(e.Leaf); err == nil && allows(r) && r.Placement != nil && r.Placement.Replica == c.replica &&
			r.Request.BodyBytes == len(c.body)-owned {
			id = r.ID
		}
	}
	return id
}

func TestAnOutcomeThatCannotBeWrittenDownIsTold(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			if r.Kind == audit.KindOutcome {
				return audit.Position{}, audit.ErrUnavailable
			}
			return w.log.Append(ctx, r)
		})
	})
	if a := s.post("acme", chat(s.newMark())); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	await.That(t, "the operator to be told", func() bool { return strings.Contains(s.logged.String(), "outcome not recorded") })
}

// What stays in the log of everything that the other tests did must be whole,
// and hold none of their prompts.
func TestTheLogHoldsNoPromptAndVerifies(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	d, _ := s.lone(s.post("acme", chat(mark+" "+phi, `"tools":[{"type":"function","function":{"name":"lookup","description":"`+mark+`"}}]`)))
	if d.Class.Name != "agent_tool_call" {
		t.Fatalf("class %s", d.Class.Name)
	}
	for e, err := range tlog.Read(s.logDir, 0) {
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"mark-", "harbours", "00482913", s.tokens["acme"], "of-the-client"} {
			if strings.Contains(string(e.Leaf), secret) {
				t.Errorf("record %d holds %q: %s", e.Index, secret, e.Leaf)
			}
		}
	}
	report, err := tlog.Verify(s.logDir, s.key.Verifier(), tlog.VerifyOptions{})
	if err != nil || !report.OK() || report.Decisions == 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
