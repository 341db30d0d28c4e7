package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/sallyport-ai/sallyport/policy"
)

// permittedModels asks policy about each model that some permitted pool serves.
func (x *exchange) permittedModels(ctx context.Context) ([]policy.Model, error) {
	var shown []policy.Model
	for _, m := range x.snap.Models() {
		in := x.input
		in.Request.Model = m.Name
		d, _, err := x.snap.Decide(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
		if d.Allow {
			shown = append(shown, m)
		}
	}
	return shown, nil
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
