package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit/durable"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// pins are the verifier keys that a user brings along, by origin.
type pins struct {
	files []string
	keys  map[string][]note.Verifier // several where a log has changed its key
	lines []string                   // the keys as text
	used  bool                       // one of them was a log's
}

func (p *pins) flag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&p.files, "key", nil, "file with verifier keys of the logs, one a line; may be given several times")
	takeVerifyKey(cmd)
}

// takeVerifyKey lets --verify-key stand for the --key of a command that verifies.
func takeVerifyKey(cmd *cobra.Command) {
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "verify-key" {
			name = "key"
		}
		return pflag.NormalizedName(name)
	})
}

// load reads the files. Without a key nothing can be told of any log.
func (p *pins) load() error {
	p.keys = make(map[string][]note.Verifier)
	for _, file := range p.files {
		keys, err := keyLines(file)
		if err != nil {
			return cannotTell(fmt.Errorf("read verifier keys: %w", err))
		}
		for _, key := range keys {
			if err := p.pin(key); err != nil {
				return cannotTell(fmt.Errorf("%s: %w", file, err))
			}
		}
	}
	return nil
}

// maxKeyFile bounds a file of keys.
const maxKeyFile = 1 << 20

// keyLines reads a file of keys, one a line, with comments that begin with #.
func keyLines(file string) (keys []string, err error) {
	text, err := durable.ReadRegular(file, maxKeyFile)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	return keys, nil
}

// pin adds one verifier key.
func (p *pins) pin(vkey string) error {
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return fmt.Errorf("verifier key: %w", err)
	}
	same := func(o note.Verifier) bool { return o.KeyHash() == v.KeyHash() }
	if !slices.ContainsFunc(p.keys[v.Name()], same) {
		p.keys[v.Name()], p.lines = append(p.keys[v.Name()], v), append(p.lines, vkey)
	}
	return nil
}

// of finds the key of a log directory.
func (p *pins) of(dir string) (note.Verifier, error) {
	if len(p.keys) == 0 {
		return nil, cannotTell(errNoPin)
	}
	origin, err := tlog.Origin(dir)
	if err != nil {
		// A log whose records are gone may still say how many there were.
		text, _, lost := tlog.Published(dir)
		if lost != nil {
			return nil, cannotTell(err)
		}
		origin, _, _ = strings.Cut(string(text), "\n")
	}
	return p.named(origin)
}

// named finds the key of a log by what it calls itself.
func (p *pins) named(origin string) (note.Verifier, error) {
	if keys := p.keys[origin]; len(keys) > 0 {
		p.used = true
		return keys[0], nil
	}
	switch {
	case len(p.keys) == 0:
		return nil, cannotTell(errNoPin)
	case len(p.keys) == 1 && !p.used: // what was meant is clear, and so is what is wrong
		for _, keys := range p.keys {
			return keys[0], nil
		}
	}
	return nil, cannotTell(fmt.Errorf("no pinned key for log %q", origin))
}

// signer finds the key that signed a checkpoint, of those of its log.
func (p *pins) signer(origin string, checkpoint []byte) (note.Verifier, error) {
	for _, key := range p.keys[origin] {
		if _, err := tlog.OpenCheckpoint(checkpoint, key); err == nil {
			p.used = true
			return key, nil
		}
	}
	return p.named(origin)
}

var errNoPin = errors.New("no pinned key: give the log's verifier key with --key; without it a forged log would look as good as a true one")

// cannotTell is an error of a command that could not answer.
func cannotTell(err error) error { return &exitError{exitCannotTell, err} }
