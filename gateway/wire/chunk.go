package wire

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// chunkReader reads what an engine answers. Unlike a client's body, an answer
// is taken as it comes: a field of another type than expected counts as absent.
type chunkReader struct {
	dec *jsontext.Decoder
}

var errNotObject = errors.New("not an object")

// object calls member after each name, with the value still to be read. At the
// top level anything but an object is an error.
func (r chunkReader) object(member func(name []byte) error) error {
	if k := r.dec.PeekKind(); k != '{' && k != 0 {
		if r.dec.StackDepth() == 0 {
			return errNotObject
		}
		return r.dec.SkipValue()
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	for r.dec.PeekKind() != '}' {
		raw, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		if err := member(unquote(raw)); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return err
}

func (r chunkReader) array(element func() error) error {
	if r.dec.PeekKind() != '[' {
		return r.dec.SkipValue()
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	for r.dec.PeekKind() != ']' {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return err
}

// whole reads an object and nothing after it. Its error is ErrAnswer.
func (r chunkReader) whole(member func(name []byte) error) error {
	err := r.object(member)
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return fmt.Errorf("%w at byte %d", ErrAnswer, r.dec.InputOffset())
	}
	return nil
}

func (r chunkReader) end() error {
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("data after the object")
	}
	return nil
}

func (r chunkReader) choice(c *chunk) error {
	return r.object(func(name []byte) error {
		if string(name) != "finish_reason" || c.finish != "" {
			return r.dec.SkipValue()
		}
		return r.str(&c.finish)
	})
}

// usage reads both namings: prompt and completion of chat, input and output of
// responses.
func (r chunkReader) usage(into **Usage) error {
	if r.dec.PeekKind() != '{' {
		return r.dec.SkipValue()
	}
	u := new(Usage)
	*into = u
	return r.object(func(name []byte) error {
		switch string(name) {
		case "prompt_tokens", "input_tokens":
			return r.count(&u.PromptTokens)
		case "completion_tokens", "output_tokens":
			return r.count(&u.CompletionTokens)
		case "prompt_tokens_details", "input_tokens_details":
			return r.object(func(name []byte) error {
				if string(name) != "cached_tokens" {
					return r.dec.SkipValue()
				}
				cached := -1
				err := r.count(&cached)
				if cached >= 0 {
					u.CachedTokens = &cached
				}
				return err
			})
		}
		return r.dec.SkipValue()
	})
}

// count reads a whole number; anything else leaves into as it is.
func (r chunkReader) count(into *int) error {
	raw, err := r.dec.ReadValue()
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(string(raw), 10, 31); err == nil {
		*into = int(n)
	}
	return nil
}

// str reads a string; anything else leaves into as it is.
func (r chunkReader) str(into *string) error {
	raw, err := r.dec.ReadValue()
	if err != nil {
		return err
	}
	if raw.Kind() == '"' {
		*into = string(unquote(raw))
	}
	return nil
}
