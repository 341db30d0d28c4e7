package kvevents

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Captures of real publishers live beside the repository, not in it.
const vectorDir = "../../../shared/vectors/kv-events"

type vector struct {
	FramesHex []string      `json:"frames_hex"`
	Topic     string        `json:"topic"`
	Seq       uint64        `json:"seq"`
	Events    []vectorEvent `json:"events"`
	Replay    [][]string    `json:"dealer_received"`
}

type vectorEvent struct {
	Type    string            `json:"type"`
	Hashes  []json.RawMessage `json:"block_hashes"`
	Parent  json.RawMessage   `json:"parent_block_hash"`
	Tokens  []uint32          `json:"token_ids"`
	Size    int               `json:"block_size"`
	LoRAID  *int64            `json:"lora_id"`
	Medium  string            `json:"medium"`
	Adapter string            `json:"lora_name"`
	Group   *int              `json:"group_idx"`
	Kind    string            `json:"kv_cache_spec_kind"`
	Window  int               `json:"kv_cache_spec_sliding_window"`
}

func readVectors(t *testing.T, pattern string) map[string]vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(vectorDir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skipf("no captures of real engines at %s", filepath.Join(vectorDir, pattern))
	}
	vs := make(map[string]vector)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var v vector
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		name, err := filepath.Rel(vectorDir, f)
		if err != nil {
			t.Fatal(err)
		}
		vs[strings.TrimSuffix(name, ".json")] = v
	}
	return vs
}

func unhex(t *testing.T, frames []string) [][]byte {
	t.Helper()
	var parts [][]byte
	for _, f := range frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, b)
	}
	return parts
}

func vectorHash(t *testing.T, raw json.RawMessage) Hash {
	t.Helper()
	if len(raw) == 0 || string(raw) == "null" {
		return Hash{}
	}
	if u, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return IntHash(u)
	}
	if i, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return IntHash(uint64(i))
	}
	var b struct {
		Hex string `json:"bytes_hex"`
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		t.Fatalf("hash %s: %v", raw, err)
	}
	digest, err := hex.DecodeString(b.Hex)
	if err != nil {
		t.Fatal(err)
	}
	h, err := BytesHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (v vectorEvent) event(t *testing.T) Event {
	t.Helper()
	ev := newEvent()
	ev.Type = typeOf([]byte(v.Type))
	for _, h := range v.Hashes {
		ev.Hashes = append(ev.Hashes, vectorHash(t, h))
	}
	ev.Parent, ev.Tokens, ev.BlockSize = vectorHash(t, v.Parent), v.Tokens, v.Size
	ev.Medium, ev.Adapter, ev.SpecKind, ev.SlidingWindow = v.Medium, v.Adapter, v.Kind, v.Window
	if v.LoRAID != nil {
		ev.LoRAID = *v.LoRAID
	}
	if v.Group != nil {
		ev.Group = *v.Group
	}
	return ev
}

func TestDecodesWhatRealEnginesPublish(t *testing.T) {
	for name, v := range readVectors(t, "*/[0-9]*.json") {
		t.Run(name, func(t *testing.T) {
			m, err := ParseMessage(unhex(t, v.FramesHex))
			if err != nil {
				t.Fatal(err)
			}
			if m.Topic != v.Topic || m.Seq != v.Seq {
				t.Errorf("message %q %d, want %q %d", m.Topic, m.Seq, v.Topic, v.Seq)
			}
			var d Decoder
			b, err := d.Decode(m.Payload)
			if err != nil {
				t.Fatal(err)
			}
			var want []Event
			for _, e := range v.Events {
				want = append(want, e.event(t))
			}
			wantRank := 0
			if strings.Contains(name, "b712be98c") {
				wantRank = b.Rank // the first form had none
			}
			if b.Rank != wantRank || b.TS < 1.7e9 || len(b.Skipped) != 0 {
				t.Errorf("rank %d ts %f skipped %v", b.Rank, b.TS, b.Skipped)
			}
			got := append([]Event(nil), b.Events...)
			for i := range got { // extra keys are compared by name, below
				got[i].Extra, got[i].Salt, got[i].SaltHidden = nil, "", false
			}
			diffEvents(t, got, want)
		})
	}
}

func TestTellsRealExtraKeysApart(t *testing.T) {
	for _, dir := range []string{"vllm-bcb9c133b", "vllm-innermap"} {
		for file, want := range map[string]struct {
			salt string
			keys [][]ExtraKey
		}{
			"03_stored_lora": {"", [][]ExtraKey{
				{{AdapterKey, "lora-sql", 0}}, {{AdapterKey, "lora-sql", 0}}, {{AdapterKey, "lora-sql", 0}}, {{AdapterKey, "lora-sql", 0}},
			}},
			"04_stored_cache_salt":    {"tenant-a-salt", [][]ExtraKey{{{SaltKey, "tenant-a-salt", 0}}, nil, nil, nil}},
			"12_stored_mm_extra_keys": {"", [][]ExtraKey{{{MediaKey, "mmhash-deadbeef", NoOffset}, {MediaKey, "img-1", -3}}, nil}},
		} {
			t.Run(dir+"/"+file, func(t *testing.T) {
				for _, v := range readVectors(t, dir+"/"+file+".json") {
					var d Decoder
					b, err := d.Decode(unhex(t, v.FramesHex)[2])
					if err != nil {
						t.Fatal(err)
					}
					ev := b.Events[0]
					if ev.Salt != want.salt || ev.SaltHidden {
						t.Errorf("salt %q hidden %v, want %q", ev.Salt, ev.SaltHidden, want.salt)
					}
					if !equal(ev.Extra, want.keys) {
						t.Errorf("extra keys %v, want %v", ev.Extra, want.keys)
					}
				}
			})
		}
	}
}

// Real bytes, decoded and encoded in the same form, are the same bytes.
func TestEncodesAsRealEnginesDo(t *testing.T) {
	for dir, form := range map[string]Form{"vllm-bcb9c133b": FormArray, "vllm-innermap": FormMap} {
		for name, v := range readVectors(t, dir+"/[0-9]*.json") {
			if strings.Contains(name, "11_stored_group") {
				continue // has [nil, nil] for extra keys where we keep nil
			}
			t.Run(name, func(t *testing.T) {
				payload := unhex(t, v.FramesHex)[2]
				var d Decoder
				b, err := d.Decode(payload)
				if err != nil {
					t.Fatal(err)
				}
				if got := AppendBatch(nil, b, form); string(got) != string(payload) {
					t.Errorf("encoded\n%x, engine sent\n%x", got, payload)
				}
			})
		}
	}
}

func TestReadsRealReplays(t *testing.T) {
	for name, v := range readVectors(t, "*/replay.json") {
		t.Run(name, func(t *testing.T) {
			if len(v.Replay) == 0 {
				t.Skip("capture holds no replay")
			}
			for i, frames := range v.Replay {
				m, end, err := parseReplay(unhex(t, frames))
				if err != nil {
					t.Fatal(err)
				}
				if end != (i == len(v.Replay)-1) {
					t.Errorf("answer %d: end is %v", i, end)
				}
				if !end && len(m.Payload) == 0 {
					t.Errorf("answer %d: no payload", i)
				}
			}
		})
	}
}
