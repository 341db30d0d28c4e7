package tokenizer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// texts cuts the sources into pieces of about size bytes, shuffled together.
func texts(b *testing.B, file string, size int) []string {
	b.Helper()
	data, err := os.ReadFile(filepath.Join("..", "train", "corpus", file))
	if err != nil {
		b.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	r := rand.New(rand.NewPCG(6, 6))
	out := make([]string, 64)
	for i := range out {
		var s strings.Builder
		for s.Len() < size {
			s.WriteString(lines[r.IntN(len(lines))])
		}
		out[i] = s.String()
	}
	return out
}

func benchmarkEncode(b *testing.B, file string, cold bool) {
	tok := small(b)
	in := texts(b, file, 4096)
	var dst []uint32
	bytes, tokens, i := 0, 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if cold {
			tok.cache, tok.fronts = newCache(), &fronts{}
		}
		s := in[i%len(in)]
		dst = tok.AppendEncode(dst[:0], s, true)
		bytes += len(s)
		tokens += len(dst)
		i++
	}
	b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
	b.ReportMetric(float64(tokens)/1e6/b.Elapsed().Seconds(), "Mtok/s")
}

func BenchmarkEncodeProse(b *testing.B)     { benchmarkEncode(b, "prose.txt", false) }
func BenchmarkEncodeCode(b *testing.B)      { benchmarkEncode(b, "code.txt", false) }
func BenchmarkEncodeTongues(b *testing.B)   { benchmarkEncode(b, "tongues.txt", false) }
func BenchmarkEncodeProseCold(b *testing.B) { benchmarkEncode(b, "prose.txt", true) }
func BenchmarkEncodeCodeCold(b *testing.B)  { benchmarkEncode(b, "code.txt", true) }

func BenchmarkEncodeMadeUpWords(b *testing.B) {
	tok := small(b)
	r := rand.New(rand.NewPCG(8, 1))
	var dst []uint32
	bytes := 0
	for b.Loop() {
		s := prose(r, 600)
		dst = tok.AppendEncode(dst[:0], s, true)
		bytes += len(s)
	}
	b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
}

func BenchmarkEncodeOneLongWord(b *testing.B) {
	tok := small(b)
	r := rand.New(rand.NewPCG(3, 1))
	var dst []uint32
	for b.Loop() {
		w := make([]byte, 100_000)
		for i := range w {
			w[i] = byte('a' + r.IntN(26))
		}
		dst = tok.AppendEncode(dst[:0], string(w), true)
	}
}

func BenchmarkParse(b *testing.B) {
	data, err := os.ReadFile(filepath.Join("..", "models", "small", "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
