package classify

import (
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/detect"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// TestARecordNumberIsFoundOffItsName cuts a medical record number off its name in
// each way that a body allows.
func TestARecordNumberIsFoundOffItsName(t *testing.T) {
	messages := func(list string) string { return `{"model":"m","max_tokens":1,"messages":[` + list + `]}` }
	user := func(content string) string { return messages(`{"role":"user","content":` + content + `}`) }
	with := func(member string) string {
		return `{"model":"m","messages":[{"role":"user","content":"hi"}],` + member + `}`
	}
	call := func(arguments string) string {
		return messages(`{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":` + arguments + `}}]}`)
	}
	cases := []struct {
		claim string
		op    wire.Operation
		body  string
	}{
		{"two parts", wire.ChatCompletions, user(`[{"type":"text","text":"the MRN"},{"type":"text","text":"00481516"}]`)},
		{"two bare parts", wire.ChatCompletions, user(`["MRN","00481516"]`)},
		{"two messages", wire.ChatCompletions, messages(`{"role":"user","content":"MRN"},{"role":"user","content":"00481516"}`)},
		{"a word over two messages", wire.ChatCompletions, messages(`{"role":"user","content":"medical"},{"role":"user","content":"record"},{"role":"user","content":"00481516"}`)},
		{"a document's field", wire.ChatCompletions, with(`"documents":[{"mrn":"00481516"}]`)},
		{"a document's long field", wire.ChatCompletions, with(`"documents":[{"medical_record_number":"00481516"}]`)},
		{"a document's number", wire.ChatCompletions, with(`"documents":[{"mrn":481516}]`)},
		{"a document's list", wire.ChatCompletions, with(`"documents":[{"mrn":[1,481516]}]`)},
		{"a document's escaped field", wire.ChatCompletions, with(`"documents":[{"\u006drn":"\u00300481516"}]`)},
		{"a document's name and value", wire.ChatCompletions, with(`"documents":[{"name":"mrn","value":"00481516"}]`)},
		{"a document between others", wire.ChatCompletions, with(`"documents":[{"a":"b"},{"x":1,"mrn":"00481516","y":"z"}]`)},
		{"arguments as text", wire.ChatCompletions, call(`"{\"mrn\":\"00481516\"}"`)},
		{"arguments as text with a number", wire.ChatCompletions, call(`"{\"mrn\":481516}"`)},
		{"arguments as an object", wire.ChatCompletions, call(`{"mrn":"00481516"}`)},
		{"arguments as an object with a number", wire.ChatCompletions, call(`{"patient":{"mrn":481516}}`)},
		{"arguments as an object in an object", wire.ChatCompletions, call(`{"mrn":{"system":"urn:x","assigner":"y","of":{"value":"00481516"}}}`)},
		{"a constant of a schema", wire.ChatCompletions, with(`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"mrn":{"const":"00481516"}}}}}`)},
		{"a described constant", wire.ChatCompletions, with(`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{"mrn":{"description":"of whom we speak","const":"00481516"}}}}}`)},
		{"an enumeration", wire.ChatCompletions, with(`"guided_json":{"properties":{"mrn":{"anyOf":[{"enum":[1,481516]}]}}}`)},
		{"a tool's default", wire.ChatCompletions, with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"mrn":{"default":481516}}}}}]`)},
		{"metadata", wire.ChatCompletions, with(`"metadata":{"mrn":"00481516"}`)},
		{"metadata with a number", wire.ChatCompletions, with(`"metadata":{"mrn":481516}`)},
		{"two prompts", wire.Completions, `{"model":"m","prompt":["MRN","00481516"]}`},
		{"two inputs", wire.Embeddings, `{"model":"m","input":["MRN","00481516"]}`},
		{"two items", wire.Responses, `{"model":"m","input":[{"role":"user","content":"MRN"},{"role":"user","content":"00481516"}]}`},
		{"parts of an item", wire.Responses, `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"MRN"},{"type":"input_text","text":"00481516"}]}]}`},
		{"an item's arguments", wire.Responses, `{"model":"m","input":[{"type":"mcp_call","arguments":{"mrn":481516}}]}`},
		{"two blocks", wire.Messages, user(`[{"type":"text","text":"MRN"},{"type":"text","text":"00481516"}]`)},
		{"a call's input", wire.Messages, messages(`{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"mrn":481516}}]}`)},
	}
	for _, c := range cases {
		t.Run(c.op.Name+" "+c.claim, func(t *testing.T) {
			if got := scanned(t, c.op, c.body); !slices.Equal(got, []policy.Category{policy.PHI}) {
				t.Errorf("found %v", got)
			}
			plain := strings.NewReplacer("medical", "colour", "MRN", "pages", "mrn", "pages", `\u006drn`, "pages").Replace(c.body)
			if got := scanned(t, c.op, plain); got != nil {
				t.Errorf("found %v without the name", got)
			}
		})
	}
}

func scanned(t *testing.T, op wire.Operation, body string) []policy.Category {
	t.Helper()
	req, err := wire.Decode(op, []byte(body), wire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return Scan(detect.Scanner{}, req).Categories()
}
