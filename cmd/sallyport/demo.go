package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

type demoOptions struct {
	once      bool
	json      bool
	readyFile string
	dir       string
	listen    string
	admin     string
}

func demoCommand() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run everything on this machine: engines, relays, a gateway, and a tour of what it does",
		Long: "Demo needs nothing installed and no network. It starts six stand-in engines with a relay each,\n" +
			"a gateway with the policy that ships, a development SPIFFE authority and a development token\n" +
			"issuer, walks through what the gateway does, and then keeps serving.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd, o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "end after the tour")
	f.BoolVar(&o.json, "json", false, "print one JSON object per step")
	f.StringVar(&o.readyFile, "ready-file", "", "write where and as whom to connect to this file once serving")
	f.StringVar(&o.dir, "dir", "", "keep everything here; a new temporary directory if empty")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address of the gateway")
	f.StringVar(&o.admin, "admin", "127.0.0.1:0", "address of the admin listener")
	return cmd
}

// runDemo builds the world, tours it, and keeps it running unless told not to.
func runDemo(cmd *cobra.Command, o demoOptions) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "sallyport-demo-"); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if there, err := os.ReadDir(o.dir); err == nil && len(there) > 0 {
		return fmt.Errorf("demo: %s is not empty: name a directory that is, or none", o.dir)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	world, err := newDemoWorld(ctx, o, newLogger(cmd, slog.LevelWarn), newLogger(cmd, slog.LevelError))
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, world.stop()) }()

	tour := newTour(world, newPrinter(cmd.OutOrStdout(), o.json))
	if err := tour.run(ctx); err != nil {
		return &exitError{exitBad, fmt.Errorf("demo: %w", err)}
	}
	if o.once {
		// Stop first: then the log is closed, and what is verified is all of it.
		if err := world.stop(); err != nil {
			return &exitError{exitBad, fmt.Errorf("demo: %w", err)}
		}
		if err := tour.summarise(); err != nil {
			return err
		}
		if !o.json {
			world.audited(cmd.OutOrStdout())
		}
		return nil
	}
	world.toured = time.Now()
	if err := world.writeRegister(); err != nil {
		return err
	}
	if err := tour.summarise(); err != nil {
		return err
	}
	if err := world.announce(o.readyFile); err != nil {
		return err
	}
	if !o.json {
		world.explain(cmd.OutOrStdout())
		world.audited(cmd.OutOrStdout())
	}
	<-ctx.Done()
	return nil
}

// readiness is what --ready-file receives.
type readiness struct {
	URL      string            `json:"url"`
	CAFile   string            `json:"ca_file"`
	Tokens   map[string]string `json:"tokens"`
	Model    string            `json:"model"`
	AdminURL string            `json:"admin_url"`
	LogDir   string            `json:"log_dir"`
	LogKey   string            `json:"log_key"`
}

func (w *demoWorld) ready() readiness {
	return readiness{
		URL: w.url, CAFile: w.web.CA, Tokens: w.tokens, Model: demoModel,
		AdminURL: w.adminURL, LogDir: w.logDir, LogKey: w.logKey,
	}
}

// announce writes the ready file in one step, so that who waits for it never
// reads half of it.
func (w *demoWorld) announce(path string) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(w.ready(), "", "  ")
	if err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	if err := durable.Replace(path, b); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return nil
}

// explain prints commands that work while the demo serves.
func (w *demoWorld) explain(out io.Writer) {
	names := make([]string, 0, len(w.tokens))
	for name := range w.tokens {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintf(out, `
Serving %[1]s until interrupted. Try, in another terminal:

  curl --cacert '%[2]s' -H "Authorization: Bearer $(cat '%[3]s/acme-user')" %[1]s/v1/models

  curl --cacert '%[2]s' -H "Authorization: Bearer $(cat '%[3]s/acme-user')" -H "Content-Type: application/json" \
    -d '{"model":"small","messages":[{"role":"user","content":"Which form do I need?"}],"stream":true}' \
    -N -i %[1]s/v1/chat/completions

Tokens: %[4]v in %[3]s
Metrics and readiness: %[5]s/metrics %[5]s/readyz
The log: go run ./cmd/sallyport audit verify '%[6]s' --key '%[7]s'
         go run ./cmd/sallyport audit show '%[6]s'
`, w.url, w.web.CA, w.tokenDir, names, w.adminURL, w.logDir, w.logKey)
}
