package wire

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
)

// opaque passes a field's value through as the client's own content.
func opaque(p *parser, _ string) error { return p.walk(FromField, true) }

// plain passes a field's value through as a setting.
func plain(p *parser, _ string) error { return p.walk(FromField, false) }

// structured passes a field that constrains the form of the answer.
func structured(p *parser, _ string) error {
	if p.null() {
		return nil
	}
	p.req.StructuredOutput = true
	return p.walk(FromField, true)
}

// maxSettingBytes is more than any setting that mustBe takes, with white space.
const maxSettingBytes = 256

// mustBe accepts null and the given raw values only. What it accepts means the
// same as the field's absence.
func mustBe(values ...string) field {
	return func(p *parser, name string) error {
		raw, err := p.dec.ReadValue()
		if err != nil {
			return err
		}
		if len(raw) > maxSettingBytes {
			return unsupported(name, "this field does not accept that value")
		}
		compact := raw.Clone()
		if err := compact.Compact(); err != nil {
			return err
		}
		if s := string(compact); s == "null" || slices.Contains(values, s) {
			return nil
		}
		if len(values) == 0 {
			return unsupported(name, "this field is not supported here")
		}
		return unsupported(name, "this field accepts only "+strings.Join(values, " or "))
	}
}

func (p *parser) model(name string) error {
	text, err := p.str(name)
	if err != nil {
		return err
	}
	if len(text) == 0 || len(text) > maxModelBytes || bytes.ContainsFunc(text, unicode.IsControl) {
		return invalid(name, "this is not a model name")
	}
	p.req.Model = string(text)
	return nil
}

func (p *parser) stream(name string) (err error) {
	p.req.Stream, err = p.boolean(name)
	return err
}

func (p *parser) streamOptions(name string) error {
	if p.null() {
		return nil
	}
	if p.dec.PeekKind() != '{' {
		return invalid(name, "this must be an object")
	}
	return p.object(true, func(option string) (err error) {
		param := name + "." + option
		switch option {
		case "include_usage":
			p.req.IncludeUsage, err = p.boolean(param)
		case "continuous_usage_stats", "include_obfuscation":
			_, err = p.boolean(param)
		default:
			err = unsupported(param, "this field is not supported here")
		}
		return err
	})
}

func (p *parser) n(name string) error {
	n, ok, err := p.integer(name, 1)
	if ok {
		p.req.N = n
	}
	return err
}

func (p *parser) maxTokens(name string) error {
	limit, ok, err := p.integer(name, 0)
	if err != nil || !ok {
		return err
	}
	p.req.maxTokens[name] = limit
	if p.req.MaxTokens == nil || limit > *p.req.MaxTokens {
		p.req.MaxTokens = &limit
	}
	return nil
}

// documents are retrieved passages that the template puts into the prompt.
func (p *parser) documents(name string) error {
	return p.list(name, func(int) error {
		if err := another(&p.req.Documents, name); err != nil {
			return err
		}
		return p.walk(FromDocument, true)
	})
}

// list reads an array, or null for none.
func (p *parser) list(name string, element func(i int) error) error {
	if p.null() {
		return nil
	}
	if k := p.dec.PeekKind(); k != '[' && k != 0 {
		return invalid(name, "this must be a list")
	}
	return p.array(element)
}

var responseFormats = []string{"text", "json_object", "json_schema", "structural_tag"}

func (p *parser) responseFormat(name string) error {
	if p.null() {
		return nil
	}
	kind, err := p.typed(name, FromField)
	if err != nil {
		return err
	}
	if !slices.Contains(responseFormats, kind) {
		p.note("response_format.type")
	}
	p.req.StructuredOutput = p.req.StructuredOutput || kind != "text"
	return nil
}

// typed reads an object of free content and returns its "type".
func (p *parser) typed(name string, from Origin) (kind string, err error) {
	if k := p.dec.PeekKind(); k != '{' && k != 0 {
		return "", invalid(name, "this must be an object")
	}
	err = p.object(true, func(key string) error {
		if key != "type" {
			return p.unlisted(from, key)
		}
		text, err := p.str(name + ".type")
		kind = string(text)
		return err
	})
	return kind, err
}

// templateReserved are arguments of the template renderer itself. A client that
// set them could replace the template or smuggle in messages, documents and
// tools that no other field shows.
var templateReserved = []string{
	"chat_template", "tokenize", "messages", "conversation", "documents", "tools",
	"tokenizer_kwargs", "return_tensors", "return_dict", "return_assistant_tokens_mask",
	"padding", "truncation", "max_length", "add_generation_prompt", "continue_final_message",
}

// templateKwargs accepts switches of a chat template: scalars under names that
// the renderer does not take itself.
func (p *parser) templateKwargs(name string) error {
	if p.null() {
		return nil
	}
	if p.dec.PeekKind() != '{' {
		return invalid(name, "this must be an object")
	}
	return p.object(true, func(key string) error {
		if slices.Contains(templateReserved, key) {
			return unsupported(name+"."+key, "this field is not supported here")
		}
		if k := p.dec.PeekKind(); k == '{' || k == '[' {
			return unsupported(name+"."+key, "only a string, a number, true, false or null is supported here")
		}
		return p.unlisted(FromField, key)
	})
}

// note records an unknown type or field by its place, which is ours to name;
// the client's own word could be prompt text.
func (p *parser) note(place string) { p.unknown[place] = true }
