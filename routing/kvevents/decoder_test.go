package kvevents

import (
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// goldenBatch is one case of testdata/batches.txt.
type goldenBatch struct {
	name    string
	payload []byte
	want    []string
}

var goldenToken = regexp.MustCompile(`"[^"]*"|\S+`)

func goldenBatches(t testing.TB) []goldenBatch {
	t.Helper()
	text, err := os.ReadFile("testdata/batches.txt")
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenBatch
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "-- "); ok {
			cases = append(cases, goldenBatch{name: name})
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		c := &cases[len(cases)-1]
		if want, ok := strings.CutPrefix(line, "=> "); ok {
			c.want = append(c.want, want)
			continue
		}
		for _, tok := range goldenToken.FindAllString(strings.ReplaceAll(line, "TS", "cb41d954fc40100000"), -1) {
			if s, ok := strings.CutPrefix(tok, `"`); ok {
				s = strings.TrimSuffix(s, `"`)
				c.payload = append(append(c.payload, 0xa0|byte(len(s))), s...)
				continue
			}
			b, err := hex.DecodeString(tok)
			if err != nil {
				t.Fatalf("%s: %q: %v", c.name, tok, err)
			}
			c.payload = append(c.payload, b...)
		}
	}
	return cases
}

func TestDecodesEveryForm(t *testing.T) {
	var d Decoder // one for all: nothing may leak from batch to batch
	for _, c := range goldenBatches(t) {
		t.Run(c.name, func(t *testing.T) {
			b, err := d.Decode(c.payload)
			got := []string{"error"}
			if err == nil {
				got = describe(b)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v\n got %s\nwant %s", err, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
			}
		})
	}
}

func describe(b *Batch) []string {
	lines := []string{fmt.Sprintf("rank %d", b.Rank)}
	for i := range b.Events {
		lines = append(lines, describeEvent(&b.Events[i]))
	}
	for _, s := range b.Skipped {
		lines = append(lines, fmt.Sprintf("skipped %d %s %s", s.N, s.Type, s.Reason))
	}
	return lines
}

func describeEvent(e *Event) string {
	var s strings.Builder
	add := func(ok bool, format string, args ...any) {
		if ok {
			fmt.Fprintf(&s, " "+format, args...)
		}
	}
	s.WriteString(e.Type.String())
	add(e.Hashes != nil, "%s", join(e.Hashes))
	add(e.Type == Stored && e.Parent.IsZero(), "root")
	add(!e.Parent.IsZero(), "after %s", e.Parent)
	add(e.Tokens != nil, "tokens %s by %d", join(e.Tokens), e.BlockSize)
	add(e.Medium != "", "medium %s", e.Medium)
	add(e.Adapter != "", "adapter %s", e.Adapter)
	add(e.LoRAID != None, "lora %d", e.LoRAID)
	add(e.Salt != "", "salt %q", e.Salt)
	add(e.SaltHidden, "salt hidden")
	add(e.Extra != nil, "extra")
	for _, keys := range e.Extra {
		var names []string
		for _, k := range keys {
			names = append(names, describeKey(k))
		}
		add(len(keys) > 0, "%v", names)
	}
	add(e.Group != None, "group %d", e.Group)
	add(e.SpecKind != "", "kind %s", e.SpecKind)
	add(e.SlidingWindow != 0, "window %d", e.SlidingWindow)
	add(e.Locality != "", "locality %s", e.Locality)
	return s.String()
}

func describeKey(k ExtraKey) string {
	switch k.Kind {
	case AdapterKey:
		return "adapter:" + k.ID
	case SaltKey:
		return "salt:" + k.ID
	case EmbedsKey:
		return fmt.Sprintf("embeds:%x", k.ID)
	case MediaKey:
		if k.Offset == NoOffset {
			return "media:" + k.ID
		}
		return fmt.Sprintf("media:%s@%d", k.ID, k.Offset)
	default:
		return "unknown"
	}
}

func join[T any](list []T) string {
	var s []string
	for _, v := range list {
		s = append(s, fmt.Sprint(v))
	}
	return strings.Join(s, ",")
}

// sizedEvents is a batch of n events with so many hashes and tokens.
func sizedEvents(n, hashes, tokens int) []byte {
	ev := newEvent()
	ev.Type, ev.BlockSize = Stored, 16
	ev.Hashes = make([]Hash, hashes)
	for i := range ev.Hashes {
		ev.Hashes[i] = IntHash(uint64(i))
	}
	ev.Tokens = make([]uint32, tokens)
	return AppendBatch(nil, &Batch{TS: 1, Events: slices.Repeat([]Event{ev}, n)}, FormMap)
}

