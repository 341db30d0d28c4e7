package wire

import (
	"bytes"
	"slices"
	"strings"
)

// block is one content block of a message of Anthropic's.
type block struct {
	kind string

	text   []byte // of text and thinking
	id     []byte // of a tool_use, and which one a tool_result answers
	name   []byte // of the tool
	input  []byte // of a tool_use, a JSON object
	url    []byte // of an image
	result []block
	failed bool // the tool did
}

// blockFields are the block types that have a counterpart, and what each may
// hold besides its type.
var blockFields = map[string][]string{
	"text":        {"text", "citations", "cache_control"},
	"image":       {"source", "cache_control"},
	"tool_use":    {"id", "name", "input", "cache_control"},
	"tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
	"thinking":    {"thinking", "signature"},
}

var blockNeeds = map[string][]string{
	"text": {"text"}, "image": {"source"}, "tool_use": {"id", "name", "input"},
	"tool_result": {"tool_use_id"}, "thinking": {"thinking"},
}

// foreignBlocks are the block types of the reference that have none: what the
// provider's own tools, its store and its search leave behind.
var foreignBlocks = []string{
	"redacted_thinking", "document", "search_result", "container_upload", "tool_reference",
	"server_tool_use", "web_search_tool_result", "web_fetch_tool_result",
	"code_execution_tool_result", "bash_code_execution_tool_result",
	"text_editor_code_execution_tool_result", "tool_search_tool_result",
	"mcp_tool_use", "mcp_tool_result", "compaction",
}

// turns are the messages of the conversation.
func (p *parser) turns(name string) error {
	if k := p.dec.PeekKind(); k != '[' && k != 0 {
		return invalid(name, "this must be a list of messages")
	}
	return p.array(func(int) error {
		if err := another(&p.entries.messages, name); err != nil {
			return err
		}
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each message must be an object")
		}
		role := ""
		var said []block
		err := p.object(true, func(key string) (err error) {
			switch key {
			case "role":
				err = p.optionalWord(&role, "messages.role")
			case "content":
				said, err = p.blocks("messages.content")
			default:
				p.lose("message.field")
				err = p.skip()
			}
			return err
		})
		if err != nil {
			return err
		}
		p.into.prefill = false
		if role == "assistant" {
			return p.assistantTurn(said)
		}
		if role != "user" {
			p.lose("message.role")
		}
		return p.userTurn(said)
	})
}

// userTurn becomes a tool message for each result, and a user message of what
// follows them.
func (p *parser) userTurn(said []block) error {
	rest := said
	for len(rest) > 0 && rest[0].kind == "tool_result" {
		m, err := p.toolMessage(rest[0])
		if err != nil {
			return err
		}
		p.into.messages = append(p.into.messages, m)
		rest = rest[1:]
	}
	for _, b := range rest {
		if b.kind != "text" && b.kind != "image" {
			return p.misplaced(b, "messages.content")
		}
	}
	if len(rest) > 0 || len(said) == 0 {
		var m object
		m.str("role", "user")
		addContent(&m, rest)
		p.into.messages = append(p.into.messages, m)
	}
	return nil
}

// toolMessage is a tool's result. Chat has no mark for a failure, so it is said
// in words.
func (p *parser) toolMessage(b block) (object, error) {
	for _, part := range b.result {
		if part.kind != "text" {
			return nil, p.misplaced(part, "messages.content.content")
		}
	}
	if b.failed {
		b.result = append([]block{{kind: "text", text: []byte("Error:")}}, b.result...)
	}
	var m object
	m.str("role", "tool")
	m.text("tool_call_id", b.id)
	addContent(&m, b.result)
	return m, nil
}

// assistantTurn becomes one message: reasoning, then text, then calls. Another
// order cannot be said in chat.
func (p *parser) assistantTurn(said []block) error {
	var thoughts [][]byte
	var texts []block
	var calls []object
	stage := 0
	for _, b := range said {
		at := slices.Index([]string{"thinking", "text", "tool_use"}, b.kind)
		switch {
		case at < 0:
			return p.misplaced(b, "messages.content")
		case at < stage:
			return unsupported("messages.content", "thinking, text and tool_use blocks of one message are supported in that order only")
		}
		stage = at
		switch b.kind {
		case "thinking":
			thoughts = append(thoughts, b.text)
		case "text":
			texts = append(texts, b)
		case "tool_use":
			calls = append(calls, b.call())
		}
	}
	var m object
	m.str("role", "assistant")
	if len(texts) > 0 || len(calls) == 0 {
		addContent(&m, texts)
	} else {
		m.add("content", []byte("null"))
	}
	if len(thoughts) > 0 {
		m.text("reasoning", bytes.Join(thoughts, []byte("\n")))
	}
	if len(calls) > 0 {
		m.list("tool_calls", calls)
	}
	p.into.messages = append(p.into.messages, m)
	p.into.prefill = len(calls) == 0 && len(texts) > 0
	return nil
}

func (b block) call() object {
	var fn, call object
	fn.text("name", b.name)
	fn.text("arguments", b.input)
	call.text("id", b.id)
	call.str("type", "function")
	call.add("function", fn.end())
	return call
}

