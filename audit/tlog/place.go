package tlog

import (
	"errors"
	"fmt"
	"os"
)

// errDisplaced says that the log's files are not where the log is any more:
// what was written went to files that nobody will find, and another process may
// have begun a log in their place.
var errDisplaced = errors.New("log has been moved or deleted")

// place is the path of a file that is held open, so that its inode is nobody
// else's, and that must stay where it is.
type place struct {
	path string
	file os.FileInfo
}

// check returns [errDisplaced] unless the path leads to the file.
func (p place) check() error {
	same, err := leadsTo(p.path, p.file)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errDisplaced, err)
	case !same:
		return fmt.Errorf("%w: %s is another file now", errDisplaced, p.path)
	}
	return nil
}
