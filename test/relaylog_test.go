package test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// verifyBoth holds a gateway's log against those of relays, as an auditor does.
func verifyBoth(t *testing.T, w *world, relayDirs ...string) (*reconcile.Report, int) {
	t.Helper()
	args := []string{"audit", "verify", w.logDir, "--key", w.logKey, "--json"}
	for _, r := range w.replicas {
		args = append(args, "--key", r.logKey)
	}
	for _, dir := range relayDirs {
		args = append(args, "--relay-log", dir)
	}
	out, code := sallyport(t, args...)
	var last struct {
		Reconciled *reconcile.Report `json:"reconciled"`
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Reconciled == nil {
		t.Fatalf("audit verify: exit %d, %v: %s", code, err, out)
	}
	return last.Reconciled, code
}

// TestRelaysTellWhatAGatewaysLogDoesNot runs a gateway and its relays, and then
// does to their logs what somebody with all keys could do.
func TestRelaysTellWhatAGatewaysLogDoesNot(t *testing.T) {
	w := newWorld(t)
	gateway, url := w.serve(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	const asked = 6
	for range asked {
		awaitOK(t, client, url, token)
	}
	dirs := []string{w.replicas[0].logDir, w.replicas[1].logDir}
	if r, code := verifyBoth(t, w, dirs...); code != 0 || r.Matched != asked {
		t.Errorf("while serving: exit %d, %+v", code, r)
	}
	gateway.stop(t)
	for _, r := range w.replicas {
		r.relay.stop(t)
	}
	if r, code := verifyBoth(t, w, dirs...); code != 0 || r.Matched != asked || r.Forwards != asked || r.Decisions != asked {
		t.Errorf("afterwards: exit %d, %+v", code, r)
	}
	if r, code := verifyBoth(t, w, dirs[0]); code != 2 && r.Undecided[reconcile.UndecidedRelayMissing] > 0 {
		t.Errorf("without the log of one relay: exit %d, %+v", code, r)
	}

	busy := slices.IndexFunc(w.replicas, func(r *replica) bool { return len(r.served(t)) > 0 })
	r := w.replicas[busy]
	t.Run("a forward that no gateway decided", func(t *testing.T) {
		dir := r.rewrite(t, func(rec *audit.Record) []*audit.Record {
			if rec.Status != audit.StatusServed {
				return []*audit.Record{rec}
			}
			more := *rec
			more.Event = editServed(t, rec.Event, func(s *audit.Served) { s.Ticket = uuid.NewString() })
			return []*audit.Record{rec, &more}
		})
		dirs := slices.Clone(dirs)
		dirs[busy] = dir
		got, code := verifyBoth(t, w, dirs...)
		if want := len(r.served(t)); code != 1 || got.Faults[reconcile.ForwardWithoutDecision] != want {
			t.Errorf("exit %d, %+v; want %d forwards without a decision", code, got, want)
		}
	})
	t.Run("a forward that the relay's log does not hold", func(t *testing.T) {
		dir := r.rewrite(t, func(rec *audit.Record) []*audit.Record {
			if rec.Status == audit.StatusServed {
				return nil
			}
			return []*audit.Record{rec}
		})
		dirs := slices.Clone(dirs)
		dirs[busy] = dir
		got, code := verifyBoth(t, w, dirs...)
		// The log was begun anew just now: it is no witness of what was before,
		// which is undecided, and not well.
		if want := len(r.served(t)); code != 2 || got.Undecided[reconcile.UndecidedForwardPruned] != want {
			t.Errorf("exit %d, %+v; want %d undecided", code, got, want)
		}
	})
}

// rewrite makes a new log under the relay's key, of the records that change
// makes of those that there are.
func (r *replica) rewrite(t *testing.T, change func(*audit.Record) []*audit.Record) string {
	t.Helper()
	key, err := tlog.ReadKeyFile(r.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "log")
	log, err := tlog.Open(tlog.Config{Dir: dir, Key: key, Boot: audit.Gateway{SPIFFE: r.id}, SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range tlogtest.Records(t, r.logDir, 0) {
		if rec.Kind == audit.KindBoot || rec.Kind == audit.KindSeal {
			continue
		}
		for _, rec := range change(rec) {
			if _, err := log.Append(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func editServed(t *testing.T, event json.RawMessage, edit func(*audit.Served)) json.RawMessage {
	t.Helper()
	var s audit.Served
	if err := json.Unmarshal(event, &s); err != nil {
		t.Fatal(err)
	}
	edit(&s)
	out, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
