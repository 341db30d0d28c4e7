package fleet

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAddressesAreReadFromAFile(t *testing.T) {
	like := Target{Pool: "general", Region: "eu-1", Members: []string{"spiffe://example.org/pool/general/*"}}
	for _, c := range []struct {
		claim, text string
		want        []string // address and id, in turn; nil: an error
	}{
		{"an address alone, to be pinned", "10.0.0.1:9101\n", []string{"10.0.0.1:9101", ""}},
		{"an address with its identity", "h:1 spiffe://example.org/pool/general/r0\n", []string{"h:1", "spiffe://example.org/pool/general/r0"}},
		{"comments and empty lines do not count", "# two\n\nh:1\n  [::1]:2 \n", []string{"h:1", "", "[::1]:2", ""}},
		{"an empty file is no replica", "", []string{}},
		{"an address without a port", "h\n", nil},
		{"a third word", "h:1 spiffe://a/b x\n", nil},
	} {
		t.Run(c.claim, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "pool")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := FromFile(path)(t.Context(), like)
			if (err != nil) != (c.want == nil) {
				t.Fatal(err)
			}
			if len(got)*2 != len(c.want) {
				t.Fatalf("%d targets, want %d", len(got), len(c.want)/2)
			}
			for i, g := range got {
				if g.Address != c.want[2*i] || g.ID != c.want[2*i+1] || g.Pool != like.Pool || g.Region != like.Region {
					t.Errorf("target %d: %+v", i, g)
				}
			}
		})
	}
	if _, err := FromFile(filepath.Join(t.TempDir(), "absent"))(t.Context(), like); err == nil {
		t.Error("an absent file is no error")
	}
}

func TestAddressesAreLookedUpByName(t *testing.T) {
	got, err := FromDNS("127.0.0.1:9101")(t.Context(), Target{Pool: "p", ID: "spiffe://a/b"})
	if err != nil || len(got) != 1 || got[0].Address != "127.0.0.1:9101" || got[0].ID != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, bad := range []string{"no-port", "does-not-exist.invalid:1"} {
		if _, err := FromDNS(bad)(t.Context(), Target{}); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
