package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/routing/prompt"
)

func promptCommand() *cobra.Command {
	cmd := commandGroup("prompt", "Compute prompts as the engine does: text and token ids")
	cmd.AddCommand(promptTokensCommand(), promptRenderCommand(), promptCheckCommand())
	return cmd
}

// promptLine is one line of input: one of the four, or a chat body by itself.
type promptLine struct {
	Text       *string        `json:"text"`
	Chat       jsontext.Value `json:"chat"`
	Completion jsontext.Value `json:"completion"`
	Response   jsontext.Value `json:"response"`
	Messages   jsontext.Value `json:"messages"`
}

const promptInput = `Each line of the input is {"text": "..."}, {"chat": BODY}, {"completion": BODY} or {"response": BODY},
where BODY is what a client sends to /v1/chat/completions, /v1/completions or /v1/responses.`

// promptFlags say what model there is and how its engine was started.
type promptFlags struct {
	dir, args, zone string
}

func (f *promptFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.dir, "model", "", "directory with tokenizer.json, tokenizer_config.json and the chat template; the model that ships if empty")
	flags.StringVar(&f.args, "template-args", "", "the engine's default chat_template_kwargs, a JSON object")
	flags.StringVar(&f.zone, "zone", "UTC", "the engine's time zone")
}

func (f *promptFlags) open() (*prompt.Model, error) {
	zone, err := time.LoadLocation(f.zone)
	if err != nil {
		return nil, fmt.Errorf("--zone: %w", err)
	}
	c := prompt.Config{Files: prompt.Small(), TemplateArgs: jsontext.Value(f.args), Zone: zone}
	if f.dir != "" {
		c.Files = os.DirFS(f.dir)
	}
	m, err := prompt.Open(c)
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", f.dir, err)
	}
	return m, nil
}

func promptTokensCommand() *cobra.Command {
	var flags promptFlags
	cmd := &cobra.Command{
		Use:   "tokens --model DIR < LINES",
		Short: "Print the token ids of texts and request bodies",
		Long:  promptInput + ` Each line of the output is {"ids": [...], "basis": "native"} or {"error": "..."}, and then it exits with 1.`,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := flags.open()
			if err != nil {
				return err
			}
			var failed bool
			err = eachLine(cmd.InOrStdin(), func(line []byte) error {
				p, err := promptOf(cmd.Context(), m, line)
				if err != nil {
					failed = true
					return printLine(cmd.OutOrStdout(), errorLine(err))
				}
				if p.IDs == nil {
					p.IDs = []uint32{}
				}
				return printLine(cmd.OutOrStdout(), struct {
					IDs   []uint32 `json:"ids"`
					Basis string   `json:"basis"`
				}{p.IDs, "native"})
			})
			return toldOf(failed, err)
		},
	}
	flags.add(cmd)
	return cmd
}

func promptRenderCommand() *cobra.Command {
	var flags promptFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "render --model DIR < LINES",
		Short: "Print the prompts that request bodies become, as text",
		Long:  promptInput + ` The text of one prompt is printed as it is; for several, with --json, each line of the output is {"text": "..."} or {"error": "..."}, and then it exits with 1.`,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := flags.open()
			if err != nil {
				return err
			}
			lines, failed := 0, false
			err = eachLine(cmd.InOrStdin(), func(line []byte) error {
				if lines++; lines > 1 && !asJSON {
					return errors.New("more than one prompt: use --json")
				}
				p, err := promptOf(cmd.Context(), m, line)
				switch {
				case err != nil && asJSON:
					failed = true
					return printLine(cmd.OutOrStdout(), errorLine(err))
				case err != nil:
					return &exitError{code: exitBad, err: err}
				case asJSON:
					return printLine(cmd.OutOrStdout(), struct {
						Text string `json:"text"`
					}{p.Text})
				}
				_, err = io.WriteString(cmd.OutOrStdout(), p.Text)
				return err
			})
			return toldOf(failed, err)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	return cmd
}

// promptOf is the prompt that a line asks for.
func promptOf(ctx context.Context, m *prompt.Model, line []byte) (prompt.Prompt, error) {
	var in promptLine
	if err := json.Unmarshal(line, &in); err != nil {
		return prompt.Prompt{}, fmt.Errorf("read line: %w", err)
	}
	if in.Messages != nil {
		in.Chat = line
	}
	asked := 0
	for _, is := range []bool{in.Text != nil, in.Chat != nil, in.Completion != nil, in.Response != nil} {
		if is {
			asked++
		}
	}
	switch {
	case asked != 1:
		return prompt.Prompt{}, errors.New("a line has one of text, chat, completion and response")
	case in.Text != nil:
		return prompt.Prompt{Text: *in.Text, IDs: m.Encode(*in.Text, true)}, ctx.Err()
	case in.Chat != nil:
		return m.Chat(ctx, in.Chat)
	case in.Response != nil:
		return m.Response(ctx, in.Response)
	}
	return m.Completion(ctx, in.Completion)
}

// eachLine calls do with every line that is not empty.
func eachLine(r io.Reader, do func(line []byte) error) error {
	in := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := do(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read input: %w", err)
		}
	}
}

// toldOf makes of lines that failed, which have been told of, a bad answer.
func toldOf(failed bool, err error) error {
	if err == nil && failed {
		return &exitError{code: exitBad}
	}
	return err
}

type promptError struct {
	Error string `json:"error"`
}

func errorLine(err error) promptError { return promptError{err.Error()} }

func printLine(w io.Writer, v any) error {
	out, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(out, '\n'))
	return err
}
