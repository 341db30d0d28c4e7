package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/policy"
)

func auditExplainCommand() *cobra.Command {
	var read reads
	var policies string
	var asJSON bool
	var from uint64
	cmd := &cobra.Command{
		Use:   "explain (DIR | EXCERPT) ID",
		Short: "Say in words what was decided and why, and decide again from what is recorded",
		Long: "Explain tells a decision and how it ended, then makes it again: it asks the policy that was\n" +
			"active then, from the bundles that the log keeps, the recorded question, and places the request\n" +
			"among the recorded candidates. Which replicas there were, and which of them could not be chosen,\n" +
			"it finds in the log's fleet records. It exits with 0 if the same follows, 1 if something else does,\n" +
			"and 2 if something could not be made again, and says what and why.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if policies == "" && !excerpt.Is(args[0]) { // which holds none
				policies = policyArchive(args[0])
			}
			if err := read.note(cmd, args, args[0]); err != nil {
				return err
			}
			entries, err := find(args[0], args[1], from)
			if err != nil {
				return err
			}
			again := recomputer{policies: policies}
			stories, err := again.stories(cmd.Context(), entries)
			if err != nil {
				return err
			}
			if err := fleets(args[0], stories); err != nil {
				return err
			}
			for i, s := range stories {
				if asJSON {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(s)
				} else {
					if i > 0 {
						fmt.Fprintln(cmd.OutOrStdout())
					}
					err = s.print(cmd.OutOrStdout())
				}
				if err != nil {
					return err
				}
			}
			return again.verdict()
		},
	}
	read.flag(cmd)
	cmd.Flags().StringVar(&policies, "policies", "", "directory of archived bundles; without it, the log's own")
	cmd.Flags().Uint64Var(&from, "from", 0, "first index to look at")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one attempt a line")
	return cmd
}

// recomputed is whether something came out again as it is recorded.
type recomputed struct {
	Result string `json:"result"` // same, different, unknown or none: nothing to make again
	Detail string `json:"detail,omitempty"`
}

// The results.
const (
	sameAgain      = "same"
	differentAgain = "different"
	unknownAgain   = "unknown"
	nothingAgain   = "none"
)

// story is one attempt: what is recorded of it, and what came of making it
// again.
type story struct {
	Index     uint64        `json:"index"`
	Decision  *audit.Record `json:"decision"`
	Outcome   *audit.Record `json:"outcome"`
	Policy    recomputed    `json:"policy"`
	Placement recomputed    `json:"placement"`
	Seed      recomputed    `json:"seed"`
	Fleet     *fleetThen    `json:"fleet,omitempty"` // that it was placed in

	rules map[string]string // descriptions by id, if the policy is at hand
}

// recomputer makes decisions again.
type recomputer struct {
	policies string
	loaded   map[string]*policy.Snapshot
	results  []recomputed
}

