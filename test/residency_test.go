package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// auditedFleet is a fleet that has served, is stopped, and stands in a register.
type auditedFleet struct {
	*world
	began, until time.Time
	dir          string // of registers
}

// register writes a fleet register. Each entry may be changed on the way.
func (f *auditedFleet) register(t *testing.T, change func(entries map[string]map[string]string)) string {
	t.Helper()
	entry := func(keyFile, log string, more map[string]string) map[string]string {
		vkey, err := os.ReadFile(keyFile)
		if err != nil {
			t.Fatal(err)
		}
		e := map[string]string{"vkey": strings.TrimSpace(string(vkey)), "log": log, "since": f.began.Format(time.RFC3339)}
		for k, v := range more {
			e[k] = v
		}
		return e
	}
	entries := map[string]map[string]string{"gateway": entry(f.logKey, f.logDir, nil)}
	for i, r := range f.replicas {
		entries[fmt.Sprintf("r%d", i)] = entry(r.logKey, r.logDir, map[string]string{"replica": r.id, "region": "us-1"})
	}
	if change != nil {
		change(entries)
	}
	var text strings.Builder
	for _, part := range []struct {
		head  string
		names []string
	}{{"gateways", []string{"gateway", "second"}}, {"relays", []string{"r0", "r1", "r2"}}} {
		var lines []string
		for _, name := range part.names {
			if e := entries[name]; e != nil {
				line, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, string(line))
			}
		}
		fmt.Fprintf(&text, "%s: [%s]\n", part.head, strings.Join(lines, ", "))
	}
	path := filepath.Join(f.dir, fmt.Sprintf("fleet-%d.yaml", time.Now().UnixNano()))
	return writeFile(t, path, text.String())
}

// newAuditedFleet serves globex, which is bound to no region, in a pool that is in us-1.
func newAuditedFleet(t *testing.T) *auditedFleet {
	t.Helper()
	f := &auditedFleet{began: time.Now().Add(-time.Second), world: newWorld(t), dir: t.TempDir()}
	pools := filepath.Join(f.world.dir, "policy/sallyport/pools/data.json")
	text, err := os.ReadFile(pools)
	if err != nil {
		t.Fatal(err)
	}
	moved := bytes.ReplaceAll(text, []byte(`"region": "eu-1"`), []byte(`"region": "us-1"`))
	if bytes.Equal(moved, text) {
		t.Fatal("no pool was moved")
	}
	writeFile(t, pools, string(moved))
	gateway, url := f.serve(t)
	client := f.client(t, nil)
	for range 3 {
		awaitOK(t, client, url, f.token(t, "bob@globex.example", "globex"))
	}
	time.Sleep(10 * time.Millisecond) // what was decided lies before
	f.until = time.Now()
	awaitOK(t, client, url, f.token(t, "bob@globex.example", "globex"))
	gateway.stop(t)
	for _, r := range f.replicas {
		r.relay.stop(t)
	}
	return f
}

