package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ParseInput reads a question as [Evaluation.InputJSON] writes it: one JSON
// document of version 1, without fields that are not known.
func ParseInput(text []byte) (Input, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var in Input
	if err := d.Decode(&in); err != nil {
		return Input{}, fmt.Errorf("policy input: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Input{}, errors.New("policy input: something follows the document")
	}
	if in.V != 1 {
		return Input{}, fmt.Errorf("policy input: version %d, want 1", in.V)
	}
	return in, nil
}

// Rules are the descriptions of the labelled rules, by the id that
// [Evaluation.Rules] has; empty where the author gave none.
func (s *Snapshot) Rules() map[string]string {
	rules := make(map[string]string)
	for _, ref := range s.compiler.GetAnnotationSet().Flatten() {
		if id, ok := ref.Annotations.Labels["id"].(string); ok {
			rules[id] = strings.Join(strings.Fields(ref.Annotations.Description), " ")
		}
	}
	return rules
}

// clampWords say what each thing that clamp does to an answer means. Those of
// pools stand for "pool:NAME:…".
var clampWords = map[string]string{
	"unclassified":                   "a request that could not be classified runs nowhere",
	"actor_not_registered":           "an actor of the delegation chain has no registration",
	"registration_unknown":           "the caller's registration, or an actor's, is not in the bundle",
	"registration_of_another_tenant": "the caller's registration, or an actor's, belongs to another tenant",
	"class_not_registered":           "the caller's registration, or an actor's, does not list the request's class",
	"residency":                      "it is not in the region that the caller is bound to",
	"external_residency":             "it is external, and the caller is bound to a region",
	"external_above_internal":        "it is external, and the label is above internal",
	"label":                          "the label is above the pool's max_label",
	"class":                          "the pool does not serve the request's class",
	"model":                          "the pool does not serve the model",
	"cache_domain:public_above_label": "only what is labelled public shares a cache with other tenants, " +
		"so the cache is the tenant's",
	"max_output_tokens:": "the answer is no longer than the registration says: ",
	"durability:floor":   "what is confidential, an agent's or administration is recorded strictly, not bounded",
}

// shortened begins the clamp of a registration's max_output_tokens.
const shortened = "max_output_tokens:"

// ClampText says in words what an entry of [Evaluation.Clamps] means.
func ClampText(clamp string) string {
	if name, ok := strings.CutPrefix(clamp, shortened); ok {
		return clampWords[shortened] + name
	}
	if pool, ok := strings.CutPrefix(clamp, "pool:"); ok {
		if i := strings.LastIndexByte(pool, ':'); i >= 0 {
			return "pool " + pool[:i] + " is left out: " + clampWords[pool[i+1:]]
		}
	}
	return clampWords[clamp]
}
