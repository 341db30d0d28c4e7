package wire

import (
	"slices"
)

// responseFields are the request fields of the OpenAI responses reference and
// the sampling parameters that vLLM documents for this route. The gateway keeps
// nothing between requests, so whatever names an earlier one is refused, and so
// is a stored prompt.
func responseFields() map[string]field {
	fields := map[string]field{
		"model": (*parser).model, "input": (*parser).inputItems, "instructions": (*parser).instructions,
		"stream": (*parser).stream, "stream_options": (*parser).streamOptions,
		"max_output_tokens": (*parser).maxTokens,

		"tools": (*parser).flatTools, "tool_choice": (*parser).toolChoice,
		"text": (*parser).textForm, "include": (*parser).include,
		"metadata": opaque, "chat_template_kwargs": (*parser).templateKwargs, "structured_outputs": structured,

		"store": mustBe("false"), "background": mustBe("false"),
		"previous_response_id": mustBe(), "conversation": mustBe(), "prompt": mustBe(),
		"service_tier": mustBe(`"auto"`, `"default"`),

		// They steer what a provider keeps and shares; we do that.
		"prompt_cache_key": taken, "prompt_cache_retention": taken,
	}
	for _, name := range []string{
		"temperature", "top_p", "top_logprobs", "parallel_tool_calls", "max_tool_calls", "reasoning",
		"truncation", "user", "safety_identifier",
		"top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty",
		"logit_bias", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
	} {
		fields[name] = plain
	}
	return fields
}

// taken is a field that is taken out and recorded.
func taken(p *parser, name string) error {
	p.req.Removed = append(p.req.Removed, name)
	return p.skip()
}

// instructions stand above the input.
func (p *parser) instructions(name string) error {
	if p.null() {
		return nil
	}
	text, err := p.text(name, FromMessage)
	p.req.Messages = append(p.req.Messages, Message{Role: "system", Parts: []Part{{"text", text}}})
	return err
}

// itemFields are the types of input items and what each may hold besides its
// type. Those that stand for an earlier response are left out: they are refused.
var itemFields = map[string][]string{
	"message":                 {"role", "content", "id", "status", "phase"},
	"reasoning":               {"id", "summary", "content", "encrypted_content", "status"},
	"function_call":           {"id", "call_id", "name", "arguments", "status"},
	"function_call_output":    {"id", "call_id", "output", "status"},
	"custom_tool_call":        {"id", "call_id", "name", "input", "status"},
	"custom_tool_call_output": {"id", "call_id", "output", "status"},
	"file_search_call":        {"id", "queries", "results", "status"},
	"web_search_call":         {"id", "action", "status"},
	"computer_call":           {"id", "call_id", "action", "actions", "pending_safety_checks", "status"},
	"computer_call_output":    {"id", "call_id", "output", "acknowledged_safety_checks", "status"},
	"code_interpreter_call":   {"id", "code", "container_id", "outputs", "status"},
	"local_shell_call":        {"id", "call_id", "action", "status"},
	"local_shell_call_output": {"id", "call_id", "output", "status"},
	"shell_call":              {"id", "call_id", "action", "status"},
	"shell_call_output":       {"id", "call_id", "output", "max_output_length", "status"},
	"apply_patch_call":        {"id", "call_id", "operation", "status"},
	"apply_patch_call_output": {"id", "call_id", "output", "status"},
	"image_generation_call":   {"id", "result", "status"},
	"mcp_list_tools":          {"id", "server_label", "tools", "error"},
	"mcp_approval_request":    {"id", "server_label", "name", "arguments"},
	"mcp_approval_response":   {"id", "approval_request_id", "approve", "reason"},
	"mcp_call":                {"id", "server_label", "name", "arguments", "output", "error", "approval_request_id", "status"},
}

// resultItems are what came of a call.
var resultItems = []string{
	"function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
	"shell_call_output", "apply_patch_call_output", "mcp_approval_response",
}

// inputItems is a text, or a list of items.
func (p *parser) inputItems(name string) error {
	defer func() { p.message = -1 }()
	switch p.dec.PeekKind() {
	case '"', 0:
		p.message = len(p.req.Messages)
		text, err := p.text(name, FromMessage)
		p.req.Messages = append(p.req.Messages, Message{Role: "user", Parts: []Part{{"text", text}}})
		return err
	case '[':
	default:
		return invalid(name, "this must be a text or a list of items")
	}
	err := p.array(func(int) error {
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each item must be an object")
		}
		if err := another(&p.entries.messages, name); err != nil {
			return err
		}
		p.message = len(p.req.Messages)
		return p.inputItem()
	})
	if err == nil && p.entries.messages == 0 {
		return invalid(name, "at least one item is required")
	}
	return err
}

// inputItem reads one item into a message: what it would be in chat.
func (p *parser) inputItem() error {
	var m Message
	var kind string
	var call ToolCall
	var keys []string
	err := p.object(true, func(key string) error {
		if key == "type" {
			return p.optionalWord(&kind, "input.type")
		}
		keys = append(keys, key)
		return p.itemField(&m, &call, key)
	})
	if err != nil {
		return err
	}
	if kind == "" && slices.Contains(keys, "role") {
		kind = "message" // the short form
	}
	allowed, known := itemFields[kind]
	switch {
	case kind == "", kind == "item_reference":
		return unsupported("input", "items that a server holds are not supported; send the item itself")
	case !known:
		p.note("item.type")
		kind = "" // the client's own word
	}
	for _, key := range keys {
		if known && !slices.Contains(allowed, key) {
			p.note("item.field")
		}
	}
	p.req.Items = append(p.req.Items, kind)
	p.req.Messages = append(p.req.Messages, p.itemMessage(kind, m, call))
	return nil
}

