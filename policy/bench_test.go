package policy

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// manyTenants is the data of n tenants with all classes over 24 pools.
func manyTenants(n int) map[string]any {
	classes := []string{"chat", "embedding", "rag", "agent_tool_call"}
	pools := map[string]any{}
	for i := range 24 {
		pools[fmt.Sprintf("pool%d", i)] = map[string]any{
			"region": "eu-1", "kind": "internal", "classes": classes, "max_label": someLevels[i%4], "models": []string{"small", "big"},
		}
	}
	tenants := map[string]any{}
	for i := range n {
		grants := map[string]any{}
		for j, c := range classes {
			names := make([]string, 6)
			for k := range names {
				names[k] = fmt.Sprintf("pool%d", (i+j+5*k)%24)
			}
			grants[c] = map[string]any{"pools": names, "strategy": "probabilistic"}
		}
		tenants[fmt.Sprintf("tenant%d", i)] = map[string]any{
			"label_default": "internal", "models": []string{"big", "small"}, "classes": grants, "residency": "eu-1",
			"facts_deny": []string{"remote_url", "remote_mcp"}, "reauthorize_s": 300,
		}
	}
	return map[string]any{
		"tenants": tenants, "pools": pools, "workloads": map[string]any{}, "exemptions": map[string]any{},
		"models": map[string]any{
			"small": map[string]any{"served": "s", "context_window": 8192},
			"big":   map[string]any{"served": "b", "context_window": 131072},
		},
	}
}

func manyInputs(n int) []Input {
	r := rand.New(rand.NewPCG(5, 6))
	inputs := make([]Input, n)
	for i := range inputs {
		rank := r.IntN(4)
		inputs[i] = Input{
			V: 1,
			Principal: InputPrincipal{
				Tenant: fmt.Sprintf("tenant%d", r.IntN(1000)), Subject: fmt.Sprintf("u%d", r.IntN(1e6)), Kind: "human", Method: "oidc",
				Issuer: "https://idp.example", Groups: []string{"staff", "ml"}, Scopes: []string{"openid"},
			},
			Request: InputRequest{
				Operation: "chat.completions", Model: pick(r, someModels[:2]), Stream: true, Tools: some(r, someTools, 30),
				PromptTokens: r.Int64N(8000), PromptTokensBasis: "native", Region: "eu-1",
			},
			Class: InputClass{Name: pick(r, someClasses[1:5]), Facts: []string{"system_prompt", "tools_declared"}, Table: "2026.11"},
			Label: InputLabel{Level: someLevels[rank], Rank: rank, Categories: []string{}, Sources: []InputSource{{Source: "tenant_default", Level: someLevels[rank]}}},
		}
	}
	return inputs
}

// BenchmarkDecide asks varied questions of 1,000 tenants, which are allowed:
// encode, evaluate, decode, clamp.
func BenchmarkDecide(b *testing.B) {
	s := shippedOver(b, manyTenants(1000))
	inputs := manyInputs(4096)
	b.ReportAllocs()
	defer reportCPU(b, cpuTime(b))
	for i := 0; b.Loop(); i++ {
		if _, _, err := s.Decide(b.Context(), inputs[i%len(inputs)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRefuse asks questions that are denied, with their reasons.
func BenchmarkRefuse(b *testing.B) {
	s := shippedOver(b, manyTenants(1000))
	inputs := manyInputs(4096)
	for i := range inputs {
		inputs[i].Class.Facts = append(inputs[i].Class.Facts, "remote_url")
	}
	b.ReportAllocs()
	defer reportCPU(b, cpuTime(b))
	for i := 0; b.Loop(); i++ {
		if d, _, err := s.Decide(b.Context(), inputs[i%len(inputs)]); err != nil || d.Allow {
			b.Fatal(err)
		}
	}
}

// cpuTime is what the process has used so far: on a machine that others use too
// it says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reportCPU(b *testing.B, since time.Duration) {
	b.ReportMetric(float64(cpuTime(b)-since)/float64(b.N), "cpu-ns/op")
}

// BenchmarkDecideParallel is BenchmarkDecide on every core.
func BenchmarkDecideParallel(b *testing.B) {
	s := shippedOver(b, manyTenants(1000))
	inputs := manyInputs(4096)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, _, err := s.Decide(b.Context(), inputs[i%len(inputs)]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkQuestion is the part of Decide that builds the input.
func BenchmarkQuestion(b *testing.B) {
	inputs := manyInputs(4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := newQuestion(inputs[i%len(inputs)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRegistration looks up callers among 10,000 registrations.
func BenchmarkRegistration(b *testing.B) {
	d := Data{Workloads: map[string]Registration{}}
	for i := range 10_000 {
		id := fmt.Sprintf("spiffe://td/tenant/t%d", i)
		if i%2 == 0 {
			id += "/*"
		}
		d.Workloads[fmt.Sprint(i)] = Registration{SPIFFEID: id}
	}
	r, err := newRegistry(d)
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]string, 4096)
	for i := range ids {
		ids[i] = fmt.Sprintf("spiffe://td/tenant/t%d/ns/app", i*2)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := r.registration(ids[i%len(ids)], "", ""); !ok {
			b.Fatal("no registration")
		}
	}
}

// BenchmarkReload activates the demo bundle, its tests included.
func BenchmarkReload(b *testing.B) {
	e, err := Load(b.Context(), Config{Layers: demoLayers(b)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := e.Reload(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
	}
}