// addContent appends the content of a message: a string for one text and a list
// of parts for anything else.
func addContent(m *object, blocks []block) {
	switch {
	case len(blocks) == 0:
		m.str("content", "")
		return
	case len(blocks) == 1 && blocks[0].kind == "text":
		m.text("content", blocks[0].text)
		return
	}
	parts := make([]object, len(blocks))
	for i, b := range blocks {
		if b.kind == "image" {
			var link object
			link.text("url", b.url)
			parts[i].str("type", "image_url")
			parts[i].add("image_url", link.end())
			continue
		}
		parts[i].str("type", "text")
		parts[i].text("text", b.text)
	}
	m.list("content", parts)
}

// misplaced refuses a known block where it does not belong. An unknown one is
// noted already.
func (p *parser) misplaced(b block, param string) error {
	if b.kind == "" {
		return nil
	}
	if b.kind == "image" {
		return unsupported(param, "an image here is not supported")
	}
	return invalid(param, "a block of type "+b.kind+" does not belong here")
}

// blocks reads a string or a list of content blocks.
func (p *parser) blocks(param string) ([]block, error) {
	switch p.dec.PeekKind() {
	case '"':
		text, err := p.str(param)
		return []block{{kind: "text", text: text}}, err
	case '[', 0:
	default:
		return nil, invalid(param, "this must be a string or a list of blocks")
	}
	var out []block
	err := p.array(func(int) error {
		if err := another(&p.entries.parts, param); err != nil {
			return err
		}
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(param, "each block must be an object")
		}
		b, err := p.block(param)
		if err == nil && b.kind != "" {
			out = append(out, b)
		}
		return err
	})
	return out, err
}

// block reads one. Its kind is empty if nobody knows it.
func (p *parser) block(param string) (block, error) {
	var b block
	var keys []string
	err := p.object(true, func(key string) error {
		if key != "type" {
			keys = append(keys, key)
		}
		return p.blockField(&b, param, key)
	})
	if err != nil {
		return block{}, err
	}
	allowed, known := blockFields[b.kind]
	switch {
	case slices.Contains(foreignBlocks, b.kind):
		return block{}, unsupported(param, "blocks of type "+b.kind+" have no counterpart for this model")
	case !known:
		p.lose("part.type")
		return block{}, nil
	}
	for _, key := range keys {
		if !slices.Contains(allowed, key) {
			p.lose("part.field")
		}
	}
	for _, key := range blockNeeds[b.kind] {
		if !slices.Contains(keys, key) {
			return block{}, invalid(param+"."+key, "this field is required")
		}
	}
	return b, nil
}

func (p *parser) blockField(b *block, param, key string) (err error) {
	at := param + "." + key
	switch key {
	case "type":
		return p.optionalWord(&b.kind, at)
	case "text", "thinking":
		return p.bytes(&b.text, at)
	case "id", "tool_use_id":
		return p.bytes(&b.id, at)
	case "name":
		return p.bytes(&b.name, at)
	case "input":
		return p.input(b, at)
	case "source":
		return p.source(b, at)
	case "content":
		if p.null() {
			return nil
		}
		b.result, err = p.blocks(at)
		return err
	case "is_error":
		b.failed, err = p.boolean(at)
		return err
	case "cache_control", "signature":
		return p.dropped(at)
	case "citations":
		return p.citations(at)
	default:
		return p.skip()
	}
}

func (p *parser) bytes(into *[]byte, param string) error {
	text, err := p.str(param)
	*into = text
	return err
}

// optionalBytes reads a string, which may be long, or null.
func (p *parser) optionalBytes(into *[]byte, param string) error {
	if p.null() {
		return nil
	}
	return p.bytes(into, param)
}

// input is what the model wrote for a tool.
func (p *parser) input(b *block, param string) error {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid(param, "this must be an object")
	}
	raw, err := p.dec.ReadValue()
	if err != nil {
		return err
	}
	b.input, err = compact(raw)
	return err
}

// citations point into documents, which have no counterpart.
func (p *parser) citations(param string) error {
	if p.null() {
		return nil
	}
	return p.list(param, func(int) error {
		return unsupported(param, "citations have no counterpart for this model")
	})
}

// source says where an image is.
func (p *parser) source(b *block, param string) error {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid(param, "this must be an object")
	}
	var kind, mediaType string
	var data, url []byte
	err := p.object(true, func(key string) error {
		switch key {
		case "type":
			return p.optionalWord(&kind, param+".type")
		case "media_type":
			return p.optionalWord(&mediaType, param+".media_type")
		case "data":
			return p.optionalBytes(&data, param+".data")
		case "url":
			return p.optionalBytes(&url, param+".url")
		case "file_id":
			return unsupported(param+".file_id", "files that the provider keeps are not supported here")
		default:
			p.lose("part.field")
			return p.skip()
		}
	})
	if err != nil {
		return err
	}
	switch kind {
	case "base64":
		if !slices.Contains(imageTypes, mediaType) {
			return unsupported(param+".media_type", "this field accepts only "+strings.Join(imageTypes, ", "))
		}
		b.url = slices.Concat([]byte("data:"+mediaType+";base64,"), data)
	case "url":
		b.url = url
	default:
		p.lose("part.type")
	}
	return nil
}

var imageTypes = []string{"image/jpeg", "image/png", "image/gif", "image/webp"}
