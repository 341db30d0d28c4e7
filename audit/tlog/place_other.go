//go:build !linux

package tlog

import "os"

// leadsTo says whether a path leads to a file.
func leadsTo(path string, file os.FileInfo) (bool, error) {
	now, err := os.Stat(path)
	return err == nil && os.SameFile(now, file), err
}
