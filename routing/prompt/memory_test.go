package prompt

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/blockid"
)

func remembering(t testing.TB, bytes int) *Memory {
	t.Helper()
	return NewMemory(small(t), MemoryConfig{Bytes: bytes, Domains: 3})
}

// testKey is of the block ids in these tests.
var testKey = blockid.Key{1, 2}

// computed is the ids of the prompt's blocks as nobody remembers them.
func computed(p *Prompt, size int) []uint64 {
	return blockid.Append([]uint64{}, &testKey, p.IDs, size)
}

// asked is what the memory and the model by itself make of a body.
func asked(t *testing.T, y *Memory, domain string, body []byte) (got, want Prompt) {
	t.Helper()
	got, err := y.Chat(t.Context(), domain, body)
	if err != nil {
		t.Fatal(err)
	}
	if want, err = y.model.Chat(t.Context(), body); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{16, 7} {
		if got := got.AppendBlocks(nil, &testKey, size); !slices.Equal(got, computed(&want, size)) {
			t.Fatalf("%d ids of blocks of %d, or others, want %d", len(got), size, len(want.IDs)/size)
		}
	}
	got.parts = nil
	return got, want
}

func TestAMemoryAnswersAsTheModel(t *testing.T) {
	for _, bytes := range []int{0, 1 << 20, 60_000, 3000, 1} {
		y := remembering(t, bytes)
		r := rand.New(rand.NewPCG(7, 7))
		for i := range 60 {
			body := conversation(uint64(r.IntN(4)), 1+r.IntN(6))
			if got, want := asked(t, y, fmt.Sprint(i%5), body); !reflect.DeepEqual(got, want) {
				t.Fatalf("with %d bytes, after %d prompts: %d ids, want %d, or others", bytes, i, len(got.IDs), len(want.IDs))
			}
		}
		if n := len(y.domains); n > 3 {
			t.Errorf("%d domains are remembered, want 3", n)
		}
	}
}

// pieces of text with whole, broken and touching special tokens.
var fragments = []string{"<|im_start|>", "<|im_end|>", "<|im_", "<", "|>", "<|endoftext|>", "<tool_call>", "e", "\u0301", " ", "\n", "user", "'s", "12", "\xff", strings.Repeat("long ", 20)}

func FuzzAMemoryEncodesAsTheModel(f *testing.F) {
	f.Add([]byte{0, 11, 10, 7, 8, 1, 10, 15, 0, 1, 2, 3})
	f.Add([]byte{15, 2, 0, 15, 3, 1, 15, 15, 4, 0})
	y := remembering(f, 20_000)
	f.Fuzz(func(t *testing.T, choice []byte) {
		if len(choice) > 200 {
			t.Skip("longer choices show nothing that shorter ones do not")
		}
		var b strings.Builder
		for _, c := range choice {
			b.WriteString(fragments[int(c)%len(fragments)])
		}
		text := b.String()
		for range 2 {
			got, err := y.encoding("d")(t.Context(), text, "", false)
			if err != nil {
				t.Fatal(err)
			}
			if want := y.model.Encode(text, true); !slices.Equal(got.IDs, want) {
				t.Fatalf("%q: %v, want %v", text, got.IDs, want)
			}
			if blocks, want := got.AppendBlocks([]uint64{}, &testKey, 16), computed(&got, 16); !slices.Equal(blocks, want) {
				t.Fatalf("%q: blocks %x, want %x", text, blocks, want)
			}
		}
	})
}

func TestDomainsShareNothing(t *testing.T) {
	y := remembering(t, 1<<20)
	body := conversation(1, 3)
	asked(t, y, "a", body)
	asked(t, y, "b", conversation(2, 3))
	if n := len(y.domains["b"].young.parts); n == 0 || n != len(y.domains["b"].parts()) {
		t.Fatalf("%d parts in b", n)
	}
	for h, p := range y.domains["a"].young.parts {
		for _, q := range y.domains["b"].young.parts {
			if p == q {
				t.Errorf("part %x is of two domains", h)
			}
		}
	}
}

// parts are the distinct parts that are remembered.
func (d *domain) parts() map[*part]bool {
	out := map[*part]bool{}
	for _, g := range []generation{d.young, d.old} {
		for _, p := range g.parts {
			out[p] = true
		}
	}
	return out
}

func TestAMemoryKeepsToItsBytes(t *testing.T) {
	const limit = 200_000
	y := remembering(t, limit)
	for i := range 60 {
		asked(t, y, "d", conversation(uint64(i), 10))
		d := y.domains["d"]
		if sum := d.young.bytes + d.old.bytes; sum > limit+limit/4 {
			t.Fatalf("after %d prompts, %d bytes", i, sum)
		}
		actual := 0
		for p := range d.parts() {
			actual += len(p.text) + 4*len(p.ids)
		}
		if actual > limit+limit/4 {
			t.Fatalf("after %d prompts, %d bytes of text and ids", i, actual)
		}
	}
}

func TestACompletionOfIDsHasBlocks(t *testing.T) {
	y := remembering(t, 1<<20)
	ids := y.model.Encode(strings.Repeat("some words ", 40), true)
	p, err := y.Completion(t.Context(), "d", []byte(`{"prompt": [`+strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")+`]}`))
	if err != nil || !slices.Equal(p.IDs, ids) || !slices.Equal(p.AppendBlocks(nil, &testKey, 16), computed(&p, 16)) {
		t.Errorf("%d ids, %d blocks, %v", len(p.IDs), len(p.AppendBlocks(nil, &testKey, 16)), err)
	}
	if _, err := y.Completion(t.Context(), "d", []byte(`{"prompt": ["a", "b"]}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("two prompts: %v", err)
	}
}

func TestManyRequestsShareAMemory(t *testing.T) {
	y := remembering(t, 50_000)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 8 {
				if got, want := asked(t, y, fmt.Sprint(i%2), conversation(uint64(j%3), 1+j%4)); !reflect.DeepEqual(got, want) {
					t.Error("a shared memory answers otherwise")
				}
			}
		})
	}
	group.Wait()
}

func TestBlocksAreOfTheKeyThatIsAskedFor(t *testing.T) {
	y := remembering(t, 1<<20)
	p, err := y.Chat(t.Context(), "d", conversation(1, 4))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		key := blockid.Key{byte(i % 2)}
		if got, want := p.AppendBlocks(nil, &key, 16), blockid.Append(nil, &key, p.IDs, 16); !slices.Equal(got, want) {
			t.Errorf("asked %d times: %x, want %x", i+1, got, want)
		}
	}
	if got := p.AppendBlocks(nil, &testKey, 0); got != nil {
		t.Errorf("blocks of no tokens: %x", got)
	}
}
