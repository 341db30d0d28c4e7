//go:build !linux

package tlog

import "os"

// datasync flushes a file. Where there is no fdatasync this is fsync.
func datasync(f *os.File) error { return f.Sync() }
