package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/roster"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// memberThen is a replica of pool general as it was: "r0", "r1 unhealthy", "r2?".
func memberThen(text string) roster.Then {
	id, state, _ := strings.Cut(text, " ")
	id, unsure := strings.CutSuffix(id, "?")
	return roster.Then{Member: roster.Member{Replica: id, Pool: "general", Excluded: state}, Unsure: unsure}
}

func TestWhoWasExcludedIsSaidAsFarAsTheLogSaysIt(t *testing.T) {
	for _, c := range []struct {
		claim      string
		fleet      string // of pool general
		candidates string
		excluded   map[string]int
		want       string
	}{
		{"nobody", "r0,r1", "r0 r1", nil, ""},
		{"by its own state", "r0,r1 unhealthy", "r0", map[string]int{"unhealthy": 1}, "unhealthy 1: r1"},
		{"each by its own", "r0,r1 unhealthy,r2 draining,r3 unhealthy", "r0", map[string]int{"unhealthy": 2, "draining": 1}, "draining 1: r2; unhealthy 2: r1 r3"},
		{"because of the request", "r0,r1", "r0", map[string]int{"no_headroom": 1}, "no_headroom 1: r1"},
		{"because of the request, of two that may be meant", "r0,r1,r2", "r0", map[string]int{"no_headroom": 1}, "no_headroom 1: among r1 r2"},
		{"for two reasons of the request", "r0,r1,r2", "r0", map[string]int{"no_headroom": 1, "model_missing": 1}, "model_missing 1: among r1 r2; no_headroom 1: among r1 r2"},
		{"by state and by request", "r0,r1 breaker,r2", "r0", map[string]int{"breaker": 1, "route_not_isolated": 1}, "breaker 1: r1; route_not_isolated 1: r2"},
		{"tried already, whatever its state", "r0,r1 breaker", "r0", map[string]int{"unhealthy": 1}, "unhealthy 1: r1"},
		{"a state of which there was one more", "r0,r1 unhealthy", "r0", map[string]int{"unhealthy": 2}, "unhealthy 2: r1"},
		{"it held the prompt", "r0,r1 unhealthy", "r0", map[string]int{"holder_down": 1}, "holder_down 1: r1"},
		{"one of two held the prompt", "r0,r1 unhealthy,r2 unhealthy", "r0", map[string]int{"holder_down": 1, "unhealthy": 1}, "holder_down 1: among r1 r2; unhealthy 1: among r1 r2"},
		{"one that was changing", "r0,r1?,r2", "r0 r2", map[string]int{"breaker": 1}, "breaker 1: r1"},
		{"seen otherwise a moment before", "r0,r1 no_svid", "r0", map[string]int{"svid_mismatch": 1}, "svid_mismatch 1: r1"},
		{"a candidate that was seen as down a moment before", "r0 no_svid,r1 no_svid", "r0", map[string]int{"no_svid": 1}, "no_svid 1: r1"},
	} {
		var all []roster.Then
		for _, m := range strings.Split(c.fleet, ",") {
			all = append(all, memberThen(m))
		}
		p := &audit.Placement{Excluded: c.excluded}
		for _, id := range strings.Fields(c.candidates) {
			p.Candidates = append(p.Candidates, audit.Candidate{Replica: id})
		}
		var got []string
		for _, x := range namesOf(p, all) {
			text := fmt.Sprintf("%s %d: %s", x.Reason, x.Count, strings.Join(x.Are, " "))
			if len(x.Among) > 0 {
				text += "among " + strings.Join(x.Among, " ")
			}
			got = append(got, text)
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %q, want %q", c.claim, text, c.want)
		}
	}
}

// unwilling is a log that takes nothing while it is told so.
type unwilling struct {
	*tlog.Log
	refuse bool
}

func (u *unwilling) Append(ctx context.Context, r *audit.Record) (audit.Position, error) {
	if u.refuse {
		return audit.Position{}, errors.New("no")
	}
	return u.Log.Append(ctx, r)
}

