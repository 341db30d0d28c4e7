package tlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
)

// errExposed says that somebody else could write, take away or replace a log's
// files: what would then be found missing or changed need not be the log's doing.
var errExposed = errors.New("is not the log's alone")

// ownFiles are the names in a log's directory that nobody else may write to.
var ownFiles = []string{lockName, checkpointFile, anchoredFile, walDir, "tile"}

// segmentName is what the files below wal that count are called.
var segmentName = regexp.MustCompile(`^(\d{8}|` + reserveFile + `)$`)

// checkOwned says of each file of a log that is there how somebody else could
// change it. The log need not be there yet.
//
// The owner must be who runs this, or root, who can do as he likes. A group may
// write if it is one of our own: volumes come like that.
func checkOwned(dir string) error {
	o, err := ourselves()
	if err != nil {
		return err
	}
	return errors.Join(o.exposed(dir)...)
}

// checkKeyOwned is checkOwned of the file that the key was read from. It may be a
// link: secrets are mounted so.
func checkKeyOwned(path string) error {
	o, err := ourselves()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look who may write to it: %w", err)
	}
	return o.owns(path, info)
}

// owner is whose the files of a log must be.
type owner struct {
	uids   []int
	groups []int // that may write; nil: any
}

func ourselves() (owner, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return owner{}, fmt.Errorf("look who this is: %w", err)
	}
	return owner{uids: []int{os.Geteuid(), 0}, groups: append(groups, os.Getegid())}, nil
}

// exposed returns an error for each file of a log that is another's too.
func (o owner) exposed(dir string) (all []error) {
	look := func(path string, isDir bool) {
		if err := o.check(path, isDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, err)
		}
	}
	look(dir, true)
	for _, name := range ownFiles {
		look(filepath.Join(dir, name), name == walDir || name == "tile")
	}
	names, err := segmentFiles(dir)
	if err != nil {
		return append(all, err)
	}
	for _, name := range names {
		look(filepath.Join(dir, walDir, name), false)
	}
	return all
}

// check looks at one file without opening it: what is no file may block.
func (o owner) check(path string, isDir bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look who may write to the log: %w", err)
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return exposedBy(path, "it is a symbolic link")
	case isDir && !mode.IsDir():
		return exposedBy(path, "it is no directory")
	case !isDir && !mode.IsRegular():
		return exposedBy(path, "it is no regular file")
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); !isDir && ok && sys.Nlink != 1 {
		return exposedBy(path, "it has %d names", sys.Nlink)
	}
	return o.owns(path, info)
}

// owns checks who owns a file and who may write to it.
func (o owner) owns(path string, info os.FileInfo) error {
	sys, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	switch {
	case !ok:
		return exposedBy(path, "nothing says who owns it")
	case !slices.Contains(o.uids, int(sys.Uid)):
		return exposedBy(path, "user %d owns it", sys.Uid)
	case mode&0o002 != 0:
		return exposedBy(path, "anybody may write to it (mode %04o)", mode)
	case mode&0o020 != 0 && o.groups != nil && !slices.Contains(o.groups, int(sys.Gid)):
		return exposedBy(path, "group %d may write to it (mode %04o)", sys.Gid, mode)
	}
	return nil
}

func exposedBy(path, format string, args ...any) error {
	return fmt.Errorf("%s %w: %s", path, errExposed, fmt.Sprintf(format, args...))
}

// segmentFiles are the names of the segments that are there, spare ones too.
func segmentFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, walDir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	var names []string
	for _, e := range entries {
		if segmentName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// regularSegments returns a *[Fault] for a segment that is a link, or no file at
// all: readers would follow it to anywhere, or wait for ever.
func regularSegments(dir string) error {
	names, err := segmentFiles(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(dir, walDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a spare that was used or removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("look at segment: %w", err)
		}
		if !info.Mode().IsRegular() {
			var number int
			_, _ = fmt.Sscanf(name, "%d", &number) // of the reserve there is none
			return &Fault{Code: NotAFile, Segment: number, Detail: fmt.Sprintf("segment %s is not a regular file (%s)", name, info.Mode().Type())}
		}
	}
	return nil
}

// exposure says how others than its owner could change a log that is only read.
// Whose it is cannot be told of a copy, so that all is one user's will do.
func exposure(dir string) (said []string) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil // reading it says so
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target // how the reader names it is his own affair
	}
	for _, err := range (owner{uids: []int{int(sys.Uid), 0}}).exposed(dir) {
		said = append(said, err.Error())
	}
	return said
}
