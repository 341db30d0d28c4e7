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
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/routing/prompt"
)

func promptCheckCommand() *cobra.Command {
	var flags promptFlags
	var engine string
	cmd := &cobra.Command{
		Use:   "check --model DIR --engine URL < LINES",
		Short: "Compare our token ids with a running engine's and name the first divergence",
		Long: promptInput + ` The engine is asked at /tokenize, as vLLM has it: send it no prompt that it may not see.
Each line of the output is {"same": true, "tokens": N}, the first divergence, or {"error": "..."}.`,
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
	EngineTokens int    `json:"engine_tokens,omitzero"`
	At           *int   `json:"at,omitzero"` // the number of ids before it
	Before       string `json:"before,omitzero"`
	Ours         string `json:"ours,omitzero"`
	Engine       string `json:"engine,omitzero"`
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
	theirs, err := c.ask(ctx, line)
	if err != nil {
		return divergence{}, fmt.Errorf("ask the engine: %w", err)
	}
	return c.compare(p.IDs, theirs), nil
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

// tokenizeFields are the members of a chat or completion body that the
// engine's /tokenize takes too.
var tokenizeFields = []string{
	"model", "messages", "prompt", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template_kwargs",
}

func (c *promptChecker) ask(ctx context.Context, line []byte) ([]uint32, error) {
	body, err := tokenizeBody(line)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.engine+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	var out struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return nil, err
	}
	if out.Tokens == nil {
		return nil, errors.New("the answer has no tokens")
	}
	return out.Tokens, nil
}

// tokenizeBody is the question for /tokenize.
func tokenizeBody(line []byte) ([]byte, error) {
	var in promptLine
	if err := json.Unmarshal(line, &in); err != nil {
		return nil, err
	}
	if in.Text != nil {
		return json.Marshal(map[string]any{"prompt": *in.Text, "add_special_tokens": false})
	}
	body := in.Chat
	switch {
	case in.Messages != nil:
		body = line
	case body == nil:
		body = in.Completion
	}
	var all map[string]jsontext.Value
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	out := make(map[string]jsontext.Value, len(tokenizeFields))
	for _, name := range tokenizeFields {
		if v, ok := all[name]; ok {
			out[name] = v
		}
	}
	if v := out["prompt"]; v != nil && v.Kind() != '"' {
		return nil, errors.New("/tokenize takes one text as the prompt")
	}
	return json.Marshal(out)
}
