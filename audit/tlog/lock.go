package tlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process has the log open, or another log with
// the same key file.
var ErrLocked = errors.New("log is open in another process")

const lockName = "lock"

// lock is a file that only this process has locked.
type lock struct {
	*os.File
	place
}

// lockDir takes the directory for this process until the lock is closed.
func lockDir(dir string) (*lock, error) {
	return takeLock(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE)
}

// takeLock locks a file, and sees to it that it is still the one at path: it
// might have been moved away with its lock.
func takeLock(path string, flag int) (*lock, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	l := &lock{File: f, place: place{path: path}}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err == nil {
		l.file, err = f.Stat()
	}
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return l, nil
}

// isLive says whether some process is writing to the log.
func isLive(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open lock: %w", err)
	}
	defer f.Close() // releases the lock if we got it
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("query lock: %w", err)
	}
	return false, nil
}
