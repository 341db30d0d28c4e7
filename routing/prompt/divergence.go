package prompt

import (
	"context"
	"strings"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
)

// Part is the part of a prompt that a token belongs to: where the engine's
// prompt parts from ours says what is to be put right.
type Part string

// The parts.
const (
	BOS      Part = "bos"       // the beginning, where special tokens are added or not
	Date     Part = "date"      // what the template prints of the time
	ToolJSON Part = "tool_json" // what the template prints of the tools
	Kwargs   Part = "kwargs"    // the template's own text, which chat_template_kwargs and the template itself decide
	Content  Part = "content"   // what a message says
)

// Body says what kind of body a prompt was made of.
type Body uint8

// The kinds of body.
const (
	ChatBody Body = iota
	CompletionBody
	ResponseBody
)

// apart is what the clock is moved by to find what depends on it: so far that
// day, month and year are others.
const apart = 400 * 24 * time.Hour

// PartAt says which part of the prompt of a body the first difference is in,
// that lies in ids[from:to]; theirs is the engine's number of tokens, or 0. It
// is asked when something has gone wrong, and renders the prompt some times
// more: with another clock, without tools, without chat_template_kwargs. What
// changes with one of these depends on it. The result is empty where the body
// has no prompt here.
func (m *Model) PartAt(ctx context.Context, kind Body, body []byte, ids []uint32, from, to, theirs int) Part {
	from, to = min(max(from, 0), len(ids)), min(max(to, from+1), len(ids))
	if grown := theirs - len(ids); from == 0 && (to <= 1 || theirs > 0 && (grown == 1 || grown == -1)) {
		return BOS
	}
	if kind == CompletionBody {
		return Content
	}
	read := readChat
	if kind == ResponseBody {
		read = readResponse
	}
	b, err := read(body)
	if err != nil {
		return ""
	}
	text, messages, err := m.render(ctx, b, m.limits(body))
	if err != nil {
		return ""
	}
	r := region{m.bytes(ids[:from]), max(m.bytes(ids[:to]), m.bytes(ids[:from])+1)}
	for _, other := range []struct {
		part   Part
		render func() (string, error)
	}{
		{Date, func() (string, error) {
			l := m.limits(body)
			l.Now = l.Now.Add(apart)
			return m.text(ctx, b, l)
		}},
		{ToolJSON, func() (string, error) {
			c := *b
			c.Tools = nil
			return m.text(ctx, &c, m.limits(body))
		}},
		{Kwargs, func() (string, error) {
			plain, c := *m, *b
			plain.defaults, c.TemplateArgs = &jinja.Dict{}, nil
			return plain.text(ctx, &c, m.limits(body))
		}},
	} {
		if without, err := other.render(); err == nil && differing(text, without).meets(r) {
			return other.part
		}
	}
	if said(text, messages, region{r.from, r.from + 1}) { // as far as one can tell of a whole block
		return Content
	}
	return Kwargs
}

func (m *Model) text(ctx context.Context, b *chatBody, limits jinja.Limits) (string, error) {
	text, _, err := m.render(ctx, b, limits)
	return text, err
}

// bytes is how long the text of ids is.
func (m *Model) bytes(ids []uint32) int { return len(m.Decode(ids)) }

// region is a part of a text, in bytes.
type region struct{ from, to int }

func (r region) meets(o region) bool { return r.from < o.to && o.from < r.to }

// differing is the region of a that is not in b; empty if they are the same.
func differing(a, b string) region {
	from := 0
	for from < len(a) && from < len(b) && a[from] == b[from] {
		from++
	}
	if from == len(a) && from == len(b) {
		return region{}
	}
	same := 0
	for same < min(len(a), len(b))-from && a[len(a)-1-same] == b[len(b)-1-same] {
		same++
	}
	return region{from, max(len(a)-same, from+1)}
}

// said reports whether the region holds any of what messages say.
func said(text string, messages *jinja.List, r region) bool {
	at := 0
	for i := range messages.Len() {
		m, _ := messages.At(i).(*jinja.Dict)
		for _, s := range texts(m) {
			found := strings.Index(text[at:], s)
			if found < 0 {
				s = strings.TrimSpace(s) // as many templates do
				found = strings.Index(text[at:], s)
			}
			if found < 0 || s == "" {
				continue // the template changed or left it out
			}
			at += found
			if (region{at, at + len(s)}).meets(r) {
				return true
			}
			at += len(s)
		}
	}
	return false
}

// texts are those of a message's content.
func texts(m *jinja.Dict) (out []string) {
	content, _ := m.Get("content")
	switch c := content.(type) {
	case string:
		out = append(out, c)
	case *jinja.List:
		for i := range c.Len() {
			part, _ := c.At(i).(*jinja.Dict)
			text, _ := part.Get("text")
			s, _ := text.(string)
			out = append(out, s)
		}
	}
	return out
}
