package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/test/await"
)

// Captures of real publishers live beside the repository, not in it.
const vectorDir = "../../../shared/vectors/kv-events"

type capture struct {
	Frames []string `json:"frames_hex"`
	Events []struct {
		Type    string            `json:"type"`
		Hashes  []json.RawMessage `json:"block_hashes"`
		Parent  json.RawMessage   `json:"parent_block_hash"`
		Tokens  []uint32          `json:"token_ids"`
		Size    int               `json:"block_size"`
		Medium  *string           `json:"medium"`
		Adapter *string           `json:"lora_name"`
		Group   *int              `json:"group_idx"`
	} `json:"events"`
}

// hashText is a hash of a capture as decode prints it.
func hashText(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	if u, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return strconv.FormatUint(u, 10)
	}
	if i, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return strconv.FormatUint(uint64(i), 10)
	}
	var b struct {
		Hex string `json:"bytes_hex"`
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		t.Fatalf("hash %s: %v", raw, err)
	}
	return b.Hex
}

func TestDecodePrintsWhatRealEnginesPublished(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(vectorDir, "*/[0-9]*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no captures of real engines at", vectorDir)
	}
	for _, file := range files {
		dialect := filepath.Base(filepath.Dir(file))
		t.Run(dialect+"/"+filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c capture
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if bad, err := decodeLines(strings.NewReader(c.Frames[2]+"\n"), &out); bad || err != nil {
				t.Fatalf("%v %v: %s", bad, err, out.String())
			}
			var got batchJSON
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if got.TS < 1.7e9 || len(got.Events) != len(c.Events) || len(got.Skipped) != 0 {
				t.Fatalf("got %s", out.String())
			}
			names := map[string]string{"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
			for i, want := range c.Events {
				e := got.Events[i]
				if e.Type != names[want.Type] || e.Tokens != len(want.Tokens) || e.BlockSize != want.Size || len(e.Hashes) != len(want.Hashes) {
					t.Fatalf("event %d: %+v", i, e)
				}
				for k, h := range want.Hashes {
					if e.Hashes[k] != hashText(t, h) {
						t.Errorf("event %d: hash %s, want %s", i, e.Hashes[k], h)
					}
				}
				if root := len(want.Parent) == 0 || string(want.Parent) == "null"; root != (e.Parent == nil) || !root && *e.Parent != hashText(t, want.Parent) {
					t.Errorf("event %d: parent %v, want %s", i, e.Parent, want.Parent)
				}
				if !same(e.Medium, want.Medium) || !same(e.Adapter, want.Adapter) || !same(e.Group, want.Group) {
					t.Errorf("event %d: %+v", i, e)
				}
			}
			// The oldest form, and SGLang's of that time, have no place for a salt.
			salted := strings.Contains(file, "cache_salt") && (dialect == "vllm-bcb9c133b" || dialect == "vllm-innermap")
			if salted != strings.Contains(out.String(), `"salted":true`) {
				t.Errorf("salted is not %v: %s", salted, out.String())
			}
			if strings.Contains(out.String(), "tenant-a-salt") {
				t.Error("a salt is printed")
			}
		})
	}
}

func same[T comparable](a, b *T) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func batchHex(events ...kvevents.Event) string {
	return hex.EncodeToString(kvevents.AppendBatch(nil, &kvevents.Batch{TS: 1.5, Rank: 1, Events: events}, kvevents.FormMap))
}