// TestExplainNamesWhoWasExcluded goes from a fleet over a log to the words.
func TestExplainNamesWhoWasExcluded(t *testing.T) {
	dir := t.TempDir()
	log := &unwilling{Log: tlogtest.Open(t, tlog.Config{Dir: dir})}
	now := []fleet.Member{
		{Target: fleet.Target{Address: "127.0.0.1:1", Pool: "general", Region: "eu-1"}, ID: "spiffe://example.org/r0", Epoch: "e0"},
		{Target: fleet.Target{Address: "127.0.0.1:2", Pool: "general", Region: "eu-2"}, Excluded: routing.NoSVID},
		{Target: fleet.Target{Address: "127.0.0.1:3", Pool: "other"}, ID: "spiffe://example.org/r2"},
	}
	m := &members{fleet: func() []fleet.Member { return now }, log: log, logger: slog.New(slog.DiscardHandler)}
	if err := m.look(t.Context(), time.Now().Add(-10*time.Second)); err != nil {
		t.Fatal(err)
	}
	decide := func(id string, excluded map[string]int) {
		t.Helper()
		_, err := log.Log.Append(t.Context(), &audit.Record{
			Kind: audit.KindDecision, ID: id, Durability: audit.Strict, Status: audit.StatusAllowed, Decision: json.RawMessage(`{"allow":true,"pools":["general"]}`),
			Placement: &audit.Placement{Pool: "general", Replica: "spiffe://example.org/r0", Considered: 2, Excluded: excluded, Candidates: []audit.Candidate{{Replica: "spiffe://example.org/r0"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
	decide(first, map[string]int{"no_svid": 1})
	now[1].ID, now[1].Excluded = "spiffe://example.org/r1", routing.Draining
	log.refuse = true
	if err := m.look(t.Context(), time.Now()); err == nil {
		t.Error("it is not told that the log took nothing")
	}
	log.refuse = false
	if err := m.look(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	decide(second, map[string]int{"draining": 1})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	excerpt := filepath.Join(t.TempDir(), "x.jsonl")
	runKeys(t, "audit", "export", dir, "--out", excerpt)
	later := filepath.Join(t.TempDir(), "later.jsonl")
	runKeys(t, "audit", "export", dir, "--from", "2", "--out", later)
	for _, c := range []struct{ path, id, want string }{
		{dir, first, "2 replicas in these pools"},
		{dir, first, "1: no_svid: 127.0.0.1:2"},
		{dir, second, "1: draining: spiffe://example.org/r1"},
		{excerpt, second, "1: draining: spiffe://example.org/r1"},
		{later, first, "the log does not say which replicas there were"},
		{later, first, "1: no_svid\n"},
	} {
		if out, _ := output(t, "audit", "explain", c.path, c.id); !strings.Contains(out, c.want) {
			t.Errorf("explain %s of %s: no %q in\n%s", c.id, c.path, c.want, out)
		}
	}
	out, _ := output(t, "audit", "explain", dir, second, "--json")
	var s story
	if err := json.Unmarshal([]byte(out[:strings.Index(out, "\n")]), &s); err != nil {
		t.Fatal(err)
	}
	if f := s.Fleet; f == nil || !f.Told || len(f.Replicas) != 2 || f.Replicas[0].N != 0 || f.Replicas[0].Epoch != "e0" || f.Replicas[1].Region != "eu-2" || f.Replicas[1].Excluded != "draining" {
		t.Errorf("fleet %+v", s.Fleet)
	}
}

// TestAGatewaysFirstRecordsSayWhichReplicasThereAre builds one, with witnesses of
// both kinds, and looks into its log before it serves and after.
func TestAGatewaysFirstRecordsSayWhichReplicasThereAre(t *testing.T) {
	w := newWorld(t)
	cfg := secondGateway(t, w)
	ed, pq := tlogtest.NewWitness(t, "ed.example/w"), tlogtest.NewMLDSAWitness(t, "pq.example/w")
	cfg.Audit.Witnesses = tlog.Witnesses{Operator: "us.example", Quorum: 2}
	for _, one := range []*tlogtest.Witness{ed, pq} {
		server := httptest.NewServer(one)
		t.Cleanup(server.Close)
		cfg.Audit.Witnesses.List = append(cfg.Audit.Witnesses.List, tlog.Witness{URL: server.URL, Key: one.Key, Operator: server.URL})
	}
	if err := cfg.Audit.Witnesses.Check(); err != nil {
		t.Fatal(err)
	}
	g, err := buildGateway(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var found *roster.Event
	for _, r := range tlogtest.Records(t, cfg.Audit.Dir, 0) {
		if r.Kind == audit.KindFleet && roster.Is(r.Event) {
			found = new(roster.Event)
			if err := json.Unmarshal(r.Event, found); err != nil {
				t.Fatal(err)
			}
		}
	}
	if found == nil || !found.Full || len(found.Replicas) < 6 || found.Replicas[0].Excluded != string(routing.NoSVID) {
		t.Errorf("before it serves the log has of the fleet: %+v", found)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.run(ctx) }()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		known := 0
		for _, r := range tlogtest.Records(t, cfg.Audit.Dir, 0) {
			var e roster.Event
			if r.Kind != audit.KindFleet || !roster.Is(r.Event) || json.Unmarshal(r.Event, &e) != nil || e.Full {
				continue
			}
			for _, m := range e.Replicas {
				if m.Epoch != "" && m.Excluded == "" {
					known++
				}
			}
		}
		if known >= 6 && g.log.Anchors().Size > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d replicas are known to serve; anchors %+v", known, g.log.Anchors())
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	key := filepath.Join(w.dir, "audit.key.pub")
	if out, code := output(t, "audit", "verify", cfg.Audit.Dir, "--key", key, "--witness", ed.Key, "--witness", pq.Key); code != 0 || !strings.Contains(out, "cosigned by ed.example/w, pq.example/w") {
		t.Errorf("exit %d\n%s", code, out)
	}
}
