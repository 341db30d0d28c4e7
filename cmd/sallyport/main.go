// Command sallyport is the gateway, the relay that stands beside each engine, a
// stand-in engine, and the tools around them, in one binary.
//
// Start at `sallyport demo`. wire.go builds a gateway from its configuration, in
// the order of one visible function; wire_relay.go builds a relay.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of every command.
const (
	exitBad        = 1 // the answer is bad: a log does not verify, a step failed
	exitCannotTell = 2 // there is no answer: no key, no file, a wrong flag
)

// exitError is an error that has its exit code; any other error exits with
// exitCannotTell. A nil Err has been told to the user already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	// Nothing of ours uses the standard logger. HTTP transports do, and quote
	// what an engine says out of turn, which may be part of somebody's answer.
	log.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	root := commands()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	code, told := exitCodeOf(err)
	if !told {
		complain(root.ErrOrStderr(), err)
	}
	return code
}

// exitCodeOf returns the exit code of an error, and whether the user has been
// told of it.
func exitCodeOf(err error) (code int, told bool) {
	var ee *exitError
	if errors.As(err, &ee) {
		return ee.code, ee.err == nil
	}
	return exitCannotTell, false
}

func commands() *cobra.Command {
	root := &cobra.Command{
		Use:           "sallyport",
		Short:         "A gateway for LLM fleets that authenticates, decides, places and writes down",
		SilenceUsage:  true,
		SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{
			DisableDefaultCmd: true,
		},
	}
	root.AddCommand(demoCommand(), serveCommand(), relayCommand(), simCommand(), auditCommand(), keysCommand(), tokensCommand(), eventsCommand(), labCommand(), policyCommand(), promptCommand(), versionCommand())
	return root
}

// commandGroup is a command that only has commands below it. Cobra takes one
// that it does not know there, and none, for a request for help.
func commandGroup(name, short string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			if err := cmd.Help(); err != nil {
				return err
			}
			return cannotTell(fmt.Errorf("%s: which of its commands?", cmd.CommandPath()))
		},
	}
}

// newLogger writes what an operator reads; answers of commands go elsewhere.
func newLogger(cmd *cobra.Command, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
}
