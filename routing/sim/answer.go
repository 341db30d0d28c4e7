package sim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sort"
	"strings"
)

// phrases are what the stand-in says. Which of them, and in what order, follows
// from the prompt's token ids, so that the same prompt has the same answer.
var phrases = []string{
	"The request was received and the account is in good order.",
	"Two documents support this view and one does not mention it.",
	"Please confirm the date before the transfer is released.",
	"The patient should be seen again within fourteen days.",
	"No further action is needed at this time.",
	"The figures for the last quarter agree with the ledger.",
	"A second reviewer has to approve amounts above the limit.",
	"The form is complete except for the signature on page three.",
	"The ticket can be closed once the customer has replied.",
	"This rule applies to all branches in the region.",
}

// sentences returns n phrases chosen by the prompt.
func sentences(prompt []uint32, n int) string {
	h := fnv.New64a()
	for _, t := range prompt {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], t)
		_, _ = h.Write(b[:]) // a hash never fails
	}
	x := h.Sum64()
	said := make([]string, n)
	for i := range said {
		said[i] = phrases[x%uint64(len(phrases))]
		x = x*6364136223846793005 + 1442695040888963407
	}
	return strings.Join(said, " ")
}

// toolCall is what the stand-in asks its caller to run.
type toolCall struct {
	Name      string
	Arguments string // JSON
}

// text is the form in which a model emits a call.
func (c toolCall) text() string {
	return fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", c.Name, c.Arguments)
}

// callFor builds a call of tool with a value for each required parameter.
func callFor(t tool) (toolCall, error) {
	var schema struct {
		Properties map[string]struct {
			Type string            `json:"type"`
			Enum []json.RawMessage `json:"enum"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	if len(t.Function.Parameters) > 0 {
		if err := json.Unmarshal(t.Function.Parameters, &schema); err != nil {
			return toolCall{}, fmt.Errorf("parameters of tool %s: %w", t.Function.Name, err)
		}
	}
	args := make(map[string]json.RawMessage, len(schema.Required))
	sort.Strings(schema.Required)
	for _, name := range schema.Required {
		p := schema.Properties[name]
		switch {
		case len(p.Enum) > 0:
			args[name] = p.Enum[0]
		case p.Type == "integer" || p.Type == "number":
			args[name] = json.RawMessage("7")
		case p.Type == "boolean":
			args[name] = json.RawMessage("true")
		case p.Type == "array":
			args[name] = json.RawMessage("[]")
		case p.Type == "object":
			args[name] = json.RawMessage("{}")
		default:
			args[name] = json.RawMessage(`"example"`)
		}
	}
	b, err := json.Marshal(args)
	if err != nil {
		return toolCall{}, fmt.Errorf("arguments of tool %s: %w", t.Function.Name, err)
	}
	return toolCall{Name: t.Function.Name, Arguments: string(b)}, nil
}
