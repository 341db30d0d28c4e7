// Package durable replaces small files, so that a crash or a power cut leaves the
// old one or the new one. It imports nothing of ours, and any package that stores
// a file may use it.
//
// Start at [Replace]. [ReadRegular] reads what somebody else may have put in place.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Replace puts raw in place of the file at path, if there is one. Readers, and
// whoever comes after a crash, see the file as it was before or as it is after;
// when Replace returns nil the new one is durable. It is its owner's alone (mode
// 0600), and a link at path is itself replaced.
//
// Of those who replace a file at one time the last one stands. A process that is
// killed meanwhile leaves a file beside it whose name begins with a dot.
func Replace(path string, raw []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	_, err = temp.Write(raw)
	// The content is synced before it gets its name: after a power cut the name
	// would otherwise stand for a file that is empty.
	if err = errors.Join(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace file: %w", err), os.Remove(temp.Name()))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes durable which names are in a directory, and what they name: a
// file that is synced itself may still be gone with its name.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
