package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// A leaf of the log has at most 64 KiB. A tenant whose tools alone fill more
// than that cannot be served, but what is refused is recorded all the same.
func TestWhatIsTooLargeToBeWrittenDownIsRefusedAndWrittenDown(t *testing.T) {
	layer := editable(t)
	tools := make([]string, 8000)
	for i := range tools {
		tools[i] = fmt.Sprintf("tool-%d", i)
	}
	layer.set("acme", "tools_allow", tools)
	engine, err := loadPolicy(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) { c.Policy = engine })
	mark := s.newMark()
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusBadRequest, "invalid_request")
	s.unreached(mark)
	d, o := s.lone(a)
	if d.Status != audit.StatusDenied || d.Reason != "record_too_large" || d.HTTP != http.StatusBadRequest || o != nil {
		t.Errorf("decision %s %s %d, outcome %v", d.Status, d.Reason, d.HTTP, o)
	}
	var left struct {
		Omitted bool
		SHA256  string
		Bytes   int
	}
	if err := json.Unmarshal(d.Decision, &left); err != nil || !left.Omitted || len(left.SHA256) != 2*sha256.Size || left.Bytes < 64<<10 {
		t.Errorf("decision %s, %v", d.Decision, err)
	}
}

func TestOmittedTellsWhatItWas(t *testing.T) {
	sum := sha256.Sum256([]byte(`{"a":1}`))
	want := `{"omitted":true,"sha256":"` + hex.EncodeToString(sum[:]) + `","bytes":7}`
	if got := omitted(json.RawMessage(`{"a":1}`)); string(got) != want || !json.Valid(got) {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, raw := range []json.RawMessage{nil, json.RawMessage("null")} {
		if got := omitted(raw); string(got) != string(raw) {
			t.Errorf("%q becomes %q", raw, got)
		}
	}
}
