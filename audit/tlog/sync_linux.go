package tlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// datasync flushes data and the metadata needed to read it back.
func datasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