// TestNobodyIsServedOutsideTheirRegionUnseen asks the one question that an
// auditor of a bank asks, of logs that a real fleet has written.
func TestNobodyIsServedOutsideTheirRegionUnseen(t *testing.T) {
	f := newAuditedFleet(t)
	type verdict struct {
		Result   string
		Requests int
		Inside   int
		Violated int
		Against  []struct{ Region, By string }
		Doubts   map[string]int
		Absent   []string
		RestsOn  []struct {
			Origin            string
			Records, Anchored uint64
		} `json:"rests_on"`
	}
	ask := func(fleet, region string, args ...string) (v verdict, code int) {
		t.Helper()
		args = append([]string{
			"audit", "residency", "--json", "--fleet", fleet, "--region", region,
			"--tenant", "globex", "--label", "public", "--since", f.began.Format(time.RFC3339Nano), "--until", f.until.Format(time.RFC3339Nano),
		}, args...)
		out, code := sallyport(t, args...)
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("exit %d, %v: %s", code, err, out)
		}
		return v, code
	}
	damaged := filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(damaged, os.DirFS(f.logDir)); err != nil {
		t.Fatal(err)
	}
	segment, err := os.ReadFile(filepath.Join(damaged, "wal/00000000"))
	if err != nil {
		t.Fatal(err)
	}
	segment[bytes.Index(segment, []byte(`"kind":"outcome"`))]++
	writeFile(t, filepath.Join(damaged, "wal/00000000"), string(segment))
	held := filepath.Join(t.TempDir(), "held")
	writeFile(t, held, readFile(t, filepath.Join(f.logDir, "checkpoint")))
	nobody := func(name string) func(map[string]map[string]string) {
		return func(e map[string]map[string]string) { e[name]["log"] = filepath.Join(f.dir, "nobody") }
	}

	for _, c := range []struct {
		claim  string
		change func(map[string]map[string]string)
		region string
		args   []string
		code   int
		holds  func(verdict) bool
	}{
		{"it holds where they were", nil, "us-1", nil, 0, func(v verdict) bool { return v.Requests == 3 && v.Inside == 3 && len(v.RestsOn) == 3 }},
		{"it does not hold for where they were not", nil, "eu-1", nil, 1, func(v verdict) bool {
			return v.Violated == 3 && v.Against[0].Region == "us-1" && v.Against[0].By == "relay"
		}},
		{"it holds of what there was none of", nil, "eu-1", []string{"--label", "restricted"}, 0, func(v verdict) bool { return v.Requests == 0 }},
		{"the gateway's own word is enough against it", nobody("r0"), "eu-1", nil, 1, func(v verdict) bool { return v.Violated == 3 }},
		{"a relay's log inside is not needed", nobody("r0"), "us-1", nil, 0, func(v verdict) bool { return v.Requests == 3 && len(v.Absent) == 1 }},
		{"without a relay's log outside nobody can tell", nobody("r0"), "eu-1", []string{"--label", "restricted"}, 2, func(v verdict) bool { return v.Result == "cannot_tell" }},
		{"without the gateway's log nobody can tell", nobody("gateway"), "us-1", nil, 2, func(v verdict) bool { return v.Requests == 0 }},
		{"with a damaged one nobody can tell", func(e map[string]map[string]string) { e["gateway"]["log"] = damaged }, "us-1", nil, 2, func(v verdict) bool { return len(v.Doubts) > 0 }},
		{"a replica that is not in the register could be anywhere", func(e map[string]map[string]string) { delete(e, "r0"); delete(e, "r1") }, "us-1", nil, 2, func(v verdict) bool { return len(v.Doubts) > 0 }},
		{"the register and the log must agree where a replica is", func(e map[string]map[string]string) { e["r0"]["region"] = "eu-1"; e["r1"]["region"] = "eu-1" }, "eu-1", nil, 2, func(v verdict) bool { return v.Violated == 0 }},
		{"of what is to come nobody can tell", nil, "us-1", []string{"--until", f.until.Add(time.Hour).Format(time.RFC3339Nano)}, 2, func(v verdict) bool { return v.Violated == 0 }},
		{"of what was before the log nobody can tell", func(e map[string]map[string]string) { delete(e["gateway"], "since") }, "us-1", nil, 2, func(v verdict) bool { return len(v.Doubts) == 1 }},
		{"nobody else vouches for it", nil, "eu-1", []string{"--label", "restricted", "--anchored"}, 2, func(v verdict) bool { return v.RestsOn[0].Anchored == 0 }},
		{
			"a checkpoint that was kept elsewhere does", func(e map[string]map[string]string) { e["gateway"]["checkpoint"] = held }, "us-1",
			[]string{"--anchored"},
			0,
			func(v verdict) bool { return v.RestsOn[0].Anchored == v.RestsOn[0].Records },
		},
	} {
		v, code := ask(f.register(t, c.change), c.region, c.args...)
		if code != c.code || !c.holds(v) {
			t.Errorf("%s: exit %d, want %d: %+v", c.claim, code, c.code, v)
		}
	}
	out, code := sallyport(t, "audit", "residency", "--fleet", f.register(t, nil), "--region", "eu-1", "--tenant", "globex", "--label", "public",
		"--since", f.began.Format(time.RFC3339Nano), "--until", f.until.Format(time.RFC3339Nano))
	for _, want := range []string{"DOES NOT HOLD that no request of globex labelled public or higher was served outside eu-1", "3 served outside", "nobody else vouches for it", "taken for granted"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("in words: exit %d, no %q in\n%s", code, want, out)
		}
	}
	for _, args := range [][]string{{}, {"--fleet", f.register(t, nil)}, {"--fleet", "nowhere", "--tenant", "acme", "--region", "eu-1", "--month", "2026-10"}} {
		if _, code := sallyport(t, append([]string{"audit", "residency"}, args...)...); code != 2 {
			t.Errorf("%v: exit %d", args, code)
		}
	}

	t.Run("verify --fleet", func(t *testing.T) {
		for _, c := range []struct {
			claim  string
			change func(map[string]map[string]string)
			silent string
			code   int
			want   string
		}{
			{"all is well", nil, "1h", 0, "4 agree"},
			{"a log is missing", nobody("gateway"), "1h", 1, "missing_log: demo.sallyport/gateway"},
			{"another log is in its place", func(e map[string]map[string]string) { e["gateway"]["log"] = f.replicas[0].logDir }, "1h", 1, "missing_log"},
			{"a log is silent", nil, "1ms", 1, "silent_log: demo.sallyport/gateway"},
			{"a gateway that has gone may be silent", func(e map[string]map[string]string) {
				for _, entry := range e {
					entry["until"] = time.Now().Format(time.RFC3339)
				}
			}, "1ms", 0, "4 agree"},
			{"a log begins later than it must", func(e map[string]map[string]string) { e["gateway"]["since"] = "2026-01-01" }, "1h", 1, "late_log: demo.sallyport/gateway"},
			{"a log is damaged", func(e map[string]map[string]string) { e["gateway"]["log"] = damaged }, "1h", 1, "DAMAGED"},
			{"the register names no log of a relay", func(e map[string]map[string]string) { delete(e["r0"], "log") }, "1h", 2, "no log of demo.sallyport/relay/r0"},
		} {
			fleet := f.register(t, c.change)
			writeFile(t, fleet, "silent_after: "+c.silent+"\n"+readFile(t, fleet))
			out, code := sallyport(t, "audit", "verify", "--fleet", fleet)
			if code != c.code || !strings.Contains(out, c.want) {
				t.Errorf("%s: exit %d, want %d and %q: %s", c.claim, code, c.code, c.want, out)
			}
		}
		if out, code := sallyport(t, "audit", "verify", f.logDir, "--key", f.logKey, "--from", "3", "--to", "6"); code != 0 || !strings.Contains(out, "records 3 to 6 of") {
			t.Errorf("a range: exit %d: %s", code, out)
		}
		writeFile(t, held, strings.Replace(readFile(t, held), "\n1", "\n2", 1))
		if out, code := sallyport(t, "audit", "verify", f.logDir, "--key", f.logKey, "--checkpoint", held); code != 1 {
			t.Errorf("a held checkpoint that does not hold: exit %d: %s", code, out)
		}
	})
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
