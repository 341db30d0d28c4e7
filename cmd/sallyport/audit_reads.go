package main

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/inbox"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// reads sees to it that who reads a log is recorded in it.
type reads struct{ unrecorded bool }

func (r *reads) flag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.unrecorded, "unrecorded", false, "go on where the log's directory cannot take a note that it was read, as of a read-only copy")
}

// access is the note that a log was read.
type access struct {
	Command string   `json:"command"`
	Args    []string `json:"args"`
	User    string   `json:"user"`
	UID     int      `json:"uid"`
	Host    string   `json:"host"`
	Build   string   `json:"build"`
}

// maxArgs bounds the arguments in a note, and maxArg each of them, in bytes.
const (
	maxArgs = 16
	maxArg  = 128
)

// note leaves a note beside each log before it is read. It refuses what is no
// log and no excerpt: nothing found in it would look like nothing to find.
func (r *reads) note(cmd *cobra.Command, args []string, paths ...string) error {
	for _, path := range paths {
		if excerpt.Is(path) {
			continue
		}
		if _, err := tlog.Origin(path); err != nil {
			return cannotTell(err)
		}
	}
	if err := r.leave(cmd, args, paths...); err != nil {
		return cannotTell(fmt.Errorf("that it is read cannot be recorded, so it is not; --unrecorded reads it all the same: %w", err))
	}
	return nil
}

// leave leaves a note beside each path that is the directory of a log. Excerpts
// and bundles have left their log: that they were made is recorded.
func (r *reads) leave(cmd *cobra.Command, args []string, paths ...string) error {
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join(path, "wal")); err != nil {
			continue // no log, which verifying it says better
		}
		err := inbox.Leave(path, audit.KindAccess, accessOf(cmd, args))
		if err == nil || r.unrecorded {
			continue
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func accessOf(cmd *cobra.Command, args []string) access {
	a := access{Command: cmd.CommandPath(), UID: os.Getuid(), Build: build(), Args: []string{}}
	add := func(s string) {
		if len(a.Args) < maxArgs {
			a.Args = append(a.Args, s[:min(len(s), maxArg)])
		}
	}
	for _, arg := range args {
		add(arg)
	}
	cmd.Flags().Visit(func(f *pflag.Flag) { add("--" + f.Name + "=" + f.Value.String()) })
	if u, err := user.Current(); err == nil {
		a.User = u.Username
	}
	a.Host, _ = os.Hostname() // empty where nobody has named it
	return a
}

// try notes that logs are verified, which shows no record and is refused to
// nobody.
func (r *reads) try(cmd *cobra.Command, args []string, paths ...string) {
	if err := r.leave(cmd, args, paths...); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "sallyport: verified all the same, but the log will not hold that it was:", err)
	}
}
