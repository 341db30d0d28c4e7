package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLabPrintsAnObjectForEachStrategyLoadAndCapacity(t *testing.T) {
	page := filepath.Join(t.TempDir(), "lab.html")
	args := []string{
		"lab", "--trace", "synthetic:chat", "--requests", "120", "--oracle-requests", "60", "--replicas", "2", "--seeds", "1",
		"--strategy", "kv,round-robin", "--load", "0.5,0.8", "--capacity", "1", "--json", "--report", page, "--faults", "event-loss=0.01",
	}
	cmd := commands()
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var seen []string
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	for dec.More() {
		var r struct {
			Trace, Strategy              string
			Load, Capacity               float64
			Replicas, Gateways, Requests int
			Hit                          float64 `json:"hit_tokens_share"`
			Oracle                       float64 `json:"oracle_share"`
			P50                          float64 `json:"ttft_p50_ms"`
			P90                          float64 `json:"ttft_p90_ms"`
			P99                          float64 `json:"ttft_p99_ms"`
			Throughput                   float64 `json:"throughput_tok_s"`
			Imbalance                    float64
		}
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Trace != "synthetic:chat" || r.Capacity != 1 || r.Replicas != 2 || r.Gateways != 1 || r.Requests != 120 || r.P50 <= 0 || r.Hit <= 0 {
			t.Errorf("%+v", r)
		}
		seen = append(seen, r.Strategy)
	}
	if got := strings.Join(seen, " "); got != "kv round-robin kv round-robin" {
		t.Errorf("objects for %s", got)
	}
	if raw, err := os.ReadFile(page); err != nil || !bytes.Contains(raw, []byte("<svg")) {
		t.Errorf("report: %v, %d bytes", err, len(raw))
	}
	if !strings.Contains(errs.String(), "without limits") {
		t.Errorf("progress does not tell what a cache without limits would find: %s", errs.String())
	}
}

func TestLabRefusesWhatItCannotRun(t *testing.T) {
	for _, args := range []string{
		"--trace /nowhere.jsonl", "--trace synthetic:nope", "--strategy luck", "--load 0", "--faults nope", "--replicas -1",
	} {
		cmd := commands()
		cmd.SetArgs(append([]string{"lab"}, strings.Fields(args)...))
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}