func TestDecodeAnswersEachLineWithOne(t *testing.T) {
	removed := kvevents.Event{Type: kvevents.Removed, Hashes: []kvevents.Hash{kvevents.IntHash(1<<64 - 1)}, Medium: "CPU", Group: 2, LoRAID: kvevents.None}
	stored := kvevents.Event{
		Type: kvevents.Stored, Hashes: []kvevents.Hash{kvevents.IntHash(7)}, Parent: kvevents.IntHash(6), Tokens: []uint32{987654, 987655},
		BlockSize: 2, Salt: "secret-salt", Adapter: "lora", LoRAID: kvevents.None, Group: kvevents.None,
		Extra: [][]kvevents.ExtraKey{{{Kind: kvevents.SaltKey, ID: "secret-salt"}}},
	}
	stored.Parent = kvevents.Hash{}
	for _, c := range []struct{ name, line, want string }{
		{"a removal", batchHex(removed), `{"ts":1.5,"rank":1,"events":[{"type":"removed","hashes":["18446744073709551615"],"parent":null,"tokens":0,"block_size":0,"medium":"CPU","adapter":null,"salted":false,"group":2}],"skipped":{}}`},
		{"a store", batchHex(stored), `{"ts":1.5,"rank":1,"events":[{"type":"stored","hashes":["7"],"parent":null,"tokens":2,"block_size":2,"medium":null,"adapter":"lora","salted":true,"group":null}],"skipped":{}}`},
		{"a clear", batchHex(kvevents.Event{Type: kvevents.Cleared}), `{"ts":1.5,"rank":1,"events":[{"type":"cleared","hashes":[],"parent":null,"tokens":0,"block_size":0,"medium":null,"adapter":null,"salted":false,"group":null}],"skipped":{}}`},
		{"what is not hex", "zz", `{"error":"line is not hex"}`},
		{"an empty line", "", `{"error":"decode event batch at byte 0: msgpack: truncated"}`},
		{"a time that is no number", "92cb7ff8000000000001" + "91" + "91b0" + hex.EncodeToString([]byte("AllBlocksCleared")), `{"error":"decode event batch: its time is not a number"}`},
		{"an event of no known type beside one that is", "92cb3ff800000000000092" + "91a3" + hex.EncodeToString([]byte("Odd")) + "91b0" + hex.EncodeToString([]byte("AllBlocksCleared")), `{"ts":1.5,"rank":null,"events":[{"type":"cleared","hashes":[],"parent":null,"tokens":0,"block_size":0,"medium":null,"adapter":null,"salted":false,"group":null}],"skipped":{"unknown_type":1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			bad, err := decodeLines(strings.NewReader(c.line+"\n"), &out)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSuffix(out.String(), "\n"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if bad != strings.HasPrefix(c.want, `{"error"`) {
				t.Errorf("bad is %v", bad)
			}
		})
	}
}

func TestDecodeTakesALineThatIsTooLongForOne(t *testing.T) {
	in := strings.Repeat("0", 2*kvevents.MaxFrame+4) + "\n" + batchHex(kvevents.Event{Type: kvevents.Cleared}) // no newline at its end
	var out bytes.Buffer
	if bad, err := decodeLines(strings.NewReader(in), &out); !bad || err != nil {
		t.Fatal(bad, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "longer than") || !strings.Contains(lines[1], "cleared") {
		t.Errorf("got %s", out.String())
	}
}

// lockedBuffer is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestTailFillsHolesAndSaysWhatIsLost(t *testing.T) {
	dir := t.TempDir()
	replay, err := kvevents.NewReplayServer(kvevents.ReplayConfig{Listen: "ipc://" + dir + "/r", Buffer: 4, TopicFrame: true})
	if err != nil {
		t.Fatal(err)
	}
	defer replay.Close()
	pub, err := kvevents.NewPublisher(kvevents.PublisherConfig{Listen: "ipc://" + dir + "/e"})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	message := func(seq uint64) kvevents.Message {
		b := kvevents.Batch{TS: 1.5, Rank: 0, Events: []kvevents.Event{{Type: kvevents.Removed, Hashes: []kvevents.Hash{kvevents.IntHash(100 + seq)}, Medium: "GPU\x1b[2J", Group: kvevents.None}}}
		return kvevents.Message{Topic: "kv", Seq: seq, Payload: kvevents.AppendBatch(nil, &b, kvevents.FormMap)}
	}
	for seq := range uint64(6) { // the buffer still has 2 to 5
		replay.Append(message(seq))
	}
	var out, notes lockedBuffer
	tl := tail{endpoint: "ipc://" + dir + "/e", replay: "ipc://" + dir + "/r", out: &out, notes: &notes, wait: time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- tl.run(ctx) }()
	await.That(t, "the replay", func() bool { return strings.Contains(out.String(), "#5") })
	replay.Append(message(6)) // lost on the way
	replay.Append(message(7))
	publish := func(seq uint64) {
		if err := pub.Publish("kv", seq, message(seq).Payload); err != nil {
			t.Error(err)
		}
	}
	publish(7)
	await.That(t, "what was lost on the way", func() bool { return strings.Contains(out.String(), "#7") })
	publish(7) // a batch that the replay had
	publish(8)
	await.That(t, "a batch after the replay", func() bool { return strings.Contains(out.String(), "#8") })
	publish(0) // another process
	await.That(t, "a batch of another process", func() bool { return strings.Contains(out.String(), "#0") })
	cancel()
	if err := <-done; err != nil {
		t.Error("interrupted:", err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Fields(line)[1])
	}
	if want := "#2 #3 #4 #5 #6 #7 #8 #0"; strings.Join(got, " ") != want {
		t.Errorf("printed %s, want %s", got, want)
	}
	if want := `00:00:01.500 #8 rank 0 removed 1 blocks, from 108, in GPU\x1b[2J`; !strings.Contains(out.String(), want+"\n") {
		t.Errorf("printed %s", out.String())
	}
	for _, want := range []string{"2 batches missing before 2", "sequence began anew at 0"} {
		if !strings.Contains(notes.String(), want) {
			t.Errorf("notes do not say %q: %s", want, notes.String())
		}
	}
}
