package kvevents

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// FuzzDecode: whatever a publisher sends, a decoder stays within its limits,
// keeps its promises about what it returns, and gives again what it gave when
// that is encoded.
func FuzzDecode(f *testing.F) {
	for _, c := range goldenBatches(f) {
		f.Add(c.payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d, again Decoder
		b, err := d.Decode(payload)
		if err != nil {
			return
		}
		hashes, tokens := 0, 0
		for i := range b.Events {
			e := &b.Events[i]
			hashes, tokens = hashes+len(e.Hashes), tokens+len(e.Tokens)
			if e.Type == Unknown || len(e.Hashes) > MaxBlocks || len(e.Tokens) > MaxTokens {
				t.Fatalf("event %+v", e)
			}
			if e.Extra != nil && len(e.Extra) != len(e.Hashes) {
				t.Fatalf("%d entries of extra keys for %d hashes", len(e.Extra), len(e.Hashes))
			}
		}
		if hashes > len(payload) || tokens > len(payload) {
			t.Fatalf("%d hashes and %d tokens from %d bytes", hashes, tokens, len(payload))
		}
		if b.TS == 0 && len(b.Skipped) > 0 && len(b.Events) == 0 || b.TS != b.TS {
			return
		}
		e, err := again.Decode(AppendBatch(nil, b, FormMap))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Events {
			want := b.Events[i]
			got := e.Events[i]
			// SGLang's salt outside extra keys has no place in vLLM's form.
			got.Salt, want.Salt, want.SaltHidden = "", "", false
			if want.Extra == nil {
				got.Extra = nil
			}
			if !equalEvent(got, want) {
				t.Fatalf("event %d: encoded and decoded\n%+v\nwas\n%+v", i, got, want)
			}
		}
	})
}

// drawEvent makes any event that an engine of vLLM's dialect could publish.
func drawEvent(t *rapid.T, form Form) Event {
	name := rapid.StringMatching(`[a-z0-9@/-]{0,40}`)
	hash := rapid.OneOf(
		rapid.Map(rapid.Uint64(), IntHash),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, MaxHash), func(b []byte) Hash {
			h, err := BytesHash(b)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}),
	)
	ev := newEvent()
	ev.Type = rapid.SampledFrom([]EventType{Stored, Removed, Cleared}).Draw(t, "type")
	if ev.Type == Cleared {
		return ev
	}
	ev.Hashes = rapid.SliceOfN(hash, 0, 20).Draw(t, "hashes")
	ev.Medium = name.Draw(t, "medium")
	ev.Group = rapid.IntRange(None, 9).Draw(t, "group")
	if form == FormMap {
		ev.Locality = name.Draw(t, "locality")
	}
	if ev.Type == Removed {
		return ev
	}
	if rapid.Bool().Draw(t, "child") {
		ev.Parent = hash.Draw(t, "parent")
	}
	ev.Tokens = rapid.SliceOfN(rapid.Uint32(), 0, 40).Draw(t, "tokens")
	ev.BlockSize = rapid.IntRange(1, MaxTokens).Draw(t, "size")
	ev.LoRAID = rapid.Int64Min(None).Draw(t, "lora")
	ev.Adapter = name.Draw(t, "adapter")
	ev.SpecKind = name.Draw(t, "kind")
	ev.SlidingWindow = rapid.IntRange(0, 1<<20).Draw(t, "window")
	drawExtra(t, &ev)
	return ev
}

func drawExtra(t *rapid.T, ev *Event) {
	if len(ev.Hashes) == 0 {
		return
	}
	if ev.Parent.IsZero() && rapid.Bool().Draw(t, "salted") {
		ev.Salt = rapid.StringMatching(`[A-Za-z0-9_-]{1,300}`).Draw(t, "salt")
	}
	some := ev.Salt != "" || ev.Adapter != ""
	extra := make([][]ExtraKey, len(ev.Hashes))
	for i := range extra {
		if ev.Adapter != "" {
			extra[i] = append(extra[i], ExtraKey{AdapterKey, ev.Adapter, 0})
		}
		for range rapid.IntRange(0, 2).Draw(t, "media") {
			some = true
			id := rapid.StringMatching(`[a-f0-9]{1,64}`).Draw(t, "id")
			offset := rapid.Int64Min(NoOffset+1).Draw(t, "offset")
			extra[i] = append(extra[i], ExtraKey{MediaKey, id, offset})
		}
		if i == 0 && ev.Salt != "" {
			extra[i] = append(extra[i], ExtraKey{SaltKey, ev.Salt, 0})
		}
		if rapid.Bool().Draw(t, "embeds") {
			some = true
			digest := rapid.SliceOfN(rapid.Byte(), MaxHash, MaxHash).Draw(t, "digest")
			extra[i] = append(extra[i], ExtraKey{EmbedsKey, string(digest), 0})
		}
		if rapid.Bool().Draw(t, "unknown") {
			some = true
			extra[i] = append(extra[i], ExtraKey{})
		}
	}
	if some {
		ev.Extra = extra
	}
}

