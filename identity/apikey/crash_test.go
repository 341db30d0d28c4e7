package apikey_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity/apikey"
)

// editorOf makes this binary an editor of the store named, until it is killed.
const editorOf = "APIKEY_TEST_EDITOR_OF"

func TestMain(m *testing.M) {
	dir := os.Getenv(editorOf)
	if dir == "" {
		os.Exit(m.Run())
	}
	pepper, err := apikey.ReadPepper(filepath.Join(dir, "pepper"))
	for err == nil {
		var key apikey.Key
		if key, _, err = apikey.Create(filepath.Join(dir, "keys"), pepper, record()); err == nil {
			_, err = fmt.Println(key.Secret())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestAnEditorThatIsKilledHarmsNothing(t *testing.T) {
	b := newBox(t)
	b.create(t, record())
	s := b.open(t, nil)
	var shown []string
	for i := range 12 {
		// Two at a time: one dies holding the lock, the other goes on.
		var editors []*exec.Cmd
		var lines [2]*bufio.Scanner
		for j := range lines {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), editorOf+"="+filepath.Dir(b.file))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			editors, lines[j] = append(editors, cmd), bufio.NewScanner(out)
		}
		var reading sync.WaitGroup
		var mu sync.Mutex
		started := make(chan struct{}, 2)
		for _, l := range lines {
			reading.Go(func() {
				for n := 0; l.Scan(); n++ {
					mu.Lock()
					shown = append(shown, l.Text())
					mu.Unlock()
					if n == 0 {
						started <- struct{}{}
					}
				}
			})
		}
		for range editors {
			<-started
		}
		time.Sleep(time.Duration(i) * 700 * time.Microsecond) // another point of the edit each time
		for _, cmd := range editors {
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		reading.Wait()
		for _, cmd := range editors {
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
				t.Fatalf("the editor ended by itself: %v", err)
			}
		}
		if _, err := s.Authenticate(t.Context(), bearer(shown[len(shown)-1])); err != nil {
			t.Fatalf("after %d kills: %v", i+1, err)
		}
	}
	for _, secret := range shown {
		if _, err := s.Authenticate(t.Context(), bearer(secret)); err != nil {
			t.Errorf("a key that was shown is gone: %v", err)
		}
	}
	b.create(t, record()) // whatever they left behind
	t.Logf("%d keys shown by 24 editors that were killed", len(shown))
}

func TestAHalfWrittenReplacementIsNeitherReadNorInTheWay(t *testing.T) {
	b := newBox(t)
	key := b.create(t, record())
	s := b.open(t, nil)
	if err := os.WriteFile(b.file+".tmp", []byte(`{"sallyport_api_keys":1,"pep`), 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); err != nil {
		t.Error(err)
	}
	if _, err := apikey.Revoke(b.file, key.ID(), time.Now()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(b.file))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasSuffix(f.Name(), ".tmp") {
			t.Errorf("%s is left", f.Name())
		}
	}
}

func TestKeysMadeAtOnceAreAllThere(t *testing.T) {
	b := newBox(t)
	b.create(t, record())
	s := b.open(t, nil)
	var (
		making  sync.WaitGroup
		mu      sync.Mutex
		secrets []string
	)
	for range 8 {
		making.Go(func() {
			for range 8 {
				key, _, err := apikey.Create(b.file, b.pepper, record())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); err != nil {
					t.Error(err)
				}
				mu.Lock()
				secrets = append(secrets, key.Secret())
				mu.Unlock()
			}
		})
	}
	making.Wait()
	for _, secret := range secrets {
		if _, err := s.Authenticate(t.Context(), bearer(secret)); err != nil {
			t.Error(err)
		}
	}
	if records, err := apikey.Read(b.file); err != nil || len(records) != 65 {
		t.Errorf("%d keys, %v", len(records), err)
	}
}

func TestAnEditKeepsModeAndLink(t *testing.T) {
	b := newBox(t)
	key := b.create(t, record())
	if err := os.Chmod(b.file, 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(b.file, link); err != nil {
		t.Fatal(err)
	}
	if _, err := apikey.Revoke(link, key.ID(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(b.file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if records, err := apikey.Read(b.file); err != nil || records[0].Revoked.IsZero() {
		t.Errorf("not revoked: %v", err)
	}
}
