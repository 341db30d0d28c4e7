package relay

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/sim"
)

func TestAnEngineThatCountsPromptsIsAskedWithATicketAndWithoutASalt(t *testing.T) {
	w, model, _, _ := simWorld(t, func(*sim.Config, *Config) {})
	in := w.relay.engineInfo()
	for _, rt := range []route{chatRender, completionRender, responsesRender, tokenizeRoute} {
		if !in.isolated(rt) {
			t.Errorf("%s is not announced", rt)
		}
	}
	body := `{"model":"small","messages":[{"role":"user","content":"Where is the key?"}]}`
	p, err := model.Chat(t.Context(), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	for rt, member := range map[route]string{chatRender: "token_ids", tokenizeRoute: "tokens"} {
		tk := w.ticketFor(body)
		tk.Op = string(rt)
		ask := func(path string) (int, map[string]json.RawMessage) {
			resp, err := w.client.Do(w.request(t.Context(), path, w.sign(tk), body))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			var out map[string]json.RawMessage
			if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, out
		}
		if code, out := ask(chatRoute.path()); code != http.StatusForbidden {
			t.Errorf("a ticket to count was good for an inference: %d %s", code, out)
		}
		code, out := ask(rt.path())
		var ids []uint32
		if err := json.Unmarshal(out[member], &ids); err != nil || code != http.StatusOK || !slices.Equal(ids, p.IDs) {
			t.Errorf("%s: %d %v, %v; want %v", rt, code, ids, err, p.IDs)
		}
		if salt := string(out["cache_salt"]); salt != "" && salt != "null" {
			t.Errorf("%s: the salt %s left the relay", rt, salt)
		}
		if code, _ := ask(rt.path()); code != http.StatusForbidden {
			t.Errorf("%s: a ticket counted twice: %d", rt, code)
		}
	}
	if n := len(w.relay.load.work); n != 0 {
		t.Errorf("%d counts are taken for work at the engine", n)
	}
}

func TestAnEngineWithoutTheRoutesIsNotSaidToHaveThem(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) { c.Engine.URL, c.SaltDomain = f.URL, "domain-a" })
	w.ready()
	for _, rt := range w.relay.engineInfo().routes {
		if rt.counts() {
			t.Errorf("%s is announced", rt)
		}
	}
	tk := w.ticketFor(chatBody)
	tk.Op = string(chatRender)
	resp, err := w.client.Do(w.request(t.Context(), chatRender.path(), w.sign(tk), chatBody))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", resp.StatusCode)
	}
	for _, r := range f.forwards() {
		if strings.HasSuffix(r.path, "/render") {
			t.Errorf("the engine got %s", r.path)
		}
	}
}
