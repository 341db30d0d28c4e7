package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// vouchers are the witnesses whose word a user wants.
type vouchers struct {
	texts  []string
	quorum int
}

func (w *vouchers) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&w.texts, "witness", nil, "verifier key of a witness that has to vouch for it, or a file of such keys, one a line; may be given\nseveral times. Each counts for one: of an operator with several give one")
	cmd.Flags().IntVar(&w.quorum, "quorum", 0, "how many of the witnesses it takes; without it, all of them")
}

// load reads the keys.
func (w *vouchers) load() (tlog.Witnesses, error) {
	if len(w.texts) == 0 {
		if w.quorum != 0 {
			return tlog.Witnesses{}, errors.New("--quorum: of which witnesses? Give --witness")
		}
		return tlog.Witnesses{}, nil
	}
	var keys []string
	for _, text := range w.texts {
		_, bad := tlog.Trusted(1, text)
		if bad == nil {
			keys = append(keys, text)
			continue
		}
		lines, err := keyLines(text)
		if err != nil {
			return tlog.Witnesses{}, fmt.Errorf("--witness: %w; and no file: %w", bad, err)
		}
		keys = append(keys, lines...)
	}
	trusted, err := tlog.Trusted(w.quorum, keys...)
	if err != nil {
		return trusted, fmt.Errorf("--witness: %w", err)
	}
	return trusted, nil
}
