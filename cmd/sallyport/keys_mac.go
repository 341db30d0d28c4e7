package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/inbox"
	"github.com/sallyport-ai/sallyport/audit/mackey"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func keysMACCommand() *cobra.Command {
	cmd := commandGroup("mac", "Use and destroy the keys of the MACs of prompts in records")
	cmd.AddCommand(keysMACCheckCommand(), keysMACDestroyCommand())
	return cmd
}

func keysMACCheckCommand() *cobra.Command {
	var dir, tenant, month string
	cmd := &cobra.Command{
		Use:   "check FILE --keys DIR --tenant NAME --month YYYY-MM",
		Short: "Print the MAC that the record of a request with this body holds",
		Long:  "Check prints what to look for in request.prompt_mac; - is standard input. The file is the exact body.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if args[0] == "-" {
				text, err = io.ReadAll(cmd.InOrStdin())
			}
			if err != nil {
				return fmt.Errorf("read body: %w", err)
			}
			mac, err := mackey.Check(dir, tenant, month, text)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), mac)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "keys", "", "directory of the keys: audit.mac_keys of the gateway (required)")
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant (required)")
	cmd.Flags().StringVar(&month, "month", "", "month of the record, in UTC (required)")
	return cmd
}

// destroyed is the note that keys are gone.
type destroyed struct {
	Action string       `json:"action"` // destroy_mac_keys
	Keys   []mackey.Key `json:"keys"`
	User   int          `json:"uid"`
}

// maxDestroyed bounds what one note says of keys, in bytes, and a key's share of it
// besides its tenant's name.
const (
	maxDestroyed = 6 << 10
	destroyedKey = 128
)

// destroyedAtOnce is how many of these keys one note has room for. A name that has
// no room by itself is cut in the note: the key's hash tells which it was.
func destroyedAtOnce(keys []mackey.Key) (n int) {
	for room := maxDestroyed; n < len(keys); n++ {
		if room -= destroyedKey + noteBytes(keys[n].Tenant); room < 0 && n > 0 {
			break
		}
	}
	return n
}

// noteBytes is how long a text is in a note, as JSON.
func noteBytes(text string) int {
	b, _ := json.Marshal(text) // a string always can be
	return len(b)
}

// noted are keys as a note names them.
func noted(keys []mackey.Key) []mackey.Key {
	keys = slices.Clone(keys)
	for i := range keys {
		if noteBytes(keys[i].Tenant) > maxDestroyed {
			keys[i].Tenant = strings.ToValidUTF8(keys[i].Tenant[:maxDestroyed/8], "") + "\u2026" // each byte takes 6 at most
		}
	}
	return keys
}

func keysMACDestroyCommand() *cobra.Command {
	var dir, log, tenant, before string
	cmd := &cobra.Command{
		Use:   "destroy --keys DIR --log DIR --before YYYY-MM [--tenant NAME]",
		Short: "Destroy the keys of months that are over, and have the log say so",
		Long: "Destroy leaves a note of it beside the log, which the gateway takes in as a record, and then\n" +
			"overwrites and removes the keys. The records stay as they are and verify as before; nobody can\n" +
			"tell any more what their MACs are of. Backups of the keys have to be destroyed as well.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" || log == "" || before == "" {
				return errors.New("--keys, --log and --before are required")
			}
			if _, err := time.Parse("2006-01", before); err != nil {
				return fmt.Errorf("--before: want YYYY-MM, got %q", before)
			}
			if now := time.Now().UTC().Format("2006-01"); before > now {
				return fmt.Errorf("--before %s: the month %s is not over, and its keys are in use", before, now)
			}
			if _, err := tlog.Origin(log); err != nil { // nobody would take the note in
				return err
			}
			keys, err := mackey.Find(dir, tenant, before)
			if err == nil && len(keys) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to destroy")
			}
			for len(keys) > 0 && err == nil {
				n := destroyedAtOnce(keys)
				err = destroyKeys(cmd.OutOrStdout(), dir, log, keys[:n])
				keys = keys[n:]
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "keys", "", "directory of the keys: audit.mac_keys of the gateway (required)")
	cmd.Flags().StringVar(&log, "log", "", "directory of the gateway's log (required)")
	cmd.Flags().StringVar(&tenant, "tenant", "", "of this tenant alone")
	cmd.Flags().StringVar(&before, "before", "", "month before which keys are destroyed (required)")
	return cmd
}

// destroyKeys notes it first: a key is never gone without a word.
func destroyKeys(out io.Writer, dir, log string, keys []mackey.Key) error {
	if err := inbox.Leave(log, audit.KindAdmin, destroyed{"destroy_mac_keys", noted(keys), os.Getuid()}); err != nil {
		return err
	}
	for _, k := range keys {
		if err := mackey.Destroy(dir, k); err != nil {
			return err
		}
		sayf(out, "destroyed: %s %s\n", k.Tenant, k.Month)
	}
	return nil
}
