package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/policy"
)

// evaluationTime is what an explanation may take: there is no caller to wait.
const evaluationTime = 5 * time.Second

func policyExplainCommand() *cobra.Command {
	var from bundleFlags
	var input, record string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain (--input FILE | --record LOGDIR ID)",
		Short: "Say what policy decides of a request, and why",
		Long: "Explain asks a bundle about a policy input in JSON, from a file or standard input (-), or about\n" +
			"the input of a recorded decision, and says how the answer differs from the recorded one.\n" +
			"It exits with 0 if the request is allowed, 1 if not, and 2 if it cannot tell.",
		Args: func(cmd *cobra.Command, args []string) error {
			want := 0
			if record != "" {
				want = 1
			}
			return cobra.ExactArgs(want)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var rec *audit.Record
			text, err := readInput(cmd.InOrStdin(), input)
			if record != "" {
				if rec, err = decided(record, args[0]); err == nil {
					text = rec.Input
				}
			}
			if err != nil {
				return err
			}
			engine, err := from.load(cmd.Context())
			if err != nil {
				return err
			}
			x, err := explain(cmd.Context(), engine.Snapshot(), text, rec)
			if err != nil {
				return err
			}
			if err := x.print(cmd.OutOrStdout(), asJSON); err != nil {
				return err
			}
			if !x.Allow {
				return &exitError{code: exitBad}
			}
			return nil
		},
	}
	from.add(cmd)
	cmd.Flags().StringVar(&input, "input", "", "policy input in JSON; - is standard input")
	cmd.Flags().StringVar(&record, "record", "", "audit log that holds the decision with the ID given")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("input", "record")
	cmd.MarkFlagsOneRequired("input", "record")
	return cmd
}

func readInput(stdin io.Reader, name string) (text []byte, err error) {
	switch name {
	case "":
		return nil, nil
	case "-":
		text, err = io.ReadAll(stdin)
	default:
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("read policy input: %w", err)
	}
	return text, nil
}

// decided finds the last decision of that id for which policy was asked.
func decided(dir, id string) (*audit.Record, error) {
	if _, err := tlog.Origin(dir); err != nil {
		return nil, err
	}
	entries, err := tlog.Find(dir, id, 0)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(entries) {
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			return nil, err
		}
		if r.Kind == audit.KindDecision && r.Input != nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("policy was not asked about %s", id)
}

// explanation is what explain prints.
type explanation struct {
	Allow    bool            `json:"allow"` // by the decision, and with the tools declared
	Revision string          `json:"revision"`
	Digest   string          `json:"digest"`
	Reasons  []string        `json:"reasons"`
	Rules    []firedRule     `json:"rules"`
	Clamps   []clamped       `json:"clamps"`
	Error    string          `json:"error,omitempty"` // why there is no answer, which denies
	Decision policy.Decision `json:"decision"`        // after the clamps
	Recorded *recorded       `json:"recorded,omitempty"`

	input policy.Input
}

type firedRule struct {
	ID          string `json:"id"`
	Description string `json:"description,omitempty"`
}

type clamped struct {
	Clamp string `json:"clamp"`
	Text  string `json:"text"`
}

// recorded is what was decided at the time, and what Rego would answer
// differently now.
type recorded struct {
	Status      string   `json:"status"`
	Reason      string   `json:"reason,omitempty"`
	Revision    string   `json:"revision"`
	Digest      string   `json:"digest"`
	Differences []string `json:"differences"`
}

func explain(ctx context.Context, snap *policy.Snapshot, text []byte, rec *audit.Record) (*explanation, error) {
	in, err := policy.ParseInput(text)
	if err != nil {
		return nil, err
	}
	d, ev, err := snap.Decide(ctx, in)
	x := &explanation{
		Allow: d.Allow, Revision: snap.Revision(), Digest: snap.Digest(), Reasons: d.Reasons, Decision: d,
		Rules: []firedRule{}, Clamps: []clamped{}, input: in,
	}
	if err != nil {
		x.Error = err.Error()
	}
	for _, tool := range in.Request.Tools { // what the gateway holds against the answer
		if d.Allow && d.ToolsAllow != nil && !slices.Contains(d.ToolsAllow, tool) {
			x.Allow, x.Reasons = false, []string{"tool_not_allowed"}
		}
	}
	describe := snap.Rules()
	for _, id := range ev.Rules {
		x.Rules = append(x.Rules, firedRule{id, describe[id]})
	}
	for _, c := range ev.Clamps {
		x.Clamps = append(x.Clamps, clamped{c, policy.ClampText(c)})
	}
	if rec == nil {
		return x, nil
	}
	x.Recorded = &recorded{Status: rec.Status, Reason: rec.Reason}
	if rec.Policy != nil {
		x.Recorded.Revision, x.Recorded.Digest = rec.Policy.Revision, rec.Policy.Digest
	}
	x.Recorded.Differences, err = differences(rec.Decision, ev.DecisionJSON)
	return x, err
}

