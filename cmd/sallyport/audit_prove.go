package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/durable"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

const proofSuffix = ".tlog-proof"

func auditProveCommand() *cobra.Command {
	var read reads
	var out string
	var from uint64
	cmd := &cobra.Command{
		Use:   "prove DIR ID [--out DIR]",
		Short: "Prove that the records of a decision are in the log, each in a file that stands for itself",
		Long: "Prove writes, for each record of the decision, its exact bytes (ID-INDEX.json) and a proof that\n" +
			"they are in the log (ID-INDEX.tlog-proof, in the form of https://c2sp.org/tlog-proof), which\n" +
			"holds the record as well. `sallyport audit verify FILE.tlog-proof --key FILE` checks it\n" +
			"offline, and so does other software that knows the form.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := read.note(cmd, args, args[0]); err != nil {
				return err
			}
			entries, err := tlog.Find(args[0], args[1], from)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(out, 0o700); err != nil {
				return fmt.Errorf("write proof: %w", err)
			}
			for _, e := range entries {
				proof, err := tlog.Prove(args[0], e.Index)
				if err != nil {
					return err
				}
				base := filepath.Join(out, fmt.Sprintf("%s-%d", args[1], e.Index))
				for name, data := range map[string][]byte{base + ".json": e.Leaf, base + proofSuffix: tlog.WithExtra(proof, e.Leaf)} {
					if err := os.WriteFile(name, data, 0o600); err != nil {
						return fmt.Errorf("write proof: %w", err)
					}
				}
				fmt.Fprintln(cmd.OutOrStdout(), base+proofSuffix)
			}
			return nil
		},
	}
	read.flag(cmd)
	cmd.Flags().StringVar(&out, "out", ".", "directory to write to")
	cmd.Flags().Uint64Var(&from, "from", 0, "first index to look at")
	return cmd
}

// proofResult is what verifying a proof prints.
type proofResult struct {
	Proof     string    `json:"proof"`
	Origin    string    `json:"origin"`
	Index     uint64    `json:"index"`
	Witnesses []string  `json:"witnesses,omitempty"` // who vouch for it, of those asked for
	OK        bool      `json:"ok"`
	Code      tlog.Code `json:"code,omitempty"` // not_anchored: it is proven, but too few vouch for that
	Detail    string    `json:"detail,omitempty"`
}

// maxProof bounds a proof, and a leaf beside one.
const maxProof = 1 << 20

// proof verifies a proof that was made by `audit prove`, or by other software
// of a leaf that lies beside it.
func (v *verification) proof(path string, of *side) error {
	text, err := durable.ReadRegular(path, maxProof)
	if err != nil {
		return cannotTell(err)
	}
	leaf, err := tlog.Extra(text)
	if err == nil && leaf == nil {
		leaf, err = durable.ReadRegular(strings.TrimSuffix(path, proofSuffix)+".json", maxProof)
	}
	if err != nil {
		return cannotTell(fmt.Errorf("%s: %w", path, err))
	}
	origin, checkpoint := tlog.ProofOf(text)
	key, err := v.pins.signer(origin, checkpoint)
	if err != nil {
		return err
	}
	r := proofResult{Proof: path, Origin: key.Name()}
	r.Index, err = tlog.CheckProof(text, leaf, key)
	if err != nil {
		r.Detail = err.Error()
	} else if r.Witnesses, r.Code, r.Detail, err = of.vouch(checkpoint); err != nil {
		return cannotTell(err)
	}
	r.OK = r.Detail == ""
	v.bad = v.bad || !r.OK
	return v.print(r, func() {
		switch {
		case r.Code != "":
			sayf(v.out, "%s: %s: %s\n", wrong(r.Code), path, r.Detail)
		case !r.OK:
			sayf(v.out, "NOT PROVEN: %s: %s\n", path, r.Detail)
		default:
			sayf(v.out, "proven: record %d of %s is\n%s\n", r.Index, r.Origin, string(leaf))
			v.printWitnesses(r.Witnesses)
		}
	})
}
