// Package prompt turns the body of a request into the token ids that the
// engine will make of it.
//
// Start at [Load] or [Open], and [Model.Chat]. A model is a folder with tokenizer.json,
// tokenizer_config.json and, if the template is not in the latter,
// chat_template.jinja. A chat body goes through what vLLM does to it
// (request.go), the model's chat template (package jinja) and its tokenizer
// (package tokenizer).
//
// # Exact, or not at all
//
// Ids that differ from the engine's in one place predict cache hits that never
// come, and nothing fails. So a model that uses anything not implemented does
// not load, and a body whose prompt cannot be computed exactly (images, a
// template of its own) is [ErrUnsupported]: the caller estimates instead and
// says so. The reference is vLLM's OpenAI server with a text model and default
// flags.
package prompt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// ErrUnsupported is in the chain of the errors about a body whose token ids
// cannot be computed; its number of tokens can only be estimated.
var ErrUnsupported = errors.New("prompt cannot be computed")

// ErrLeftToEngine says that a folder holds a tokenizer that only its engine
// has: Mistral's Tekken. Its prompts can be counted by the engine alone.
var ErrLeftToEngine = errors.New("tokenizer is left to the engine")

// Model is a loaded model, for use by many goroutines.
type Model struct {
	tokenizer *tokenizer.Tokenizer
	template  *jinja.Template // nil if the model has none
	parts     bool            // the template wants content as a list of parts
	special   *jinja.Dict     // eos_token and its like, as template variables
	defaults  *jinja.Dict     // chat_template_kwargs of the engine
	around    error           // why what is added around a text is not known
	cacheErr  error
	now       func() time.Time
	digest    string
}

// Config says what model to load, and how the engine that serves it was
// started. The zero value of each field but Files is the engine's default.
type Config struct {
	Files fs.FS // the model's folder, at the root

	// Cache is a folder in which tables made of the tokenizer are kept, so that
	// the next start takes a tenth of a second and not several; empty for none.
	// Who can write there decides what prompts become.
	Cache string

	// TemplateArgs is the engine's default chat_template_kwargs, a JSON object;
	// a request's count before them.
	TemplateArgs jsontext.Value

	// Zone is the engine's time zone, for templates that print the date; nil is
	// UTC.
	Zone *time.Location

	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Prompt is what the engine computes on.
type Prompt struct {
	Text string
	IDs  []uint32

	// FirstUserTurn is the ids of the first user message's text by itself (of
	// its first 16 KiB), which stay the same while a conversation grows. For a
	// completion it is the beginning of IDs.
	FirstUserTurn []uint32

	parts *parts // of the memory that made it
}

// Load reads the model in the folder dir.
func Load(dir string) (*Model, error) {
	m, err := LoadFS(os.DirFS(dir))
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	return m, nil
}

// The files of a model. Only the first must be there.
const (
	tokenizerFile = "tokenizer.json"
	configFile    = "tokenizer_config.json"
	templateFile  = "chat_template.jinja"
	tekkenFile    = "tekken.json"
)

// LoadFS reads the model at the root of files.
func LoadFS(files fs.FS) (*Model, error) { return Open(Config{Files: files}) }

// Open reads a model.
func Open(c Config) (*Model, error) {
	if _, err := fs.Stat(c.Files, tekkenFile); err == nil {
		// The engine prefers it to a tokenizer.json beside it.
		return nil, fmt.Errorf("%s: %w", tekkenFile, ErrLeftToEngine)
	}
	data := map[string][]byte{}
	sums := map[string][sha256.Size]byte{}
	for _, name := range []string{tokenizerFile, configFile, templateFile} {
		b, err := fs.ReadFile(c.Files, name)
		if errors.Is(err, fs.ErrNotExist) && name != tokenizerFile {
			continue
		}
		if err != nil {
			return nil, err
		}
		data[name], sums[name] = b, sha256.Sum256(b)
	}
	m := &Model{special: &jinja.Dict{}, defaults: &jinja.Dict{}, now: c.clock(), digest: digest(sums, &c)}
	if err := templateArgs(m.defaults, c.TemplateArgs); err != nil {
		return nil, fmt.Errorf("default chat_template_kwargs: %w", err)
	}
	var err error
	if m.tokenizer, m.cacheErr, err = loadTokenizer(data[tokenizerFile], sums[tokenizerFile], c.Cache); err != nil {
		return nil, err
	}
	source, err := m.configure(data[configFile])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	if t, ok := data[templateFile]; ok {
		source = string(t)
	}
	if source == "" {
		return m, nil
	}
	if m.template, err = jinja.Parse(source); err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	m.parts = m.template.IteratesContent()
	return m, nil
}

// clock is the engine's clock.
func (c *Config) clock() func() time.Time {
	now, zone := c.Now, c.Zone
	if now == nil {
		now = time.Now
	}
	if zone == nil {
		zone = time.UTC
	}
	return func() time.Time { return now().In(zone) }
}

// CacheErr is why tables could not be read from Config.Cache or kept there,
// for an operator to know. The model is good all the same.
func (m *Model) CacheErr() error { return m.cacheErr }

// VocabSize is the number of token ids.
func (m *Model) VocabSize() int { return m.tokenizer.VocabSize() }

// Encode is the ids of text; with special, special tokens spelled out in it
// become their ids. It is meant for text of our own: it has no limits.
func (m *Model) Encode(text string, special bool) []uint32 {
	return m.AppendEncode(make([]uint32, 0, len(text)/3+8), text, special)
}

// AppendEncode is Encode, appending to dst.
func (m *Model) AppendEncode(dst []uint32, text string, special bool) []uint32 {
	return m.tokenizer.AppendEncode(dst, text, special)
}

// Decode is the text of ids, special tokens spelled out. Where ids cut a
// character it is not valid UTF-8.
func (m *Model) Decode(ids []uint32) string { return m.tokenizer.Decode(ids) }
