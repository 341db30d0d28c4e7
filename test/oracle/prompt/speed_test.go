package oracle

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// faster is how many times less CPU time we must take than the library driven
// from node, in the same run.
const faster = 12

func TestEncodingIsFasterThanTheLibrary(t *testing.T) {
	if raceDetector {
		t.Skip("not under the race detector")
	}
	for _, name := range []string{"qwen3", "deepseek_v3", "llama3_1", "gptoss", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.FromSlash(fmt.Sprintf(npmFile, name))
			data, err := os.ReadFile(file)
			if err != nil {
				t.Skip(err)
			}
			tok, err := tokenizer.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			texts := pages(t, 256)
			_, theirs := askLibrary(t, file, texts)
			cold := encodingTime(tok, texts, 1)
			warm := encodingTime(tok, texts, 8)
			size := 0
			for _, s := range texts {
				size += len(s)
			}
			speed := func(d time.Duration) float64 { return float64(size) / 1e6 / d.Seconds() }
			t.Logf("per CPU second: the library %.1f MB, we %.1f MB the first time and %.1f MB then", speed(theirs), speed(cold), speed(warm))
			if ratio := float64(theirs) / float64(warm); ratio < faster {
				t.Errorf("%.1f times faster than the library, want %d", ratio, faster)
			}
		})
	}
}

// pages are n texts of about 4 KB of prose and code.
func pages(t *testing.T, n int) []string {
	t.Helper()
	r := rand.New(rand.NewPCG(2, 2))
	var out []string
	for i := range n {
		data, err := os.ReadFile(filepath.Join("../../../routing/prompt/train/corpus", []string{"prose.txt", "code.txt"}[i%2]))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(data), "\n")
		var b strings.Builder
		for b.Len() < 4096 {
			b.WriteString(lines[r.IntN(len(lines))])
		}
		out = append(out, b.String())
	}
	return out
}

// encodingTime is the CPU time of one of so many turns over texts.
func encodingTime(tok *tokenizer.Tokenizer, texts []string, turns int) time.Duration {
	var dst []uint32
	before := cpuTime()
	for range turns {
		for _, s := range texts {
			dst = tok.AppendEncode(dst[:0], s, true)
		}
	}
	return (cpuTime() - before) / time.Duration(turns)
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // not for this process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