// stories puts decisions and outcomes together and makes each again.
func (c *recomputer) stories(ctx context.Context, entries []tlog.Entry) ([]*story, error) {
	var out []*story
	for _, e := range entries {
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", e.Index, err)
		}
		switch r.Kind {
		case audit.KindDecision:
			s := &story{Index: e.Index, Decision: r}
			c.again(ctx, s)
			out = append(out, s)
		case audit.KindOutcome:
			if i := slices.IndexFunc(out, func(s *story) bool { return s.Decision.Attempt == r.Attempt }); i >= 0 {
				out[i].Outcome = r
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no decision with that id", tlog.ErrNotFound)
	}
	return out, nil
}

func (c *recomputer) again(ctx context.Context, s *story) {
	s.Policy = c.policy(ctx, s)
	s.Placement, s.Seed = placeAgain(s.Decision)
	c.results = append(c.results, s.Policy, s.Placement, s.Seed)
}

// verdict is the exit code for all that was made again.
func (c *recomputer) verdict() error {
	has := func(result string) bool {
		return slices.ContainsFunc(c.results, func(r recomputed) bool { return r.Result == result })
	}
	switch {
	case has(differentAgain):
		return &exitError{code: exitBad}
	case has(unknownAgain):
		return &exitError{code: exitCannotTell}
	}
	return nil
}

// policy asks the policy of then the question of then.
func (c *recomputer) policy(ctx context.Context, s *story) recomputed {
	rec := s.Decision
	if rec.Input == nil || rec.Policy == nil {
		return recomputed{nothingAgain, "policy was not asked"}
	}
	if c.policies == "" {
		return recomputed{unknownAgain, fmt.Sprintf("an excerpt holds no policies: with --policies, name a folder with the bundle %s, as policy/ of the log or of a bundle", rec.Policy.Digest)}
	}
	snap, err := c.snapshot(ctx, rec.Policy.Digest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return recomputed{unknownAgain, fmt.Sprintf("the bundle %s is not in %s", rec.Policy.Digest, c.policies)}
	case err != nil:
		return recomputed{unknownAgain, err.Error()}
	}
	s.rules = snap.Rules()
	in, err := policy.ParseInput(rec.Input)
	if err != nil {
		return recomputed{unknownAgain, err.Error()} // such as a question that was too long to be kept
	}
	_, ev, err := snap.Decide(ctx, in)
	if errors.Is(err, policy.ErrTimeout) {
		return recomputed{unknownAgain, err.Error()}
	}
	diffs, err := differences(rec.Decision, ev.DecisionJSON)
	if err != nil {
		return recomputed{unknownAgain, err.Error()}
	}
	if !slices.Equal(ev.Clamps, rec.Policy.Clamps) {
		diffs = append(diffs, fmt.Sprintf("clamps: %v → %v", rec.Policy.Clamps, ev.Clamps))
	}
	if len(diffs) > 0 {
		return recomputed{differentAgain, strings.Join(diffs, "; ")}
	}
	return recomputed{sameAgain, fmt.Sprintf("bundle %.12s answers the recorded question as recorded", rec.Policy.Digest)}
}

func (c *recomputer) snapshot(ctx context.Context, digest string) (*policy.Snapshot, error) {
	if s := c.loaded[digest]; s != nil {
		return s, nil
	}
	s, err := policy.LoadArchived(ctx, c.policies, digest, policy.Config{Timeout: evaluationTime})
	if err != nil {
		return nil, err
	}
	if c.loaded == nil {
		c.loaded = make(map[string]*policy.Snapshot)
	}
	c.loaded[digest] = s
	return s, nil
}

// placeAgain places the request among the recorded candidates, and holds the
// seed against the id that it must follow from.
func placeAgain(rec *audit.Record) (place, seed recomputed) {
	p := rec.Placement
	if p == nil {
		return recomputed{nothingAgain, "nothing was placed"}, recomputed{nothingAgain, "nothing was placed"}
	}
	seed = recomputed{sameAgain, "it follows from the decision's id"}
	if want := gateway.Seed(rec.ID, rec.Attempt); p.Seed != want {
		seed = recomputed{differentAgain, fmt.Sprintf("recorded %d, from the id follows %d", p.Seed, want)}
	}
	got, err := gateway.Recompute(rec)
	switch {
	case errors.Is(err, gateway.ErrNotRecorded):
		return recomputed{unknownAgain, err.Error()}, seed
	case err != nil:
		return recomputed{differentAgain, err.Error()}, seed
	case got.ID != p.Replica:
		return recomputed{differentAgain, fmt.Sprintf("recorded %s, from the candidates follows %s", p.Replica, got.ID)}, seed
	}
	for _, again := range got.Candidates {
		for _, then := range p.Candidates {
			if then.Replica == again.ID && then.CostNS != again.CostNS {
				return recomputed{differentAgain, fmt.Sprintf("%s cost %d ns, from its inputs follow %d ns", again.ID, then.CostNS, again.CostNS)}, seed
			}
		}
	}
	return recomputed{sameAgain, fmt.Sprintf("the recorded %d candidates give the same choice at the same costs", len(p.Candidates))}, seed
}