// differences compares two answers of Rego; null is none.
func differences(before, now []byte) ([]string, error) {
	var decisions [2]*policy.Decision
	for i, text := range [][]byte{before, now} {
		if text == nil {
			continue
		}
		if err := json.Unmarshal(text, &decisions[i]); err != nil {
			return nil, fmt.Errorf("read decision: %w", err)
		}
	}
	switch a, b := decisions[0], decisions[1]; {
	case a == nil && b == nil:
		return []string{}, nil
	case a == nil:
		return []string{"there was no answer"}, nil
	case b == nil:
		return []string{"there is no answer any more"}, nil
	default:
		return append([]string{}, policy.Diff(*a, *b)...), nil
	}
}

func (x *explanation) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(x)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(label, format string, args ...any) {
		sayf(t, "%s\t"+format+"\n", append([]any{label}, args...)...)
	}
	verdict := "DENIED"
	if x.Allow {
		verdict = "ALLOWED"
	}
	line(verdict, "by %s, digest %.12s", x.Revision, x.Digest)
	p, r := x.input.Principal, x.input.Request
	line("caller", "%s of tenant %s, by %s%s", p.Kind, p.Tenant, p.Method, ifAny(", registered as ", p.Registration))
	line("request", "%s of %s, class %s, label %s%s", r.Operation, r.Model, x.input.Class.Name, x.input.Label.Level, ifAny(" with ", strings.Join(x.input.Label.Categories, ", ")))
	if x.Error != "" {
		line("error", "%s", x.Error)
	}
	for _, reason := range x.Reasons {
		line("reason", "%s", reason)
	}
	for _, rule := range x.Rules {
		line("rule", "%s%s", rule.ID, ifAny(": ", rule.Description))
	}
	for _, c := range x.Clamps {
		line("clamp", "%s: %s", c.Clamp, c.Text)
	}
	if x.Allow {
		x.terms(line)
	}
	if rec := x.Recorded; rec != nil {
		line("recorded", "%s by %s, digest %.12s%s", rec.Status, rec.Revision, rec.Digest, ifAny(": ", rec.Reason))
		for _, d := range rec.Differences {
			line("different", "%s", d)
		}
		if len(rec.Differences) == 0 {
			line("different", "nothing: the answer is the same")
		}
	}
	return t.Flush()
}

// terms are those under which a request is allowed.
func (x *explanation) terms(line func(label, format string, args ...any)) {
	d := x.Decision
	line("pools", "%s", strings.Join(d.Pools, ", "))
	line("cache", "shared within: %s", d.CacheDomain)
	line("record", "%s", d.Durability)
	if d.ToolsAllow != nil {
		line("tools", "only: %s", strings.Join(d.ToolsAllow, ", "))
	}
	if n := d.Limits.MaxOutputTokens; n != nil {
		line("limit", "%d output tokens", *n)
	}
	if len(d.Inspect.Request) > 0 {
		line("inspect", "requests: %s", strings.Join(d.Inspect.Request, ", "))
	}
	if len(d.Inspect.Response) > 0 {
		line("inspect", "answers: %s", strings.Join(d.Inspect.Response, ", "))
	}
}

func ifAny(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

// bundleKey adds the flag that says which key a bundle must be signed with.
func bundleKey(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "key", "", "file of the public key that the bundle must be signed with; --verify-key is the same")
	takeVerifyKey(cmd)
}

// bundleFlags name a bundle.
type bundleFlags struct{ bundle, key string }

func (f *bundleFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.bundle, "bundle", "", "directory or .tar.gz; without it, the policy that ships with the data of the demonstration")
	bundleKey(cmd, &f.key)
}

// load activates it, as a gateway would.
func (f *bundleFlags) load(ctx context.Context) (*policy.Engine, error) {
	cfg := policy.Config{Bundle: f.bundle, VerifyKeyFile: f.key, Timeout: evaluationTime}
	if f.bundle == "" {
		if f.key != "" {
			return nil, errors.New("--key goes with --bundle")
		}
		layers, err := bundleLayers(nil)
		if err != nil {
			return nil, err
		}
		cfg.Layers = layers
	}
	return policy.Load(ctx, cfg)
}
