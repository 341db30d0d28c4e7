package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/sallyport-ai/sallyport/routing/blockid"
)

// conversation is a chat body of n turns, with tools, whose text is drawn from
// the training prose and made-up numbers.
func conversation(seed uint64, n int) []byte {
	data, err := os.ReadFile(filepath.Join("train", "corpus", "prose.txt"))
	if err != nil {
		panic(err) // part of the source
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	r := rand.New(rand.NewPCG(seed, 2))
	type object = map[string]any
	say := func() string {
		var b strings.Builder
		for range 2 + r.IntN(4) {
			fmt.Fprintf(&b, "%s (ref. %x)\n", lines[r.IntN(len(lines))], r.Uint64())
		}
		return b.String()
	}
	messages := []object{{"role": "system", "content": say()}}
	for i := range n {
		messages = append(messages, object{"role": "user", "content": say()})
		if i%3 == 1 {
			messages = append(messages, object{"role": "assistant", "content": nil, "tool_calls": []object{
				{"id": fmt.Sprint(i), "type": "function", "function": object{"name": "lookup", "arguments": fmt.Sprintf(`{"account": "%d", "limit": %d}`, r.Uint64(), i)}},
			}}, object{"role": "tool", "tool_call_id": fmt.Sprint(i), "content": say()})
		}
		messages = append(messages, object{"role": "assistant", "content": say()})
	}
	messages = append(messages, object{"role": "user", "content": say()})
	body, err := json.Marshal(object{"model": "small", "messages": messages, "tools": []object{
		{"type": "function", "function": object{"name": "lookup", "description": "Look up an account.", "parameters": object{"type": "object", "properties": object{"account": object{"type": "string"}}}}},
	}})
	if err != nil {
		panic(err) // plain data always encodes
	}
	return body
}

func benchmarkChat(b *testing.B, turns int) {
	m := small(b)
	bodies := make([][]byte, 16)
	for i := range bodies {
		bodies[i] = conversation(uint64(i), turns)
	}
	bytes, tokens, i := 0, 0, 0
	b.ReportAllocs()
	for b.Loop() {
		body := bodies[i%len(bodies)]
		p, err := m.Chat(b.Context(), body)
		if err != nil {
			b.Fatal(err)
		}
		bytes += len(body)
		tokens += len(p.IDs)
		i++
	}
	b.ReportMetric(float64(bytes)/float64(i), "bytes")
	b.ReportMetric(float64(tokens)/float64(i), "tokens")
	b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
}

func BenchmarkChatShort(b *testing.B) { benchmarkChat(b, 0) }
func BenchmarkChatLong(b *testing.B)  { benchmarkChat(b, 40) }

func BenchmarkBlockIDs(b *testing.B) {
	m := small(b)
	prompts := make([][]uint32, 16)
	for i := range prompts {
		p, err := m.Chat(b.Context(), conversation(uint64(i), 40))
		if err != nil {
			b.Fatal(err)
		}
		prompts[i] = p.IDs
	}
	key := blockid.Key{1, 2, 3}
	var dst []uint64
	tokens, i := 0, 0
	for b.Loop() {
		dst = blockid.Append(dst[:0], &key, prompts[i%len(prompts)], 16)
		tokens += len(prompts[i%len(prompts)])
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
}

// newTurn ends a conversation; its digits change from request to request.
const newTurn = "<|im_start|>user\nAnd what of account 00000000, please?<|im_end|>\n<|im_start|>assistant\n"

// longConversation is a rendered conversation of messages of about 2 KB.
func longConversation(seed uint64, messages int) string {
	data, err := os.ReadFile(filepath.Join("train", "corpus", "prose.txt"))
	if err != nil {
		panic(err) // part of the source
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	r := rand.New(rand.NewPCG(seed, 3))
	var t strings.Builder
	for i := range messages {
		fmt.Fprintf(&t, "<|im_start|>%s\n", []string{"user", "assistant"}[i%2])
		for end := t.Len() + 1950; t.Len() < end; {
			fmt.Fprintf(&t, "%s (ref. %x)\n", lines[r.IntN(len(lines))], r.Uint32())
		}
		t.WriteString("<|im_end|>\n")
	}
	return t.String()
}

// benchmarkSeen asks for conversations of 41 messages and 20k tokens, of which
// all but the last message was seen.
func benchmarkSeen(b *testing.B, blocks bool) {
	y := NewMemory(small(b), MemoryConfig{})
	d := y.domain("d")
	var texts [4][]byte
	for i := range texts {
		texts[i] = []byte(longConversation(uint64(i), 40) + newTurn)
	}
	var ids []uint32
	var ends []uint64
	path := make([]step, 0, 128)
	tokens, i := 0, 0
	for b.Loop() {
		t := texts[i%len(texts)]
		at := len(t) - len(newTurn) + strings.Index(newTurn, "0")
		for n, j := i, 0; j < 8; n, j = n/10, j+1 {
			t[at+j] = byte('0' + n%10)
		}
		var err error
		// The parts that are kept are copies.
		if ids, path, err = d.appendIDs(b.Context(), y.model, ids[:0], path[:0], unsafe.String(&t[0], len(t))); err != nil {
			b.Fatal(err)
		}
		if blocks {
			ends = (&parts{domain: d, path: path}).appendBlocks(ends[:0], &testKey, 16, ids)
		}
		tokens += len(ids)
		i++
	}
	b.ReportMetric(float64(tokens)/float64(i), "tokens")
	b.ReportMetric(float64(len(path)), "parts")
	b.ReportMetric(float64(len(ends)), "blocks")
}

func BenchmarkSeenConversationIDs(b *testing.B)    { benchmarkSeen(b, false) }
func BenchmarkSeenConversationBlocks(b *testing.B) { benchmarkSeen(b, true) }

// BenchmarkSeenBlocks8192 asks for the block ids of 128k tokens, all of whose
// parts but the last were seen; eight conversations take turns, so that their
// ids come from memory and not from the nearest cache.
func BenchmarkSeenBlocks8192(b *testing.B) {
	y := NewMemory(small(b), MemoryConfig{Bytes: 256 << 20})
	var prompts [8]Prompt
	for i := range prompts {
		p, err := y.encoding("d")(b.Context(), longConversation(uint64(i), 256)+newTurn, "", false)
		if err != nil {
			b.Fatal(err)
		}
		prompts[i] = p
		prompts[i].AppendBlocks(nil, &testKey, 16)
	}
	var took [2]time.Duration
	var seen, cold []uint64
	blocks, i := 0, 0
	for b.Loop() {
		p := &prompts[i%len(prompts)]
		at := time.Now()
		seen = p.AppendBlocks(seen[:0], &testKey, 16)
		took[0] += time.Since(at)
		at = time.Now()
		cold = blockid.Append(cold[:0], &testKey, p.IDs, 16)
		took[1] += time.Since(at)
		blocks += len(seen)
		i++
	}
	b.ReportMetric(float64(blocks)/float64(i), "blocks")
	b.ReportMetric(float64(took[0].Microseconds())/float64(i)*8192*float64(i)/float64(blocks), "µs/8192seen")
	b.ReportMetric(float64(took[1].Microseconds())/float64(i)*8192*float64(i)/float64(blocks), "µs/8192computed")
	b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
}
