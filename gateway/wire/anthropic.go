package wire

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Anthropic's messages are translated onto chat, field by field, before anything
// else looks at them: what is classified, scanned, counted and sent is the one
// chat body. Three things can happen to what the client said.
//
//   - It has a counterpart, and becomes that.
//   - It is known to have none: the request is refused by its name, or where it
//     asks for nothing that the answer would show (cache_control, a thinking
//     block's signature), it is taken out and recorded in [Request.Removed].
//   - It is not known: it is noted in [Request.Unknown], so that the request is
//     unclassified, and cannot be sent on.
//
// docs/protocols.md has the table.

// messageFields are the request fields of Anthropic's messages reference.
func messageFields() map[string]field {
	fields := map[string]field{
		"model": copied("model"), "max_tokens": copied("max_tokens"), "stream": copied("stream"),
		"temperature": copied("temperature"), "top_p": copied("top_p"), "top_k": copied("top_k"),
		"stop_sequences": copied("stop"),

		"system": (*parser).system, "messages": (*parser).turns,
		"tools": (*parser).offers, "tool_choice": (*parser).offerChoice,
		"thinking": (*parser).thinking, "metadata": (*parser).userID,

		"service_tier":  mustBe(`"auto"`, `"standard_only"`),
		"mcp_servers":   mustBe(`[]`),
		"container":     mustBe(),
		"cache_control": (*parser).dropped,
	}
	return fields
}

// translation gathers the chat body.
type translation struct {
	body     object   // members other than messages and tools
	system   []object // at most one message
	messages []object // the rest
	tools    []object
	thinking bool   // the client wants to see reasoning
	prefill  bool   // the answer begins with what the last message says
	lost     string // place of something unknown that has no counterpart
}

// decodeMessages translates and decodes a body of the messages route.
func decodeMessages(op Operation, body []byte, limits Limits) (*Request, error) {
	if err := limits.check(body); err != nil {
		return nil, err
	}
	p := newParser(op, body, limits)
	p.into = new(translation)
	if err := p.top(op); err != nil {
		return nil, refusal(err)
	}
	chat, err := p.into.chat()
	if err != nil {
		return nil, err
	}
	limits.Depth += 4 // a tool's schema and an image stand deeper in a chat body
	if err := limits.size(chat); err != nil {
		return nil, err
	}
	req, err := parse(ChatCompletions, chat, limits)
	if err != nil {
		return nil, err
	}
	if req.MaxTokens == nil {
		return nil, invalid("max_tokens", "this field is required")
	}
	for _, place := range req.Unknown {
		p.note(place)
	}
	req.Operation, req.Translated = op.Name, true
	req.Unknown = sortedNames(p.unknown)
	req.Removed = sortedSet(p.req.Removed)
	req.lost, req.thinking = p.into.lost, p.into.thinking
	return req, nil
}

// chat returns the body for the chat route.
func (t *translation) chat() ([]byte, error) {
	if len(t.messages) == 0 {
		return nil, invalid("messages", "at least one message is required")
	}
	t.body.list("messages", slices.Concat(t.system, t.messages))
	if len(t.tools) > 0 {
		t.body.list("tools", t.tools)
	}
	if t.prefill {
		t.body.add("continue_final_message", []byte("true"))
		t.body.add("add_generation_prompt", []byte("false"))
	}
	return t.body.end(), nil
}

// copied takes a value over under another name. The chat route's own table
// checks it.
func copied(name string) field {
	return func(p *parser, _ string) error {
		raw, err := p.dec.ReadValue()
		if err == nil && raw.Kind() != 'n' {
			p.into.body.add(name, raw)
		}
		return err
	}
}

// dropped reads a value that has no counterpart and makes no difference to the
// answer, such as a hint of what to cache.
func (p *parser) dropped(name string) error {
	p.req.Removed = append(p.req.Removed, name)
	return p.skip()
}

// system becomes one system message.
func (p *parser) system(name string) error {
	if p.null() {
		return nil
	}
	blocks, err := p.blocks(name)
	if err != nil {
		return err
	}
	for _, b := range blocks {
		if b.kind != "text" {
			return p.misplaced(b, name)
		}
	}
	if len(blocks) > 0 {
		var m object
		m.str("role", "system")
		addContent(&m, blocks)
		p.into.system = []object{m}
	}
	return nil
}

// userID is metadata, of which the reference knows one member.
func (p *parser) userID(name string) error {
	if p.null() {
		return nil
	}
	return p.object(true, func(key string) error {
		if key != "user_id" {
			p.lose("metadata.field")
			return p.skip()
		}
		return copied("user")(p, key)
	})
}