func TestDecodeInvertsEncode(t *testing.T) {
	var d Decoder
	rapid.Check(t, func(t *rapid.T) {
		form := rapid.SampledFrom([]Form{FormMap, FormArray}).Draw(t, "form")
		want := Batch{
			TS:   rapid.Float64Min(0.5).Draw(t, "ts"),
			Rank: rapid.IntRange(None, 65535).Draw(t, "rank"),
		}
		for range rapid.IntRange(0, 5).Draw(t, "events") {
			want.Events = append(want.Events, drawEvent(t, form))
		}
		got, err := d.Decode(AppendBatch(nil, &want, form))
		if err != nil {
			t.Fatal(err)
		}
		if got.TS != want.TS || got.Rank != want.Rank || len(got.Skipped) != 0 || len(got.Events) != len(want.Events) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		for i := range want.Events {
			if !equalEvent(got.Events[i], want.Events[i]) {
				t.Fatalf("event %d:\n got %+v\nwant %+v", i, got.Events[i], want.Events[i])
			}
		}
	})
}

func TestAStoreWithoutBlocksHidesNoSalt(t *testing.T) {
	want := newEvent()
	want.Type, want.Hashes, want.Tokens, want.BlockSize, want.Group, want.LoRAID = Stored, []Hash{}, []uint32{}, 1, 0, 0
	for _, form := range []Form{FormMap, FormArray} {
		var d Decoder
		b, err := d.Decode(AppendBatch(nil, &Batch{TS: 1, Rank: 0, Events: []Event{want}}, form))
		if err != nil {
			t.Fatal(err)
		}
		if !equalEvent(b.Events[0], want) {
			t.Errorf("got %+v, want %+v", b.Events[0], want)
		}
	}
}

func TestEncoderDerivesExtraKeys(t *testing.T) {
	ev := newEvent()
	ev.Type, ev.BlockSize, ev.Tokens = Stored, 1, []uint32{1, 2}
	ev.Hashes = []Hash{IntHash(1), IntHash(2)}
	ev.Adapter, ev.Salt = "sql", "secret"
	want := fmt.Sprint([][]ExtraKey{{{AdapterKey, "sql", 0}, {SaltKey, "secret", 0}}, {{AdapterKey, "sql", 0}}})
	for _, form := range []Form{FormMap, FormArray} {
		var d Decoder
		b, err := d.Decode(AppendBatch(nil, &Batch{TS: 1, Rank: None, Events: []Event{ev}}, form))
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Events[0]; fmt.Sprint(got.Extra) != want || got.Salt != "secret" {
			t.Errorf("extra keys %v and salt %q, want %s", got.Extra, got.Salt, want)
		}
	}
}

// FuzzFrames: any bytes are frames within the limits or an error, and frames
// that were read are written as they were or shorter.
func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, flagMore, []byte("topic")), 0, make([]byte, 300)))
	f.Add(appendCommand(nil, "PING", []byte{0, 10}))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add(rawReady(1, "PUB"))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		r := bufio.NewReader(bytes.NewReader(b))
		var out []byte
		for {
			fr, err := readFrame(r, limit)
			if err != nil {
				if errors.Is(err, io.EOF) && len(out) > len(b) {
					t.Fatalf("%d bytes of frames from %d", len(out), len(b))
				}
				break
			}
			if len(fr.body) > limit || fr.command() && (fr.more() || len(fr.body) > maxCommand) {
				t.Fatalf("frame with flags %x and %d bytes", fr.flags, len(fr.body))
			}
			out = appendFrame(out, fr.flags&^flagLong, fr.body)
		}
		r = bufio.NewReader(bytes.NewReader(out))
		for n := 0; n < len(out); {
			fr, err := readFrame(r, limit)
			if err != nil {
				t.Fatalf("frames that were written are not read: %v", err)
			}
			n += len(appendFrame(nil, fr.flags&^flagLong, fr.body))
		}
	})
}

// FuzzHandshake: no first words of a peer do harm.
func FuzzHandshake(f *testing.F) {
	f.Add(rawReady(0, "PUB"))
	f.Add(rawReady(1, "XPUB"))
	f.Add(append(greeting(), appendCommand(nil, "ERROR", []byte("\x02no"))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := handshake(bufio.NewReader(bytes.NewReader(b)), io.Discard, SUB)
		if err == nil && p.kind != "PUB" && p.kind != "XPUB" {
			t.Fatalf("a SUB accepted a %q", p.kind)
		}
	})
}
