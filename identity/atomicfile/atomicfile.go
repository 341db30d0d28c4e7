// Package atomicfile changes small files as a whole, for stores that other
// processes read while they are changed.
//
// Start at [Edit].
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

// Edit puts what change returns in place of what it is given, the path to read
// from: links have been followed. Readers, and whoever comes after a crash, see
// the file as it was before or as it is after; when Edit returns, the new one is
// durable. Editors wait for each other, by a lock on a file beside this one.
func Edit(path string, change func(path string) ([]byte, error)) error {
	path, err := target(path)
	if err != nil {
		return err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	raw, err := change(path)
	if err != nil {
		return err
	}
	return replace(path, raw)
}

// target follows symbolic links, which a rename would replace.
func target(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	return real, err
}

// lock waits for a lock that lasts until unlock or the end of the process. It is
// on a file beside the one that is edited, since that is replaced.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock file: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing cannot fail to release it
}

// replace writes a file beside path, makes it durable and puts it in path's
// place. What a killed editor left is written over. The caller holds the lock.
func replace(path string, raw []byte) (err error) {
	temp := path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace file: %w", err)
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	_, err = f.Write(raw)
	if err == nil {
		err = likeBefore(f, path)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace file: %w", err), os.Remove(temp))
	}
	return durable.SyncDir(filepath.Dir(path))
}

// likeBefore gives the new file the owner and mode of the old one: a gateway
// that runs as another user than the editor must still be able to read it.
func likeBefore(f *os.File, path string) error {
	old, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner, ok := old.Sys().(*syscall.Stat_t); ok && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(old.Mode().Perm())
}