func TestBoundsWhatABatchMayCost(t *testing.T) {
	for _, tt := range []struct {
		name    string
		payload []byte
		events  int
		tooMany int
	}{
		{"the most blocks in an event", sizedEvents(1, MaxBlocks, 1), 1, 0},
		{"one block more", sizedEvents(1, MaxBlocks+1, 1), 0, 1},
		{"the most tokens in an event", sizedEvents(1, 1, MaxTokens), 1, 0},
		{"one token more", sizedEvents(1, 1, MaxTokens+1), 0, 1},
		{"more blocks than a batch may have", sizedEvents(6, MaxBlocks, 1), 4, 2},
		{"more tokens than a batch may have", sizedEvents(6, 1, MaxTokens), 4, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d Decoder
			b, err := d.Decode(tt.payload)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, s := range b.Skipped {
				if s.Reason != TooLarge || s.Type != Stored {
					t.Errorf("skipped %+v", s)
				}
				n += s.N
			}
			if len(b.Events) != tt.events || n != tt.tooMany {
				t.Errorf("%d events and %d too large, want %d and %d", len(b.Events), n, tt.events, tt.tooMany)
			}
		})
	}
	var d Decoder
	cleared := Batch{TS: 1, Events: slices.Repeat([]Event{{Type: Cleared}}, maxEvents+1)}
	if _, err := d.Decode(AppendBatch(nil, &cleared, FormArray)); err == nil {
		t.Error("a batch of too many events was decoded")
	}
}

func TestDepthCostsNothing(t *testing.T) {
	deep := append([]byte{0x93, 0x01, 0x91}, bytesOf(0x91, 4<<20)...)
	deep = append(deep, 0xc0, 0xc0)
	var d Decoder
	b, err := d.Decode(deep)
	if err != nil || !slices.Equal(b.Skipped, []Skip{{Unknown, BadShape, 1}}) {
		t.Errorf("an event four million deep: %v, %v", b, err)
	}
}

func bytesOf(b byte, n int) []byte { return slices.Repeat([]byte{b}, n) }

func TestUnderCredits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		skipped []Skip
		want    bool
	}{
		{"nothing was skipped", nil, true},
		{"a store was", []Skip{{Stored, BadField, 3}}, true},
		{"a removal was", []Skip{{Stored, BadField, 1}, {Removed, BadField, 1}}, false},
		{"an event of a type we do not know was", []Skip{{Unknown, UnknownType, 1}}, false},
	} {
		if got := (&Batch{Skipped: tt.skipped}).UnderCredits(); got != tt.want {
			t.Errorf("when %s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestParseMessageRefusesOtherShapes(t *testing.T) {
	for name, parts := range map[string][][]byte{
		"no topic":           {seq8(1), []byte("x")},
		"a part too many":    {nil, seq8(1), []byte("x"), nil},
		"a short sequence":   {nil, {1}, []byte("x")},
		"no payload":         {nil, seq8(1), nil},
		"nothing whatsoever": nil,
	} {
		if m, err := ParseMessage(parts); err == nil {
			t.Errorf("%s: got %+v", name, m)
		}
	}
}

func TestHashesAreDistinct(t *testing.T) {
	digest := func(s string) Hash {
		h, err := BytesHash([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	all := []Hash{
		{},
		digest("\x00"), digest("\x01"), digest("\x00\x00\x00\x00\x00\x00\x00\x01"),
		digest(strings.Repeat("\xff", MaxHash)), IntHash(0), IntHash(1), IntHash(1 << 63),
	}
	seen := make(map[Hash]bool)
	for _, h := range all {
		if seen[h] {
			t.Errorf("%v is there twice", h)
		}
		seen[h] = true
	}
	for _, h := range all[1:] {
		if h.IsZero() {
			t.Errorf("%v is zero", h)
		}
	}
	for _, bad := range []int{0, MaxHash + 1} {
		if _, err := BytesHash(make([]byte, bad)); err == nil {
			t.Errorf("a digest of %d bytes was taken", bad)
		}
	}
}

func TestBlocksOfADenseEvent(t *testing.T) {
	ev := Event{
		Type: Stored, BlockSize: 2, Tokens: []uint32{1, 2, 3, 4}, Hashes: []Hash{IntHash(1), IntHash(2)},
		Extra: [][]ExtraKey{nil, {{MediaKey, "img", 1}}},
	}
	if !ev.Dense() || !slices.Equal(ev.BlockTokens(0), []uint32{1, 2}) || !slices.Equal(ev.BlockTokens(1), []uint32{3, 4}) {
		t.Errorf("blocks of %+v", ev)
	}
	if len(ev.BlockExtra(0)) != 0 || !slices.Equal(ev.BlockExtra(1), ev.Extra[1]) || (&Event{}).BlockExtra(5) != nil {
		t.Errorf("extra keys of %+v", ev)
	}
	ev.Tokens = append(ev.Tokens, 5, 6)
	if ev.Dense() || (&Event{}).Dense() {
		t.Error("an event with other than BlockSize tokens for each hash is dense")
	}
}

func TestBatchesSurviveManyNames(t *testing.T) {
	var d Decoder
	for i := range 10_000 {
		ev := Event{Type: Removed, Group: None, LoRAID: None, Medium: fmt.Sprint("tier-", i)}
		b, err := d.Decode(AppendBatch(nil, &Batch{TS: 1, Events: []Event{ev}}, FormMap))
		if err != nil || b.Events[0].Medium != ev.Medium {
			t.Fatalf("%v, %v", b, err)
		}
	}
	if n := len(d.names.m); n > 4096 {
		t.Errorf("%d names are kept", n)
	}
}
