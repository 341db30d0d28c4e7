package wire

import "slices"

// tools are declarations. Their JSON schemas are the client's own content.
func (p *parser) tools(name string) error {
	return p.list(name, func(int) error {
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each tool must be an object")
		}
		var tool Tool
		err := p.object(true, func(key string) error {
			switch key {
			case "type":
				text, err := p.str(name + ".type")
				tool.Type = string(text)
				return err
			case "function", "custom":
				return p.toolBody(&tool, name+"."+key)
			default:
				return p.toolField(&tool, key)
			}
		})
		p.req.Tools = append(p.req.Tools, tool)
		return err
	})
}

// functions is the older form of tools: function bodies without a wrapper.
func (p *parser) functions(name string) error {
	return p.list(name, func(int) error {
		tool := Tool{Type: "function"}
		err := p.toolBody(&tool, name)
		p.req.Tools = append(p.req.Tools, tool)
		return err
	})
}

// toolBody reads {name, description, parameters, …}.
func (p *parser) toolBody(tool *Tool, param string) error {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid(param, "this must be an object")
	}
	return p.object(true, func(key string) error { return p.toolField(tool, key) })
}

func (p *parser) toolField(tool *Tool, key string) error {
	switch key {
	case "name", "server_label":
		text, err := p.text("tools."+key, FromTool)
		if tool.Name == "" {
			tool.Name = string(text)
		}
		return err
	case "server_url":
		p.req.RemoteURL = true
	}
	return p.unlisted(FromTool, key)
}

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
