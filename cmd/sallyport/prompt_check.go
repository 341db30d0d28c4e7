package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/routing/prompt"
)

func promptCheckCommand() *cobra.Command {
	var flags promptFlags
	var engine string
	cmd := &cobra.Command{
		Use:   "check --model DIR --engine URL < LINES",
		Short: "Compare our token ids with a running engine's and name the first divergence",
		Long: promptInput + ` The engine is asked at vLLM's render routes, or where it has none at /tokenize: send it no prompt that it may not see.
Each line of the output is {"same": true, "tokens": N}, the first divergence with the part of the prompt that it is in
(bos, date, kwargs, tool_json or content), or {"error": "..."}.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := flags.open()
			if err != nil {
				return err
			}
			c := promptChecker{model: m, engine: strings.TrimSuffix(engine, "/"), client: http.Client{Timeout: 30 * time.Second}}
			code := 0
			err = eachLine(cmd.InOrStdin(), func(line []byte) error {
				out, err := c.check(cmd.Context(), line)
				switch {
				case err != nil:
					code = exitCannotTell
					return printLine(cmd.OutOrStdout(), errorLine(err))
				case !out.Same && code == 0:
					code = exitBad
				}
				return printLine(cmd.OutOrStdout(), out)
			})
			if err != nil || code == 0 {
				return err
			}
			return &exitError{code: code}
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&engine, "engine", "", "base URL of the engine")
	if err := cmd.MarkFlagRequired("engine"); err != nil {
		panic(err) // only for a flag that there is not
	}
	return cmd
}

// divergence is how our ids and the engine's compare.
type divergence struct {
	Same   bool `json:"same"`
	Tokens int  `json:"tokens"` // ours

	// What follows is of the first difference.
	EngineTokens int         `json:"engine_tokens,omitzero"`
	Part         prompt.Part `json:"part,omitzero"`
	At           *int        `json:"at,omitzero"` // the number of ids before it
	Before       string      `json:"before,omitzero"`
	Ours         string      `json:"ours,omitzero"`
	Engine       string      `json:"engine,omitzero"`
}

type promptChecker struct {
	model  *prompt.Model
	engine string
	client http.Client
}

func (c *promptChecker) check(ctx context.Context, line []byte) (divergence, error) {
	p, err := promptOf(ctx, c.model, line)
	if err != nil {
		return divergence{}, err
	}
	q, err := questionOf(line)
	if err != nil {
		return divergence{}, err
	}
	theirs, err := c.ask(ctx, q)
	if err != nil {
		return divergence{}, fmt.Errorf("ask the engine: %w", err)
	}
	d := c.compare(p.IDs, theirs)
	if !d.Same {
		d.Part = c.model.PartAt(ctx, q.kind, q.body, p.IDs, *d.At, *d.At+1, len(theirs))
	}
	return d, nil
}

// shown is how many tokens on each side of a divergence are printed.
const shown = 16

func (c *promptChecker) compare(ours, theirs []uint32) divergence {
	at := 0
	for at < len(ours) && at < len(theirs) && ours[at] == theirs[at] {
		at++
	}
	if at == len(ours) && at == len(theirs) {
		return divergence{Same: true, Tokens: at}
	}
	return divergence{
		Tokens: len(ours), EngineTokens: len(theirs), At: &at,
		Before: c.model.Decode(ours[max(0, at-shown):at]),
		Ours:   c.model.Decode(ours[at:min(len(ours), at+shown)]),
		Engine: c.model.Decode(theirs[at:min(len(theirs), at+shown)]),
	}
}

// engineQuestion is how an engine is asked about a line.
type engineQuestion struct {
	kind     prompt.Body
	body     []byte
	render   string // the route that takes the body; empty for a text
	tokenize []byte // what /tokenize is asked instead; nil: it cannot be
}

func questionOf(line []byte) (q engineQuestion, err error) {
	var in promptLine
	if err := json.Unmarshal(line, &in); err != nil {
		return q, err
	}
	switch {
	case in.Text != nil:
		q.kind = prompt.CompletionBody
		q.tokenize, err = json.Marshal(map[string]any{"prompt": *in.Text, "add_special_tokens": false})
		return q, err
	case in.Response != nil:
		q.kind, q.body, q.render = prompt.ResponseBody, in.Response, "/v1/responses/render"
		return q, nil
	case in.Completion != nil:
		q.kind, q.body, q.render = prompt.CompletionBody, in.Completion, "/v1/completions/render"
	case in.Messages != nil:
		q.body, q.render = line, "/v1/chat/completions/render"
	default:
		q.body, q.render = in.Chat, "/v1/chat/completions/render"
	}
	q.tokenize = gateway.TokenizeBody(q.body)
	return q, nil
}

// errNoRoute says that the engine does not have the route.
var errNoRoute = errors.New("the engine has no such route")

// ask takes the route that takes most, of those that the engine has.
func (c *promptChecker) ask(ctx context.Context, q engineQuestion) ([]uint32, error) {
	if q.render != "" {
		ids, err := c.post(ctx, q.render, q.body)
		if !errors.Is(err, errNoRoute) {
			return ids, err
		}
	}
	if q.tokenize == nil {
		return nil, errors.New("it has no render routes, and /tokenize does not take all of this")
	}
	return c.post(ctx, "/tokenize", q.tokenize)
}

// engineAnswer is that of a render route or of /tokenize.
type engineAnswer struct {
	TokenIDs []uint32 `json:"token_ids"`
	Tokens   []uint32 `json:"tokens"`
}

func (c *promptChecker) post(ctx context.Context, path string, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.engine+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotImplemented:
		return nil, fmt.Errorf("%s: %w", path, errNoRoute)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: status %s", path, resp.Status)
	}
	answers := make([]engineAnswer, 1)
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		err = json.Unmarshal(text, &answers)
	} else {
		err = json.Unmarshal(text, &answers[0])
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(answers) != 1 || answers[0].TokenIDs == nil && answers[0].Tokens == nil:
		return nil, fmt.Errorf("%s: the answer has no tokens of one prompt", path)
	}
	return append(answers[0].TokenIDs, answers[0].Tokens...), nil
}
