package tlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

// mirrorHead returns how far the second directory has got. The first must
// extend it: batches are written to the first directory first, so that it was
// overtaken cannot come from a crash.
//
// It may have failed, or the power have gone, before the key was changed: the
// first directory then tells to which.
func mirrorHead(dir, first string, key *Key) (heldCheckpoint, error) {
	rec, err := recoverLog(dir, first, key)
	var fault *Fault
	if errors.As(err, &fault) && fault.Code == KeyMismatch {
		main, mainErr := recoverLog(first, first, key)
		if mainErr != nil {
			return heldCheckpoint{}, mainErr
		}
		rec = &recovered{later: main.rotations}
		err = rec.recover(dir, first, key)
	}
	if err != nil {
		return heldCheckpoint{}, fmt.Errorf("second directory: %w", err)
	}
	return heldCheckpoint{checkpoint: checkpoint{origin: key.Name(), size: rec.state.tree.size, root: rec.state.tree.root()}}, nil
}

// catchUp makes the segments of the second directory those of the first. What
// differs was found sound and not ahead; it is replaced file by file.
func catchUp(from, to string) error {
	segs, err := listSegments(from)
	if err != nil {
		return err
	}
	if err := removeBefore(to, segs); err != nil {
		return err
	}
	last := -1
	for _, number := range segs {
		last = number
		same, err := sameFile(segmentPath(from, number), segmentPath(to, number))
		if err != nil {
			return err
		}
		if same {
			continue
		}
		if err := copyFile(segmentPath(from, number), segmentPath(to, number)); err != nil {
			return err
		}
	}
	return removeSpares(to, last)
}

// sameFile compares contents, and takes a missing second file as different.
func sameFile(a, b string) (bool, error) {
	bInfo, err := os.Stat(b)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	aInfo, aErr := os.Stat(a)
	if err := errors.Join(err, aErr); err != nil {
		return false, fmt.Errorf("compare segments: %w", err)
	}
	if aInfo.Size() != bInfo.Size() {
		return false, nil
	}
	fa, err := os.Open(a)
	if err != nil {
		return false, fmt.Errorf("compare segments: %w", err)
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return false, fmt.Errorf("compare segments: %w", err)
	}
	defer fb.Close()
	return sameBytes(fa, fb)
}

func sameBytes(a, b io.Reader) (bool, error) {
	bufA, bufB := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || string(bufA[:n]) != string(bufB[:m]) {
			return false, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return true, nil
		}
		if err := errors.Join(err, errB); err != nil {
			return false, fmt.Errorf("compare segments: %w", err)
		}
	}
}

// copyFile replaces a file by a durable copy of another.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy segment: %w", err)
	}
	if err := replaceFile(to, data, true); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(to))
}

// replaceFile writes a file so that readers see the old content or the new.
// If it must survive a power cut the content is synced before it gets its name.
func replaceFile(path string, data []byte, durable bool) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
