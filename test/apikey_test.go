package test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// takeKeys makes a store with one key of acme, and lets the gateway take it and
// JWT-SVIDs.
func (w *world) takeKeys(t *testing.T) (store, key string) {
	t.Helper()
	store, pepper := filepath.Join(w.dir, "api-keys"), filepath.Join(w.dir, "pepper")
	if _, code := sallyport(t, "keys", "pepper", "--out", pepper); code != 0 {
		t.Fatalf("keys pepper: exit %d", code)
	}
	key, code := sallyport(t, "keys", "new", "--store", store, "--pepper", pepper, "--tenant", "acme", "--subject", "service")
	if code != 0 {
		t.Fatalf("keys new: exit %d", code)
	}
	config, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	const after = "\npolicy:"
	if strings.Count(string(config), after) != 1 {
		t.Fatalf("no place for more in %s", config)
	}
	more := "\n  jwt_svid: {audience: " + audience + "}\n  api_keys: {file: api-keys, pepper_file: pepper}"
	writeFile(t, w.config, strings.Replace(string(config), after, more+after, 1))
	return store, strings.TrimSpace(key)
}

func TestAnAPIKeyAndAJWTSVIDAreCallers(t *testing.T) {
	w := newWorld(t)
	store, key := w.takeKeys(t)
	_, url := w.serve(t)
	client := w.client(t, nil)
	decision, _ := recordsOf(t, w.logDir, awaitOK(t, client, url, key))
	if c := decision.Caller; c.Method != "api_key" || c.Tenant != "acme" || c.Kind != "workload" {
		t.Errorf("the record's caller is %+v", c)
	}

	jwts, err := workloadapi.New(t.Context(), workloadapi.WithAddr(w.socket(t, "spiffe://"+trustDomain+"/tenant/acme/batch")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { jwts.Close() })
	fetch := func(audience string) string {
		token, err := jwts.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: audience})
		if err != nil {
			t.Fatal(err)
		}
		return token.Marshal()
	}
	decision, _ = recordsOf(t, w.logDir, awaitOK(t, client, url, fetch(audience)))
	if c := decision.Caller; c.Method != "jwt_svid" || c.Registration != "acme-batch" || c.Tenant != "acme" || c.Kind != "workload" {
		t.Errorf("the record's caller is %+v", c)
	}

	batch := w.showing(t, w.socket(t, "spiffe://"+trustDomain+"/tenant/acme/batch"))
	other := w.showing(t, w.socket(t, "spiffe://"+trustDomain+"/gateway"))
	hello := chat("Hello?", false, 4)
	revoke := func() {
		if _, code := sallyport(t, "keys", "revoke", "--store", store, key); code != 0 {
			t.Fatalf("keys revoke: exit %d", code)
		}
	}
	for _, c := range []struct {
		claim  string
		client *http.Client
		token  string
		before func()
		status int
		code   string
	}{
		{"a JWT-SVID for another service is nobody's", client, fetch("billing"), nil, http.StatusUnauthorized, "bad_credential"},
		{"both SVIDs of one workload are one caller", batch, fetch(audience), nil, http.StatusOK, ""},
		{"the SVIDs of two workloads are not", other, fetch(audience), nil, http.StatusUnauthorized, "bad_credential"},
		{"a key and a certificate of one tenant are one caller", batch, key, nil, http.StatusOK, ""},
		{"an access token still is one", client, w.token(t, "alice@acme.example", "acme"), nil, http.StatusOK, ""},
		{"a revoked key is refused at once", client, key, revoke, http.StatusUnauthorized, "bad_credential"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			if c.before != nil {
				c.before()
			}
			a, err := ask(t.Context(), c.client, url, c.token, hello)
			if err != nil || a.status != c.status || a.code != c.code {
				t.Errorf("got %d %q, %v; want %d %q", a.status, a.code, err, c.status, c.code)
			}
		})
	}
}