// itemMessage settles whose words an item is.
func (p *parser) itemMessage(kind string, m Message, call ToolCall) Message {
	switch {
	case kind == "message":
		if !slices.Contains(roles, m.Role) {
			p.note("message.role")
		}
	case slices.Contains(resultItems, kind):
		m.Role, m.ToolCallID = "tool", call.ID
	case kind == "reasoning", kind == "":
		m.Role = "assistant"
	default:
		call.Type = kind
		m.Role, m.ToolCalls = "assistant", []ToolCall{call}
	}
	return m
}

// itemField reads one member of an item.
func (p *parser) itemField(m *Message, call *ToolCall, key string) error {
	if p.null() {
		return nil
	}
	switch key {
	case "role":
		return p.optionalWord(&m.Role, "input.role")
	case "content", "output", "summary":
		return p.itemContent(m, "input."+key)
	case "name":
		text, err := p.text("input.name", FromToolCall)
		call.Name = string(text)
		return err
	case "call_id":
		text, err := p.text("input.call_id", FromToolCall)
		call.ID = string(text)
		return err
	case "encrypted_content", "result":
		p.req.Media = true // nobody here can read it
		return p.skip()
	case "container_id":
		p.req.ExternalState = true
	}
	return p.unlisted(FromToolCall, key)
}

// itemContent is a text, a list of parts, or one part by itself.
func (p *parser) itemContent(m *Message, param string) error {
	switch p.dec.PeekKind() {
	case '"', 0:
		text, err := p.text(param, FromMessage)
		m.Parts = append(m.Parts, Part{"text", text})
		return err
	case '[':
		return p.array(func(int) error {
			if err := another(&p.entries.parts, param); err != nil {
				return err
			}
			return p.itemPart(m, param)
		})
	case '{':
		return p.itemPart(m, param)
	default:
		return invalid(param, "this must be a text or a list of parts")
	}
}

// itemParts are the types of parts and what each may hold besides its type.
var itemParts = map[string][]string{
	"input_text":          {"text"},
	"output_text":         {"text", "annotations", "logprobs"},
	"refusal":             {"refusal"},
	"summary_text":        {"text"},
	"reasoning_text":      {"text"},
	"text":                {"text"},
	"input_image":         {"image_url", "file_id", "detail"},
	"input_audio":         {"input_audio"},
	"input_file":          {"file_data", "file_id", "file_url", "filename", "detail"},
	"computer_screenshot": {"image_url", "file_id"},
}

func (p *parser) itemPart(m *Message, param string) error {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid(param, "each part must be an object")
	}
	var part Part
	var keys []string
	err := p.object(true, func(key string) (err error) {
		if key == "type" {
			return p.optionalWord(&part.Type, param+".type")
		}
		keys = append(keys, key)
		if p.null() {
			return nil
		}
		switch key {
		case "text", "refusal":
			part.Text, err = p.text(param+"."+key, FromMessage)
		case "image_url", "file_id", "file_url", "file_data", "input_audio":
			p.req.Media = true
			err = p.media(key)
		default:
			err = p.unlisted(FromField, key)
		}
		return err
	})
	if err != nil {
		return err
	}
	p.checkPart(itemParts, part.Type, keys)
	m.Parts = append(m.Parts, part)
	return nil
}

// flatTools are tools without a wrapper around their function.
func (p *parser) flatTools(name string) error {
	return p.list(name, func(int) error {
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each tool must be an object")
		}
		d := declaration{}
		err := p.object(true, func(key string) error {
			if key == "function" {
				// Chat's form. An engine that took it would read another name.
				p.note("tool.field")
				return p.unlisted(FromTool, key)
			}
			return p.toolField(&d, key)
		})
		if err != nil {
			return err
		}
		return p.declareFlat(d)
	})
}

func (p *parser) declareFlat(d declaration) error {
	tool := Tool{Type: d.kind, Name: d.outer}
	if tool.Name == "" && d.kind != "function" && d.kind != "custom" {
		tool.Name = d.kind
	}
	if len(d.bodies) > 0 {
		p.note("tool.field")
	}
	return p.addTool(tool)
}

// textForm says what form the answer has.
func (p *parser) textForm(name string) error {
	if p.null() {
		return nil
	}
	if p.dec.PeekKind() != '{' {
		return invalid(name, "this must be an object")
	}
	return p.object(true, func(key string) error {
		if key == "format" {
			return p.responseFormat(name + ".format")
		}
		if key != "verbosity" {
			p.note("text.field")
		}
		return p.unlisted(FromField, key)
	})
}

// includable are the parts of an answer that a client may ask for.
var includable = []string{
	"code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
	"message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content",
	"web_search_call.action.sources", "web_search_call.results",
}

func (p *parser) include(name string) error {
	return p.list(name, func(int) error {
		text, err := p.text(name, FromField)
		if err == nil && !slices.Contains(includable, string(text)) {
			p.note("include")
		}
		return err
	})
}
