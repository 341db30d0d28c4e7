package relay

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// Captures of real publishers live beside the repository, not in it.
const vectorDir = "../../../shared/vectors/kv-events"

// An engine that has no place for a salt in its events cannot be believed about
// any block: it might be another tenant's. Whether one that has a place is
// believed, the event with our salt shows.
func TestADialectThatHidesTheSaltEarnsNoCredit(t *testing.T) {
	dialects, err := filepath.Glob(filepath.Join(vectorDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(dialects) == 0 {
		t.Skip("no captures of real engines at", vectorDir)
	}
	tells := map[string]bool{"vllm-bcb9c133b": true, "vllm-innermap": true}
	for _, dir := range dialects {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			everybody := func(salt string) (model, domain string, ok bool) { return "m", "d", true } // also for no salt at all
			m := newMirror(mirrorConfig{resolve: everybody})
			files, err := filepath.Glob(filepath.Join(dir, "[0-9]*.json"))
			if err != nil || len(files) == 0 {
				t.Fatal("no captures", err)
			}
			sub, credited := newBeliever(t), 0
			for _, file := range files {
				b := captured(t, file)
				m.apply(b)
				sub.take(m.flush())
				credited = max(credited, len(sub.credits()))
			}
			if tells[filepath.Base(dir)] != (credited > 0) || m.saltHidden == (credited > 0) {
				t.Errorf("%d blocks credited, salt hidden %v", credited, m.saltHidden)
			}
		})
	}
}

// captured is the batch that an engine published, from a file of its frames.
func captured(t *testing.T, file string) *kvevents.Batch {
	t.Helper()
	var c struct {
		Frames []string `json:"frames_hex"`
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	payload, err := hex.DecodeString(c.Frames[2])
	if err != nil {
		t.Fatal(err)
	}
	var d kvevents.Decoder
	b, err := d.Decode(payload)
	if err != nil {
		t.Fatal(file, err)
	}
	return b
}
