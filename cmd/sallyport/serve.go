package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/spf13/cobra"
)

func serveCommand() *cobra.Command {
	var path string
	var check bool
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Run the gateway",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadGateway(path)
			if errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err != nil {
				return &exitError{exitBad, err}
			}
			logger := newLogger(cmd, slog.LevelInfo)
			if check {
				if err := checkGateway(cmd.Context(), cfg); err != nil {
					return &exitError{exitBad, err}
				}
				fmt.Fprintln(cmd.OutOrStdout(), path, "is good")
				return nil
			}
			g, err := buildGateway(cmd.Context(), cfg, logger)
			if err != nil {
				return &exitError{exitBad, err}
			}
			return g.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&path, "config", "sallyport.yaml", "configuration file")
	cmd.Flags().BoolVar(&check, "check", false, "report every problem of the configuration, and exit")
	return cmd
}

func relayCommand() *cobra.Command {
	var path string
	var check bool
	cmd := &cobra.Command{
		Use:   "relay --config FILE",
		Short: "Run the sidecar that stands beside one engine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadRelay(path)
			if errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err != nil {
				return &exitError{exitBad, err}
			}
			if check {
				fmt.Fprintln(cmd.OutOrStdout(), path, "is good")
				return nil
			}
			r, err := buildRelay(cmd.Context(), cfg, newLogger(cmd, slog.LevelInfo))
			if err != nil {
				return &exitError{exitBad, err}
			}
			return r.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&path, "config", "relay.yaml", "configuration file")
	cmd.Flags().BoolVar(&check, "check", false, "report every problem of the configuration, and exit")
	return cmd
}
