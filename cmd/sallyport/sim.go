package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/sim"
)

func simCommand() *cobra.Command {
	cfg := sim.Config{Form: kvevents.FormMap}
	var dir string
	cmd := &cobra.Command{
		Use:   "sim --listen HOST:PORT --events ENDPOINT",
		Short: "Run a stand-in engine: vLLM's HTTP surface and KV events over a real block cache",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			model, err := loadPrompt(dir)
			if err != nil {
				return err
			}
			cfg.Prompt, cfg.Logger = model, newLogger(cmd, slog.LevelInfo)
			engine, err := sim.New(cfg)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "engine at %s, events at %s\n", engine.URL(), engine.EventsEndpoint())
			return engine.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8000", "address of the HTTP surface")
	f.StringVar(&cfg.Model, "model", "small", "served name")
	f.StringVar(&dir, "model-dir", "", "directory with tokenizer.json and tokenizer_config.json; the model that ships if empty")
	f.StringVar(&cfg.Events, "events", "", "ZMQ endpoint that publishes KV events, tcp:// or ipc://")
	f.BoolVar(&cfg.Connect, "connect", false, "connect to the events endpoint instead of binding it")
	f.StringVar(&cfg.Replay, "replay", "", "ZMQ endpoint that answers for past events")
	f.StringVar(&cfg.Topic, "topic", "", "topic of events")
	f.IntVar(&cfg.Blocks, "blocks", 1024, "blocks of cache")
	f.IntVar(&cfg.Ranks, "ranks", 1, "data-parallel ranks, at the ports that follow those of the endpoints")
	f.IntVar(&cfg.Sentences, "sentences", 2, "sentences in an answer")
	f.IntVar(&cfg.BlockSize, "block-size", 16, "tokens in a block")
	f.DurationVar(&cfg.Timing.Step, "step", 2*time.Millisecond, "what a step of the scheduler takes")
	f.DurationVar(&cfg.Timing.Prefill, "prefill", 20*time.Microsecond, "what a token of a prompt adds to a step")
	f.DurationVar(&cfg.Timing.Decode, "decode", 200*time.Microsecond, "what an answer under way adds to a step")
	return cmd
}

// loadPrompt loads a model directory, or the model that ships.
func loadPrompt(dir string) (*prompt.Model, error) {
	if dir == "" {
		return prompt.LoadFS(prompt.Small())
	}
	return prompt.Load(dir)
}
