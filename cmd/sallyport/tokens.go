package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/identity/revocation"
	"github.com/sallyport-ai/sallyport/identity/valkey"
)

func tokensCommand() *cobra.Command {
	cmd := commandGroup("tokens", "Revoke access tokens")
	cmd.AddCommand(tokensRevokeCommand(), tokensListCommand())
	return cmd
}

func tokensRevokeCommand() *cobra.Command {
	var (
		config, before string
		asJSON         bool
		e              revocation.Entry
	)
	cmd := &cobra.Command{
		Use:   "revoke --config FILE (--issuer URL | --tenant NAME) [--subject NAME] [--client ID] [--jti ID] [--before TIME]",
		Short: "Revoke the access tokens of an issuer, tenant, subject or client, or one token",
		Long: "Revoke withdraws the tokens (access tokens and JWT-SVIDs) that agree with all names given and\n" +
			"were issued until now, or until --before. Every gateway that shares the configured Valkey, or\n" +
			"reads the configured file, refuses them within two seconds and ends their streams. It is not\n" +
			"taken back; tokens issued afterwards are good. API keys are revoked by `sallyport keys revoke`.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			if before != "" {
				var err error
				if e.Before, err = time.Parse(time.RFC3339, before); err != nil {
					return fmt.Errorf("--before %q: want a time such as %s", before, now.Format(time.RFC3339))
				}
			}
			if e.By == "" {
				if who, err := user.Current(); err == nil {
					e.By = who.Username
				}
			}
			entry, err := revocation.New(e, now)
			if err != nil {
				return err
			}
			if err := revoke(cmd.Context(), config, entry, now); err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(entry)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s revokes tokens by %s, issued until %s\n", entry.ID, strings.Join(entry.Of(), ", "), entry.Before.Format(time.RFC3339))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "sallyport.yaml", "configuration file of a gateway")
	f.StringVar(&e.Issuer, "issuer", "", "the issuer, as in iss; for JWT-SVIDs the trust domain")
	f.StringVar(&e.Tenant, "tenant", "", "the tenant")
	f.StringVar(&e.Subject, "subject", "", "the subject, or one who acts for others")
	f.StringVar(&e.Client, "client", "", "the OAuth client")
	f.StringVar(&e.TokenID, "jti", "", "one token's jti")
	f.StringVar(&before, "before", "", "revoke tokens issued until then (RFC 3339); default now")
	f.StringVar(&e.By, "by", "", "who revokes, for records; default the user that runs the command")
	f.StringVar(&e.Reason, "reason", "", "why, for records")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// revocations opens the place of a gateway's revocations: one of the two is nil.
func revocations(config string) (*valkey.Store, revocation.File, error) {
	cfg, err := loadGateway(config)
	switch {
	case err != nil:
		return nil, "", err
	case cfg.Identity.Valkey.URL != "":
		shared := cfg.Identity.Valkey
		shared.WhenDown, shared.Timeout = "deny", max(shared.Timeout, time.Second)
		store, err := valkey.New(shared, valkey.Options{})
		return store, "", err
	case cfg.Identity.Revocations.File != "":
		return nil, revocation.File(cfg.Identity.Revocations.File), nil
	}
	return nil, "", errors.New("the configuration has neither identity.valkey nor identity.revocations: no gateway would hear of it")
}

func revoke(ctx context.Context, config string, e revocation.Entry, now time.Time) error {
	store, file, err := revocations(config)
	if err != nil {
		return err
	}
	if store == nil {
		return revocation.Revoke(string(file), e, now)
	}
	return errors.Join(store.Revoke(ctx, e, now), store.Close())
}

func tokensListCommand() *cobra.Command {
	var (
		config string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list --config FILE",
		Short: "List the revocations in force",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, file, err := revocations(config)
			if err != nil {
				return err
			}
			var source revocation.Source = file
			if store != nil {
				source = store
				defer store.Close()
			}
			all, err := source.Read(cmd.Context())
			if err != nil {
				return fmt.Errorf("list revocations: %w", err)
			}
			entries := make([]revocation.Entry, 0, len(all))
			for _, e := range all {
				if !e.Ended(time.Now()) {
					entries = append(entries, e)
				}
			}
			if asJSON {
				return printObjects(cmd.OutOrStdout(), entries)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tISSUED UNTIL\tISSUER\tTENANT\tSUBJECT\tCLIENT\tJTI\tBY\tREASON")
			for _, e := range entries {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.ID, e.Before.Format(time.RFC3339), e.Issuer, e.Tenant, e.Subject, e.Client, e.TokenID, e.By, e.Reason)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&config, "config", "sallyport.yaml", "configuration file of a gateway")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	return cmd
}
