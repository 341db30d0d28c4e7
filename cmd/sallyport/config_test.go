package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
)

// examples returns the YAML blocks of docs/configuration.md.
func examples(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for rest := string(b); ; {
		_, after, ok := strings.Cut(rest, "```yaml\n")
		if !ok {
			return blocks
		}
		block, remainder, ok := strings.Cut(after, "```")
		if !ok {
			t.Fatal("a block without an end")
		}
		blocks, rest = append(blocks, block), remainder
	}
}

func TestDocumentedConfigurationHoldsEveryFieldAndNoOther(t *testing.T) {
	blocks := examples(t)
	if len(blocks) != 2 {
		t.Fatalf("%d examples, want a gateway and a relay", len(blocks))
	}
	for i, into := range []any{new(gatewayConfig), new(relayConfig)} {
		f, err := strictyaml.Decode("example", strings.NewReader(blocks[i]), into)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Err(); err != nil {
			t.Error(err)
		}
		for _, path := range fieldPaths(reflect.TypeOf(into).Elem(), "") {
			if !slices.ContainsFunc(alternatives(path), f.Has) {
				t.Errorf("%T: %s is not documented", into, path)
			}
		}
	}
}

// alternatives are the places where the example may have a field: a sink is of
// one kind only, so it takes several sinks to show all.
func alternatives(path string) []string {
	var all []string
	for i := range 10 {
		all = append(all, strings.Replace(path, "audit.export[0]", fmt.Sprintf("audit.export[%d]", i), 1))
	}
	return all
}

// fieldPaths lists every field, the first element standing for a list.
func fieldPaths(t reflect.Type, at string) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return fieldPaths(t.Elem(), at)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return fieldPaths(t.Elem(), at+"[0]")
		}
	case reflect.Struct:
		var paths []string
		for i := range t.NumField() {
			tag := t.Field(i).Tag.Get("yaml")
			if tag == "" {
				continue
			}
			path := strings.TrimPrefix(at+"."+tag, ".")
			paths = append(append(paths, path), fieldPaths(t.Field(i).Type, path)...)
		}
		return paths
	}
	return nil
}

func TestEveryProblemIsNamedWithItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	text := `environment: prod
listen: {address: "8443", client_svid: false}
region: eu-1
identity: {workload_socket: /run/agent.sock}
policy: {bundle: nowhere}
pools:
  - {name: a, members: ["spiffe://example.org/a/*"], replicas: [{address: "h:1", id: "spiffe://example.org/b/r0"}]}
  - {name: a, members: ["http://x"]}
audit: {dir: a, key_file: none, export: [{name: a, to: {syslog: {address: h}}}], mode: fast}
limits: {requests_per_second: -1, burst: 3, tenants: [{tenant: acme, burst: 2}, {tenant: acme, requests_per_second: 1}], unauthenticated: {requests_per_second: 1, burst: -1}}
models: [{name: m, dir: ., zone: Nowhere/At_All}]
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := loadGateway(path)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		":1:14: environment: want one of demo, production",
		":2:19: listen.address: want host:port",
		":2:9: listen.cert_file: required",
		":4:29: identity.workload_socket: want unix:///",
		"identity.issuers: no issuer, no client_svid, no jwt_svid and no api_keys",
		":5:18: policy.bundle: stat",
		"pools[0].replicas[0].id: spiffe://example.org/b/r0 is not one of the pool's members",
		"pools[1].name: pool a stands twice",
		"pools[1].members[0]:",
		"audit.key_file: stat",
		"audit.export[0].to.syslog.address: want host:port",
		"limits.requests_per_second: want 0, for no bound, or between",
		"limits.tenants[0].burst: without requests_per_second",
		"limits.tenants[1].tenant: acme stands twice",
		"limits.unauthenticated.burst: want between",
		":11:34: models[0].zone: unknown time zone Nowhere/At_All",
		"audit.mode: want one of strict, strict-2, bounded",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

func TestAPIKeysNeedBothTheirFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	for text, want := range map[string]string{
		"identity: {api_keys: {file: none}}":        "identity.api_keys.pepper_file: required",
		"identity: {api_keys: {pepper_file: none}}": "identity.api_keys.file: required",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadGateway(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: no %q in:\n%v", text, want, err)
		}
	}
}

// Two readers of a file with a repeated key could take different values.
func TestB043RepeatedKeysAreRefusedWithTheirPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("region: eu-1\npolicy: {bundle: a, bundle: b}\nregion: us-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := loadGateway(path)
	for _, want := range []string{":2:21: policy.bundle: given twice", ":3:1: region: given twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}
