package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/apikey"
)

func keysPepperCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "pepper --out FILE",
		Short: "Make the secret that API keys are stored under",
		Long: "Pepper writes 32 random bytes to FILE (mode 0600), which must not exist yet. Keep it apart\n" +
			"from the store: whoever has both can try keys against it, and every key ends with it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return errors.New("--out is required")
			}
			if err := apikey.CreatePepper(out); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "pepper written to %s\n", out)
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "file for the pepper")
	return cmd
}

func keysNewCommand() *cobra.Command {
	var (
		store, pepperFile, kind, expires string
		asJSON                           bool
		r                                apikey.Record
	)
	cmd := &cobra.Command{
		Use:   "new --store FILE --pepper FILE --tenant NAME --subject NAME",
		Short: "Make an API key and show it once",
		Long: "New adds a key to the store, which is made if it is not there, and prints the key: the only\n" +
			"time that it can be seen. Gateways that read the store take it from their next request on.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if store == "" || pepperFile == "" || r.Tenant == "" || r.Subject == "" {
				return errors.New("--store, --pepper, --tenant and --subject are required")
			}
			life, err := parseLife(expires)
			if err != nil {
				return err
			}
			pepper, err := apikey.ReadPepper(pepperFile)
			if err != nil {
				return fmt.Errorf("%w (`sallyport keys pepper` makes one)", err)
			}
			r.Kind, r.Created = identity.Kind(kind), time.Now()
			r.Expires = r.Created.Add(life)
			key, made, err := apikey.Create(store, pepper, r)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "API key %s of %s, tenant %s, until %s. It is not shown again.\n",
				made.ID, made.Subject, made.Tenant, made.Expires.Format(time.RFC3339))
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
					Key string `json:"key"`
					shownKey
				}{key.Secret(), show(&made)})
			}
			fmt.Fprintln(cmd.OutOrStdout(), key.Secret())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&store, "store", "", "the store, as in identity.api_keys.file")
	f.StringVar(&pepperFile, "pepper", "", "the pepper, as in identity.api_keys.pepper_file")
	f.StringVar(&r.Tenant, "tenant", "", "whose tenant the holder is")
	f.StringVar(&r.Subject, "subject", "", "who the holder is")
	f.StringVar(&kind, "kind", string(identity.Workload), "human, workload or agent")
	f.StringVar(&r.Client, "client", "", "client_id of the holder's registration in policy data, where it has one")
	f.StringArrayVar(&r.Scopes, "scope", nil, "a scope; may be given again")
	f.StringVar(&r.Label, "label", "", "for people: what the key is for")
	f.StringVar(&expires, "expires", "90d", "life of the key, at most 366d")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func keysListCommand() *cobra.Command {
	var (
		store  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list --store FILE",
		Short: "List API keys, without their secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if store == "" {
				return errors.New("--store is required")
			}
			records, err := apikey.Read(store)
			if err != nil {
				return fmt.Errorf("list API keys: %w", err)
			}
			keys := make([]shownKey, len(records))
			for i, r := range records {
				keys[i] = show(r)
			}
			if asJSON {
				return printObjects(cmd.OutOrStdout(), keys)
			}
			return printKeys(cmd.OutOrStdout(), keys)
		},
	}
	cmd.Flags().StringVar(&store, "store", "", "the store")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	return cmd
}

func keysRevokeCommand() *cobra.Command {
	var (
		store  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "revoke --store FILE ID",
		Short: "Revoke an API key",
		Long: "Revoke withdraws the key with the ID given; a whole key, as a leak may have it, names itself.\n" +
			"Gateways that read the store refuse it from their next request on, and end its streams at the\n" +
			"next reauthorization. It exits with 1 if the store has no such key: then it is withdrawn nowhere.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if store == "" {
				return errors.New("--store is required")
			}
			id := args[0]
			if key, err := apikey.ParseKey(id); err == nil {
				id = key.ID()
			} else if len(id) > maxKeyID { // which may hold a secret, and is not repeated
				return cannotTell(fmt.Errorf("revoke API key: neither an ID nor a whole key: %w", err))
			}
			r, err := apikey.Revoke(store, id, time.Now())
			if errors.Is(err, apikey.ErrNoSuchKey) {
				if asJSON {
					err = errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(unknownKey{id, "unknown"}), err)
				}
				return &exitError{exitBad, err}
			}
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(show(&r))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s revoked %s\n", r.ID, r.Revoked.Format(time.RFC3339))
			return nil
		},
	}
	cmd.Flags().StringVar(&store, "store", "", "the store")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// maxKeyID bounds what is taken for the ID of a key; a whole key is longer.
const maxKeyID = 32

// unknownKey is a key that the store does not have, as JSON.
type unknownKey struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// shownKey is a key as commands show it: neither its secret nor its MAC.
type shownKey struct {
	ID      string    `json:"id"`
	Tenant  string    `json:"tenant"`
	Subject string    `json:"subject"`
	Kind    string    `json:"kind"`
	Client  string    `json:"client,omitempty"`
	Scopes  []string  `json:"scopes,omitempty"`
	Label   string    `json:"label,omitempty"`
	State   string    `json:"state"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Revoked time.Time `json:"revoked,omitzero"`
}

func show(r *apikey.Record) shownKey {
	return shownKey{
		ID: r.ID, Tenant: r.Tenant, Subject: r.Subject, Kind: string(r.Kind), Client: r.Client, Scopes: r.Scopes, Label: r.Label,
		State: string(r.State(time.Now())), Created: r.Created, Expires: r.Expires, Revoked: r.Revoked,
	}
}

// printObjects prints a list as one JSON object a line.
func printObjects[T any](to io.Writer, list []T) error {
	enc := json.NewEncoder(to)
	for _, v := range list {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

func printKeys(to io.Writer, keys []shownKey) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tTENANT\tSUBJECT\tKIND\tSCOPES\tEXPIRES\tLABEL")
	for _, k := range keys {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.State, k.Tenant, k.Subject, k.Kind,
			strings.Join(k.Scopes, ","), k.Expires.Format(time.DateOnly), k.Label)
	}
	return w.Flush()
}

// parseLife reads a duration, in which d is a day of 24 hours.
func parseLife(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("--expires %q: want a number of days, as in 90d", text)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("--expires %q: want 90d or 12h", text)
	}
	return d, nil
}
