package mackey

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	october  = time.Date(2026, 10, 31, 23, 59, 59, 0, time.UTC)
	november = october.Add(time.Second)
	prompt   = []byte("What is my balance?")
)

func open(t *testing.T, dir string) *Ring {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mac(t *testing.T, r *Ring, tenant string, at time.Time) string {
	t.Helper()
	m, err := r.MAC(tenant, at, prompt)
	if err != nil || m == "" {
		t.Fatal(err)
	}
	return m
}

func TestAMACTellsPromptsApartByTenantAndMonth(t *testing.T) {
	for name, dir := range map[string]string{"in files": filepath.Join(t.TempDir(), "keys"), "in memory": ""} {
		r := open(t, dir)
		a := mac(t, r, "acme", october)
		if mac(t, r, "acme", october) != a {
			t.Errorf("%s: not equal for the same prompt", name)
		}
		if mac(t, r, "globex", october) == a || mac(t, r, "acme", november) == a {
			t.Errorf("%s: equal across tenants or months", name)
		}
		again := mac(t, open(t, dir), "acme", october)
		if (again == a) != (dir != "") {
			t.Errorf("%s: after a restart it is the same: %v", name, again == a)
		}
		if dir == "" {
			continue
		}
		if got, err := Check(dir, "acme", "2026-10", prompt); err != nil || got != a {
			t.Errorf("an auditor finds %q, %v", got, err)
		}
	}
}

func TestADestroyedKeyIsGone(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	before := mac(t, r, "acme", october)
	mac(t, r, "acme", november)
	mac(t, r, "globex/../x", october)
	all, err := Find(dir, "", "2026-11")
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	mine, err := Find(dir, "acme", "2026-11")
	if err != nil || len(mine) != 1 || mine[0].Month != "2026-10" || len(mine[0].SHA256) != 64 {
		t.Fatalf("%v, %v", mine, err)
	}
	if err := Destroy(dir, mine[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(dir, "acme", "2026-10", prompt); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if mac(t, open(t, dir), "acme", october) == before {
		t.Error("the same key came again")
	}
	if err := Destroy(dir, Key{Tenant: "hooli", Month: "2026-10"}); err == nil {
		t.Error("a key that is not there was destroyed")
	}
}

func TestTwoProcessesMakeOneKey(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	macs := make([]string, 8)
	var all sync.WaitGroup
	for i := range macs {
		r := open(t, dir)
		all.Go(func() { macs[i], _ = r.MAC("acme", october, prompt) })
	}
	all.Wait()
	for _, m := range macs {
		if m != macs[0] || m == "" {
			t.Fatalf("%q", macs)
		}
	}
}

func TestWhatIsNoKeyIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory that others can read was taken")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := pathOf(dir, "acme", "2026-10")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir).MAC("acme", october, prompt); err == nil {
		t.Error("a key of five bytes was taken")
	}
	if _, err := Check(dir, "acme", "../../x", prompt); err == nil {
		t.Error("a path was taken for a month")
	}
}

func TestATenantOfAnyNameHasItsKeys(t *testing.T) {
	names := []string{
		"a", strings.Repeat("n", 191), strings.Repeat("n", 192), strings.Repeat("n", 300), strings.Repeat("n", 300) + "x", strings.Repeat("\u00e9/", 2000), "../../x", "=", "tenant",
	}
	dir := filepath.Join(t.TempDir(), "keys")
	seen := make(map[string]string)
	for _, name := range names {
		m := mac(t, open(t, dir), name, october)
		if other, ok := seen[m]; ok {
			t.Errorf("%.20q has the key of %.20q", name, other)
		}
		seen[m] = name
		if again := mac(t, open(t, dir), name, october); again != m {
			t.Errorf("%.20q (%d bytes) has another key after a restart", name, len(name))
		}
		if got, err := Check(dir, name, "2026-10", prompt); err != nil || got != m {
			t.Errorf("%.20q (%d bytes): an auditor finds %q, %v", name, len(name), got, err)
		}
		keys, err := Find(dir, name, "2026-11")
		if err != nil || len(keys) != 1 || keys[0].Tenant != name {
			t.Errorf("%.20q (%d bytes): %d keys, %v", name, len(name), len(keys), err)
		}
	}
	all, err := Find(dir, "", "2026-11")
	if err != nil || len(all) != len(names) {
		t.Fatalf("%d keys of %d tenants, %v", len(all), len(names), err)
	}
	for _, k := range all {
		if err := Destroy(dir, k); err != nil {
			t.Error(err)
		}
	}
	if left, err := Find(dir, "", "2026-11"); err != nil || len(left) != 0 {
		t.Errorf("%d keys are left, %v", len(left), err)
	}
}

func TestAFolderThatLiesAboutItsTenantIsNobodys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	long := strings.Repeat("n", 300)
	mac(t, open(t, dir), long, october)
	if err := os.WriteFile(filepath.Join(dir, folderOf(long), nameFile), []byte("acme"), 0o600); err != nil {
		t.Fatal(err)
	}
	if keys, err := Find(dir, "", "2026-11"); err != nil || len(keys) != 0 {
		t.Errorf("%v, %v", keys, err)
	}
	mac(t, open(t, dir), long, november) // which puts it right
	if keys, err := Find(dir, long, "2026-12"); err != nil || len(keys) != 2 {
		t.Errorf("%v, %v", keys, err)
	}
}
