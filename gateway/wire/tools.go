package wire

import (
	"slices"
	"strings"
)

// tools are declarations. Their JSON schemas are the client's own content.
func (p *parser) tools(name string) error {
	return p.list(name, func(int) error {
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each tool must be an object")
		}
		var d declaration
		if err := p.object(true, func(key string) error { return p.toolField(&d, key) }); err != nil {
			return err
		}
		return p.declare(d)
	})
}

// functions is the older form of tools: function bodies without a wrapper.
func (p *parser) functions(name string) error {
	return p.list(name, func(int) error {
		d := declaration{kind: "function"}
		if err := p.toolBody(&d, "function"); err != nil {
			return err
		}
		return p.declare(d)
	})
}

// declaration is a tool as it was written. Engines take the name from the
// member that the type names, whatever else stands beside it; so must policy.
type declaration struct {
	kind   string
	bodies map[string]string // function and custom, to the name inside
	outer  string            // name or label beside the type
	beside bool              // other members stand beside the type
}

// toolField reads one member of an entry of tools[].
func (p *parser) toolField(d *declaration, key string) error {
	switch key {
	case "type":
		text, err := p.str("tools.type")
		d.kind = string(text)
		return err
	case "function", "custom":
		return p.toolBody(d, key)
	case "name", "server_label":
		text, err := p.text("tools."+key, FromTool)
		d.outer, d.beside = string(text), true
		return err
	case "server_url":
		p.req.RemoteURL = true
	}
	d.beside = true
	return p.unlisted(FromTool, key)
}

// toolBody reads {name, description, parameters, …}.
func (p *parser) toolBody(d *declaration, kind string) error {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid("tools."+kind, "this must be an object")
	}
	name := ""
	err := p.object(true, func(key string) error {
		if key != "name" {
			return p.unlisted(FromTool, key)
		}
		text, err := p.text("tools."+kind+".name", FromTool)
		name = string(text)
		return err
	})
	if d.bodies == nil {
		d.bodies = map[string]string{}
	}
	d.bodies[kind] = name
	return err
}

// declare settles what a tool is called. A tool that the server runs goes by
// its label, or else by its type.
func (p *parser) declare(d declaration) error {
	tool := Tool{Type: d.kind, Name: d.outer}
	if d.kind == "function" || d.kind == "custom" {
		tool.Name = d.bodies[d.kind]
		delete(d.bodies, d.kind)
		if d.beside {
			p.note("tool.field")
		}
	} else if tool.Name == "" {
		tool.Name = d.kind
	}
	if len(d.bodies) > 0 {
		p.note("tool.field")
	}
	return p.addTool(tool)
}

func (p *parser) addTool(tool Tool) error {
	if !isToolName(tool.Name) {
		return invalid("tools.name", "each tool needs a name of at most 128 letters, digits and _ - . : /")
	}
	if len(p.req.Tools) == maxTools {
		return invalid("tools", "at most 128 tools are taken")
	}
	p.req.Tools = append(p.req.Tools, tool)
	return nil
}

// isToolName reports whether a name is fit for records, which hold it.
func isToolName(name string) bool {
	for _, b := range []byte(name) {
		if !('a' <= b|0x20 && b|0x20 <= 'z' || '0' <= b && b <= '9' || strings.IndexByte("_-.:/", b) >= 0) {
			return false
		}
	}
	return name != "" && len(name) <= maxToolName
}

// Bounds on tools: their names are in the policy input, and that is in the
// record, a leaf of which has at most 64 KiB.
const (
	maxToolName = 128
	maxTools    = 128
)

// toolChoice also reads function_call, the older form.
func (p *parser) toolChoice(name string) error {
	if p.null() {
		return nil
	}
	if p.dec.PeekKind() == '{' {
		p.req.ToolChoice = ToolChoiceNamed
		return p.walk(FromTool, true)
	}
	text, err := p.str(name)
	if err != nil {
		return err
	}
	choice := ToolChoice(text)
	if !slices.Contains([]ToolChoice{ToolChoiceNone, ToolChoiceAuto, ToolChoiceRequired}, choice) {
		p.note("tool_choice")
		return nil
	}
	p.req.ToolChoice = choice
	return nil
}

// toolCall reads one entry of an assistant message's tool_calls.
func (p *parser) toolCall(m *Message) error {
	var call ToolCall
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid("messages.tool_calls", "each call must be an object")
	}
	err := p.object(true, func(key string) error {
		switch key {
		case "id":
			text, err := p.text("messages.tool_calls.id", FromToolCall)
			call.ID = string(text)
			return err
		case "type":
			text, err := p.str("messages.tool_calls.type")
			call.Type = string(text)
			return err
		case "function", "custom":
			return p.callBody(&call, key)
		case "index": // accumulators of streams keep it
			return p.walk(FromToolCall, false)
		default:
			p.note("tool_call.field")
			return p.unlisted(FromToolCall, key)
		}
	})
	if call.Type != "function" && call.Type != "custom" {
		p.note("tool_call.type")
	}
	m.ToolCalls = append(m.ToolCalls, call)
	return err
}

// functionCall is the older form of a message's tool_calls.
func (p *parser) functionCall(m *Message) error {
	if p.null() {
		return nil
	}
	call := ToolCall{Type: "function"}
	err := p.callBody(&call, "function_call")
	m.ToolCalls = append(m.ToolCalls, call)
	return err
}

// callBody reads {name, arguments}. Arguments are most often a string that
// holds JSON, sometimes an object.
func (p *parser) callBody(call *ToolCall, param string) error {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid("messages.tool_calls."+param, "this must be an object")
	}
	return p.object(true, func(key string) error {
		if key != "name" {
			return p.unlisted(FromToolCall, key)
		}
		text, err := p.text("messages.tool_calls.name", FromToolCall)
		call.Name = string(text)
		return err
	})
}