// thinking turns the model's reasoning on or off, as templates that know such a
// switch understand it, and bounds it. Without this field the model does as it
// does by default, and the client sees no reasoning.
func (p *parser) thinking(name string) error {
	if p.null() {
		return nil
	}
	kind := ""
	err := p.object(true, func(key string) error {
		switch key {
		case "type":
			text, err := p.str(name + ".type")
			kind = string(text)
			return err
		case "budget_tokens":
			return copied("thinking_token_budget")(p, key)
		default:
			return unsupported(name+"."+key, "this field has no counterpart for this model")
		}
	})
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"enabled", "adaptive", "disabled"}, kind) {
		return unsupported(name+".type", "this field accepts only enabled, adaptive or disabled")
	}
	p.into.thinking = kind != "disabled"
	var args object
	args.add("enable_thinking", boolean(p.into.thinking))
	p.into.body.add("chat_template_kwargs", args.end())
	return nil
}

// serverOffers begin the types of tools that Anthropic runs, or whose schema it
// keeps.
var serverOffers = []string{
	"bash_", "text_editor_", "computer_", "web_search_", "web_fetch_", "code_execution_",
	"memory_", "tool_search_tool_", "mcp_toolset",
}

// offers are tools. Only those with a schema of the client's own have a
// counterpart.
func (p *parser) offers(name string) error {
	return p.list(name, func(int) error {
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each tool must be an object")
		}
		return p.offer()
	})
}

func (p *parser) offer() error {
	var fn object
	kind := ""
	err := p.object(true, func(key string) error {
		if key == "type" {
			return p.optionalWord(&kind, "tools.type")
		}
		return p.offerField(&fn, key)
	})
	switch {
	case err != nil:
		return err
	case kind == "" || kind == "custom":
	case hasAnyPrefix(kind, serverOffers):
		return unsupported("tools.type", "tools that the provider runs are not supported here")
	default:
		p.lose("tool.type")
	}
	var tool object
	tool.str("type", "function")
	tool.add("function", fn.end())
	p.into.tools = append(p.into.tools, tool)
	return nil
}

func (p *parser) offerField(fn *object, key string) error {
	switch key {
	case "name", "description", "strict":
		return p.member(fn, key)
	case "input_schema":
		return p.member(fn, "parameters")
	case "cache_control", "eager_input_streaming":
		return p.dropped("tools." + key)
	default:
		p.lose("tool.field")
		return p.skip()
	}
}

// offerChoice steers the use of tools.
func (p *parser) offerChoice(name string) error {
	if p.null() {
		return nil
	}
	var kind, tool string
	parallel := true
	err := p.object(true, func(key string) (err error) {
		switch key {
		case "type":
			err = p.optionalWord(&kind, name+".type")
		case "name":
			err = p.optionalWord(&tool, name+".name")
		case "disable_parallel_tool_use":
			var disabled bool
			disabled, err = p.boolean(name + "." + key)
			parallel = !disabled
		default:
			p.lose("tool_choice")
			err = p.skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if !parallel {
		p.into.body.add("parallel_tool_calls", boolean(false))
	}
	if !p.into.choose(kind, tool) {
		p.lose("tool_choice")
	}
	return nil
}

// choose reports whether it knows the kind of choice.
func (t *translation) choose(kind, tool string) bool {
	switch kind {
	case "auto", "none":
		t.body.str("tool_choice", kind)
	case "any":
		t.body.str("tool_choice", "required")
	case "tool":
		var fn, choice object
		fn.str("name", tool)
		choice.str("type", "function")
		choice.add("function", fn.end())
		t.body.add("tool_choice", choice.end())
	default:
		return false
	}
	return true
}

// lose notes something unknown that is not in the translation.
func (p *parser) lose(place string) {
	p.note(place)
	p.into.lost = place
}

// optionalWord reads a string or null.
func (p *parser) optionalWord(into *string, param string) error {
	if p.null() {
		return nil
	}
	text, err := p.str(param)
	*into = string(text)
	return err
}

// member takes a value over into o, unless it is null.
func (p *parser) member(o *object, name string) error {
	raw, err := p.dec.ReadValue()
	if err == nil && raw.Kind() != 'n' {
		o.add(name, raw)
	}
	return err
}

// compact returns a JSON value without white space and needless escapes, its
// numbers as they are.
func compact(raw jsontext.Value) ([]byte, error) {
	return jsontext.AppendFormat(nil, raw, jsontext.PreserveRawStrings(false))
}
