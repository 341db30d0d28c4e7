package wire

import (
	"bytes"
	"slices"
)

// roles are the message roles of the chat API; function is its older tool.
var roles = []string{"system", "developer", "user", "assistant", "tool", "function"}

func (p *parser) messages(name string) error {
	if k := p.dec.PeekKind(); k != '[' && k != 0 {
		return invalid(name, "this must be a list of messages")
	}
	err := p.array(func(i int) error {
		p.message = i
		if err := another(&p.entries.messages, name); err != nil {
			return err
		}
		if k := p.dec.PeekKind(); k != '{' && k != 0 {
			return invalid(name, "each message must be an object")
		}
		return p.oneMessage()
	})
	p.message = -1
	if err == nil && len(p.req.Messages) == 0 {
		return invalid(name, "at least one message is required")
	}
	return err
}

func (p *parser) oneMessage() error {
	var m Message
	err := p.object(true, func(key string) error { return p.messageField(&m, key) })
	if err != nil {
		return err
	}
	if !slices.Contains(roles, m.Role) {
		p.note("message.role")
	}
	p.req.Messages = append(p.req.Messages, m)
	return nil
}

func (p *parser) messageField(m *Message, key string) error {
	switch key {
	case "role":
		text, err := p.str("messages.role")
		m.Role = string(text)
		return err
	case "content":
		return p.content(m)
	case "name":
		return p.optional(&m.Name, "messages.name")
	case "tool_call_id":
		return p.optional(&m.ToolCallID, "messages.tool_call_id")
	case "tool_calls":
		return p.list("messages.tool_calls", func(int) error {
			if err := another(&p.entries.calls, "messages.tool_calls"); err != nil {
				return err
			}
			return p.toolCall(m)
		})
	case "function_call":
		return p.functionCall(m)
	case "refusal", "reasoning", "reasoning_content":
		return p.walk(FromMessage, false)
	case "annotations":
		return p.walk(FromField, true)
	case "audio":
		return p.heldAudio()
	case "tools": // vLLM takes tools in a developer message
		return p.tools("messages.tools")
	default:
		p.note("message.field")
		return p.unlisted(FromField, key)
	}
}

// optional reads a string or null and records it.
func (p *parser) optional(into *string, param string) error {
	if p.null() {
		return nil
	}
	text, err := p.text(param, FromField)
	*into = string(text)
	return err
}

// heldAudio is an earlier spoken answer, named by the id under which the server
// keeps it.
func (p *parser) heldAudio() error {
	if p.null() {
		return nil
	}
	p.req.ExternalState, p.req.Media = true, true
	return p.walk(FromField, true)
}

func (p *parser) content(m *Message) error {
	switch p.dec.PeekKind() {
	case 'n':
		_, err := p.dec.ReadToken()
		return err
	case '"':
		text, err := p.text("messages.content", FromMessage)
		m.Parts = append(m.Parts, Part{"text", text})
		return err
	case '[':
		return p.array(func(int) error {
			if err := another(&p.entries.parts, "messages.content"); err != nil {
				return err
			}
			return p.part(m)
		})
	case 0:
		_, err := p.dec.ReadToken()
		return err
	default:
		return invalid("messages.content", "this must be a string or a list of parts")
	}
}

// partFields lists the content part types and what each may hold besides its
// type. A part is read by its type alone: some engines guess from the fields.
var partFields = map[string][]string{
	"text":        {"text"},
	"refusal":     {"refusal"},
	"image_url":   {"image_url"},
	"input_audio": {"input_audio"},
	"audio_url":   {"audio_url"},
	"video_url":   {"video_url"},
	"file":        {"file"},
}

func (p *parser) part(m *Message) error {
	if p.dec.PeekKind() == '"' { // vLLM takes bare strings among the parts
		text, err := p.text("messages.content", FromMessage)
		m.Parts = append(m.Parts, Part{"text", text})
		return err
	}
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return invalid("messages.content", "each part must be an object")
	}
	var part Part
	var keys []string
	err := p.object(true, func(key string) (err error) {
		if key == "type" {
			text, err := p.str("messages.content.type")
			part.Type = string(text)
			return err
		}
		keys = append(keys, key)
		switch key {
		case "text", "refusal":
			part.Text, err = p.text("messages.content."+key, FromMessage)
		case "image_url", "input_audio", "audio_url", "video_url", "file":
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
	p.checkPart(partFields, part.Type, keys)
	m.Parts = append(m.Parts, part)
	return nil
}

// checkPart notes a part of a type that is not in a table, and a field that the
// table does not list for its type.
func (p *parser) checkPart(table map[string][]string, kind string, keys []string) {
	allowed, known := table[kind]
	if !known {
		p.note("part.type")
	}
	for _, key := range keys {
		if !slices.Contains(allowed, key) {
			p.note("part.field")
		}
	}
}

// media reads the value of a media part. Payloads are not text; links are.
func (p *parser) media(key string) error {
	switch p.dec.PeekKind() {
	case '{':
		return p.object(true, func(key string) error {
			p.record(FromField, plainText)
			return p.media(key)
		})
	case '"':
		return p.mediaString(key)
	default:
		return p.walk(FromField, true)
	}
}

func (p *parser) mediaString(key string) error {
	text, err := p.str("messages.content")
	if err != nil {
		return err
	}
	switch key {
	case "data", "file_data":
		return nil
	case "url", "image_url", "audio_url", "video_url", "file_url":
		if hasPrefixFold(text, "data:") {
			return nil
		}
		p.req.RemoteURL = true
	case "file_id", "id":
		p.req.ExternalState = true
	}
	p.record(FromField, plainText)
	return nil
}

func hasPrefixFold(text []byte, prefix string) bool {
	return len(text) >= len(prefix) && bytes.EqualFold(text[:len(prefix)], []byte(prefix))
}
