package tlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// otherUser is neither root nor whoever runs the tests.
const otherUser = 54321

// exposures are ways in which the files of a log can be somebody else's too.
// Those that need root are left out without it.
var exposures = []struct {
	claim string
	root  bool
	harm  func(t *testing.T, dir string) error
	says  string
	told  string // to readers: "" nothing, "exposed", or the code of the fault that it is
}{
	{"the directory is a link", false, func(_ *testing.T, dir string) error {
		return errors.Join(os.Rename(dir, dir+".old"), os.Symlink(dir+".old", dir))
	}, "symbolic link", ""},
	{"anybody may write to the directory", false, chmod("", 0o777), "anybody may write", "exposed"},
	{"anybody may make segments", false, chmod(walDir, 0o1777), "anybody may write", "exposed"},
	{"the segments' directory is a link", false, func(_ *testing.T, dir string) error {
		wal := filepath.Join(dir, walDir)
		return errors.Join(os.Rename(wal, wal+".old"), os.Symlink(wal+".old", wal))
	}, "symbolic link", "exposed"},
	{"anybody may write to a segment", false, chmod("wal/00000000", 0o602), "anybody may write", "exposed"},
	{"anybody may write to the checkpoint", false, chmod(checkpointFile, 0o606), "anybody may write", "exposed"},
	{"a segment is a link to a file elsewhere", false, func(_ *testing.T, dir string) error {
		return errors.Join(os.Rename(segmentPath(dir, 0), dir+".away"), os.Symlink(dir+".away", segmentPath(dir, 0)))
	}, "symbolic link", string(NotAFile)},
	{"a segment has another name too", false, func(_ *testing.T, dir string) error {
		return os.Link(segmentPath(dir, 0), dir+".away")
	}, "2 names", "exposed"},
	{"a pipe is where the next segment belongs", false, func(_ *testing.T, dir string) error {
		return syscall.Mkfifo(segmentPath(dir, 1), 0o600)
	}, "no regular file", string(NotAFile)},
	{"the lock is a link", false, func(_ *testing.T, dir string) error {
		lock := filepath.Join(dir, lockName)
		return errors.Join(os.Remove(lock), os.Symlink(dir+".away", lock))
	}, "symbolic link", "exposed"},
	{"another user owns the directory", true, chown("", otherUser, -1), "user 54321 owns it", ""},
	{"another user owns a segment", true, chown("wal/00000000", otherUser, -1), "user 54321 owns it", "exposed"},
}

func chmod(name string, mode uint32) func(*testing.T, string) error {
	return func(_ *testing.T, dir string) error { return syscall.Chmod(filepath.Join(dir, name), mode) }
}

func chown(name string, uid, gid int) func(*testing.T, string) error {
	return func(_ *testing.T, dir string) error { return os.Chown(filepath.Join(dir, name), uid, gid) }
}

// made is a log of a few records that has been closed.
func made(t *testing.T, cfg Config) {
	t.Helper()
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(1))
	mustClose(t, l)
}

func TestALogThatOthersCouldChangeIsNotOpened(t *testing.T) {
	for _, c := range exposures {
		t.Run(c.claim, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			cfg := testConfig(t, testKey(t))
			made(t, cfg)
			if err := c.harm(t, cfg.Dir); err != nil {
				t.Fatal(err)
			}
			before := listing(cfg.Dir)
			l, err := Open(cfg)
			if err == nil {
				mustClose(t, l)
			}
			if !errors.Is(err, errExposed) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open = %v", err)
			}
			if now := listing(cfg.Dir); now != before {
				t.Errorf("Open left\n%s\nof\n%s", now, before)
			}
			second := testConfig(t, cfg.Key)
			made(t, second)
			second.Dir2 = cfg.Dir
			if _, err := Open(second); !errors.Is(err, errExposed) {
				t.Errorf("as a second directory: Open = %v", err)
			}
		})
	}
}

// Readers may hold a copy that is anybody's, under any name: what others could
// change is said, and only what leads out of the directory is not read.
func TestReadersSayHowALogCouldBeChanged(t *testing.T) {
	for _, c := range exposures {
		t.Run(c.claim, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			cfg := testConfig(t, testKey(t))
			made(t, cfg)
			if report := mustVerify(t, cfg); len(report.Exposed) > 0 {
				t.Fatalf("before: %q", report.Exposed)
			}
			if err := c.harm(t, cfg.Dir); err != nil {
				t.Fatal(err)
			}
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, readErr := Find(cfg.Dir, "nobody", 0)
			switch said := strings.Join(report.Exposed, "\n"); c.told {
			case "", "exposed":
				if !report.OK() || !errors.Is(readErr, ErrNotFound) || (said != "") != (c.told != "") {
					t.Errorf("Verify = %+v, Find = %v", report, readErr)
				}
			default:
				var fault *Fault
				if string(report.Code) != c.told || !errors.As(readErr, &fault) || string(fault.Code) != c.told {
					t.Errorf("Verify = %+v, Find = %v", report, readErr)
				}
			}
		})
	}
}

func TestAGroupOfOursMayShareTheLogAndAnotherMayNot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to any group")
	}
	for _, c := range []struct {
		gid  int
		open bool
	}{{os.Getegid(), true}, {otherUser, false}} {
		cfg := testConfig(t, testKey(t))
		made(t, cfg)
		for name, mode := range map[string]uint32{"": 0o2770, "wal/00000000": 0o660} {
			if err := errors.Join(chown(name, -1, c.gid)(t, cfg.Dir), chmod(name, mode)(t, cfg.Dir)); err != nil {
				t.Fatal(err)
			}
		}
		l, err := Open(cfg)
		if err == nil {
			mustClose(t, l)
		}
		if (err == nil) != c.open {
			t.Errorf("group %d: Open = %v", c.gid, err)
		}
	}
}

func TestAKeyThatAnotherUserOwnsOpensNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := filepath.Join(t.TempDir(), "key")
	if _, err := CreateKeyFile(path, origin); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		open bool
	}{{0, 0o600, true}, {otherUser, 0o600, false}, {0, 0o640, true}, {otherUser, 0o640, false}} {
		if err := errors.Join(os.Chown(path, c.uid, -1), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		key, err := ReadKeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(t, key)
		l, err := Open(cfg)
		if err == nil {
			mustClose(t, l)
		}
		if (err == nil) != c.open {
			t.Errorf("owner %d, mode %04o: Open = %v", c.uid, c.mode, err)
		}
		if _, statErr := os.Stat(cfg.Dir); (statErr == nil) != c.open {
			t.Errorf("owner %d: a directory was made for a log that is not opened, or none for one that is: %v", c.uid, statErr)
		}
	}
}
