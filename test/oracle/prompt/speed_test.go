package oracle

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// faster is how many times less CPU time we must take than the library driven
// from node, in the same run.
const faster = 12

// mostBytes is how much memory a model may take.
const mostBytes = 40 << 20

func TestEncodingIsFasterThanTheLibrary(t *testing.T) {
	if raceDetector {
		t.Skip("not under the race detector")
	}
	code, prose := source(t)
	for _, name := range []string{"qwen3", "deepseek_v3", "llama3_1", "gptoss", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.FromSlash(fmt.Sprintf(npmFile, name))
			before := heap()
			tok := loaded(t, file)
			for _, c := range []struct {
				what  string
				texts []string
			}{{"prose", prose}, {"code", code}} {
				_, theirs := askLibrary(t, file, c.texts[:128])
				theirs *= time.Duration(len(c.texts)) / 128
				cold := encodingTime(tok, c.texts, 1)
				warm := encodingTime(tok, c.texts, 4)
				size := 0
				for _, s := range c.texts {
					size += len(s)
				}
				speed := func(d time.Duration) float64 { return float64(size) / 1e6 / d.Seconds() }
				t.Logf("%s, %.1f MB, per CPU second: the library %.1f MB, we %.1f MB the first time and %.1f MB then", c.what, float64(size)/1e6, speed(theirs), speed(cold), speed(warm))
				if ratio := float64(theirs) / float64(warm); ratio < faster {
					t.Errorf("%s: %.1f times faster than the library, want %d", c.what, ratio, faster)
				}
			}
			if took := heap() - before; took > mostBytes {
				t.Errorf("the model takes %d bytes of memory, want %d at most", took, mostBytes)
			} else {
				t.Logf("%d MB of memory", took/1e6)
			}
			runtime.KeepAlive(tok)
		})
	}
}

func loaded(t *testing.T, file string) *tokenizer.Tokenizer {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Skip(err)
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// heap is the bytes in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// source is 1,024 pages of code, and as many of prose, of 4 KB each: Go's own
// source and the comments in it, far more than any cache of words holds.
func source(t *testing.T) (code, prose []string) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	var c, p strings.Builder
	const enough = 1024 * 4096
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(root)), "src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		if c.Len() >= enough && p.Len() >= enough {
			return fs.SkipAll
		}
		data, err := os.ReadFile(path)
		c.Write(data[:min(len(data), 16<<10)])
		for line := range strings.Lines(string(data)) {
			if line, ok := strings.CutPrefix(strings.TrimSpace(line), "// "); ok {
				p.WriteString(line)
				p.WriteByte('\n')
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		text string
		to   *[]string
	}{{c.String(), &code}, {p.String(), &prose}} {
		for text := of.text; len(text) > 4096 && len(*of.to) < 1024; text = text[4096:] {
			*of.to = append(*of.to, text[:4096])
		}
		if len(*of.to) < 1024 {
			t.Fatalf("only %d pages in Go's source", len(*of.to))
		}
	}
	return code, prose
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
