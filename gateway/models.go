package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// uses are what a model may be asked for: if policy permits any of them, the
// principal may use the model.
var uses = []struct {
	operation wire.Operation
	class     policy.Class
}{
	{wire.ChatCompletions, policy.Chat},
	{wire.ChatCompletions, policy.AgentToolCall},
	{wire.ChatCompletions, policy.RAG},
	{wire.Embeddings, policy.Embedding},
}

// permittedModels asks policy about each model that it knows.
func (x *exchange) permittedModels(ctx context.Context) ([]policy.Model, error) {
	var shown []policy.Model
	for _, m := range x.snap.Models() {
		usable, err := x.mayUse(ctx, m)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
		if usable {
			shown = append(shown, m)
		}
	}
	return shown, nil
}

// mayUse asks policy about requests for m that have no content yet.
func (x *exchange) mayUse(ctx context.Context, m policy.Model) (bool, error) {
	for _, use := range uses {
		in := x.input
		in.Request.Model, in.Request.Operation, in.Class.Name = m.Name, use.operation.Name, use.class.String()
		if d, _, err := x.snap.Decide(ctx, in); err != nil || d.Allow {
			return d.Allow, err
		}
	}
	return false, nil
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelItem `json:"data"`
}

type modelItem struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// writeModels writes the list in the form that OpenAI's clients read, aliases
// as models of their own.
func writeModels(w http.ResponseWriter, models []policy.Model) error {
	list := modelList{Object: "list", Data: []modelItem{}}
	for _, m := range models {
		for _, name := range append([]string{m.Name}, slices.Sorted(slices.Values(m.Aliases))...) {
			list.Data = append(list.Data, modelItem{ID: name, Object: "model", OwnedBy: "sallyport"})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(list); err != nil {
		return fmt.Errorf("write models: %w", err)
	}
	return nil
}
