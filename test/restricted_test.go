package test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/test/await"
)

// medical is a request that a detector makes restricted.
const medical = `{"model":"small","max_tokens":4,"messages":[{"role":"user","content":"When was the last visit?"}],` +
	`"documents":[{"title":"Discharge letter","text":"Patient seen on 3 March. Medical record number: MRN 48213377."}]}`

// newRestrictedFleet serves restricted requests of acme, from a pool that policy
// says is in that region. Where that is not acme's, it also lacks the lines that say so,
// by which the gateway would have refused them.
func newRestrictedFleet(t *testing.T, region string) *auditedFleet {
	t.Helper()
	f := &auditedFleet{began: time.Now().Add(-time.Second), world: newWorld(t), dir: t.TempDir()}
	vault := f.newEngine(t, "restricted", "vault")
	f.startRelay(t, vault, "127.0.0.1:0")
	f.replicas = append([]*replica{vault}, f.replicas...) // the others serve what is not restricted
	edit := func(path string, change func(text string) string) {
		t.Helper()
		before := readFile(t, path)
		after := change(before)
		if after == before {
			t.Fatalf("%s is unchanged", filepath.Base(path))
		}
		writeFile(t, path, after)
	}
	edit(f.config, func(text string) string {
		member := `members: ["spiffe://` + trustDomain + `/pool/restricted/*"]`
		return strings.Replace(text, member, member+`, replicas: [{address: "`+vault.addr+`", id: "`+vault.id+`"}]`, 1)
	})
	data := filepath.Join(f.world.dir, "policy/sallyport")
	if region != "eu-1" {
		edit(filepath.Join(data, "pools/data.json"), func(text string) string {
			at := strings.Index(text, `"restricted": {`)
			return text[:at] + strings.Replace(text[at:], `"region": "eu-1"`, `"region": "`+region+`"`, 1)
		})
		for _, of := range []string{"tenants", "workloads"} {
			edit(filepath.Join(data, of, "data.json"), func(text string) string {
				return regexp.MustCompile(`,\s*"residency": "eu-1"`).ReplaceAllString(text, "")
			})
		}
	}
	gateway, url := f.serve(t)
	client := f.client(t, nil)
	rag, err := f.issuer.Mint(map[string]any{"sub": "acme-rag", "tenant": "acme", "client_id": "acme-rag", "aud": audience})
	if err != nil {
		t.Fatal(err)
	}
	awaitOK(t, client, url, f.token(t, "alice@acme.example", "acme"))
	for served := 0; served < 3; {
		await.That(t, "a restricted request to be served", func() bool {
			a, err := ask(t.Context(), client, url, rag, []byte(medical))
			return err == nil && a.status == http.StatusOK
		})
		served++
	}
	f.until = time.Now()
	time.Sleep(10 * time.Millisecond) // what is decided now lies behind
	awaitOK(t, client, url, f.token(t, "alice@acme.example", "acme"))
	gateway.stop(t)
	for _, r := range f.replicas {
		r.relay.stop(t)
	}
	return f
}

// TestRestrictedRequestsAreProvenToHaveStayedInTheirRegion asks of restricted
// requests that a real gateway has decided and real relays have served, in the
// region and, by a policy that somebody spoilt, out of it.
func TestRestrictedRequestsAreProvenToHaveStayedInTheirRegion(t *testing.T) {
	for _, c := range []struct {
		region string // where they were served
		code   int
		result string
	}{{"eu-1", 0, "holds"}, {"us-1", 1, "does_not_hold"}} {
		t.Run(c.result, func(t *testing.T) {
			f := newRestrictedFleet(t, c.region)
			fleet := f.register(t, func(e map[string]map[string]string) {
				e["r0"]["region"], e["r1"]["region"], e["r2"]["region"] = c.region, "eu-1", "eu-1"
			})
			out, code := sallyport(t, "audit", "residency", "--json", "--fleet", fleet, "--tenant", "acme", "--label", "restricted", "--region", "eu-1",
				"--since", f.began.Format(time.RFC3339Nano), "--until", f.until.Format(time.RFC3339Nano))
			var v struct {
				Result                     string
				Requests, Inside, Violated int
				Doubts                     map[string]int
				Against                    []struct{ Label, Replica, Region, By string }
			}
			if err := json.NewDecoder(bytes.NewReader([]byte(out))).Decode(&v); err != nil {
				t.Fatalf("exit %d, %v: %s", code, err, out)
			}
			if code != c.code || v.Result != c.result || v.Requests != 3 || v.Inside+v.Violated != 3 || len(v.Doubts) != 0 {
				t.Errorf("exit %d, want %d: %+v", code, c.code, v)
			}
			for _, a := range v.Against {
				if a.Label != "restricted" || a.Replica != f.replicas[0].id || a.Region != "us-1" || a.By != "relay" {
					t.Errorf("against: %+v", a)
				}
			}
			if c.code == 0 != (len(v.Against) == 0) {
				t.Errorf("%d requests against it", len(v.Against))
			}
			if out, code := sallyport(t, "audit", "verify", "--fleet", fleet); code != 0 {
				t.Errorf("audit verify --fleet: exit %d: %s", code, out)
			}
		})
	}
}
