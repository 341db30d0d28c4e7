package prompt

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
)

// config is what of tokenizer_config.json has a bearing on the prompt.
type config struct {
	ChatTemplate   jsontext.Value `json:"chat_template"`
	Class          string         `json:"tokenizer_class"`
	AddBOS         *bool          `json:"add_bos_token"`
	AddEOS         *bool          `json:"add_eos_token"`
	AddPrefixSpace bool           `json:"add_prefix_space"`
	SplitSpecial   bool           `json:"split_special_tokens"`

	BOS  *tokenName `json:"bos_token"`
	EOS  *tokenName `json:"eos_token"`
	UNK  *tokenName `json:"unk_token"`
	SEP  *tokenName `json:"sep_token"`
	PAD  *tokenName `json:"pad_token"`
	CLS  *tokenName `json:"cls_token"`
	MASK *tokenName `json:"mask_token"`

	Additional []tokenName    `json:"additional_special_tokens"`
	Extra      jsontext.Value `json:"extra_special_tokens"`

	Added map[string]tokenName `json:"added_tokens_decoder"`
}

// tokenName is a token's text, or an object that holds it as content.
type tokenName string

// UnmarshalJSONFrom reads either form.
func (t *tokenName) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '"' {
		return json.UnmarshalDecode(d, (*string)(t))
	}
	var o struct {
		Content string `json:"content"`
	}
	if err := json.UnmarshalDecode(d, &o); err != nil {
		return err
	}
	*t = tokenName(o.Content)
	return nil
}

// configure reads tokenizer_config.json, if there is one, and returns the chat
// template in it. It refuses what would make the engine's tokenizer differ
// from tokenizer.json alone.
func (m *Model) configure(data []byte) (template string, err error) {
	if data == nil {
		return "", nil
	}
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return "", err
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"add_prefix_space", c.AddPrefixSpace},
		{"split_special_tokens", c.SplitSpecial},
	} {
		if flag.set {
			return "", fmt.Errorf("unsupported: %s", flag.name)
		}
	}
	if err := m.nameTokens(&c); err != nil {
		return "", err
	}
	if err := m.nameExtra(c.Extra); err != nil {
		return "", fmt.Errorf("extra_special_tokens: %w", err)
	}
	m.around = m.checkAround(&c)
	switch c.ChatTemplate.Kind() {
	case 0, 'n': // absent or null
		return "", nil
	case '"':
		err = json.Unmarshal(c.ChatTemplate, &template)
		return template, err
	}
	return "", fmt.Errorf("unsupported: chat_template that is not one string")
}

// nameTokens makes the special tokens variables of the template. One that
// tokenizer.json does not have would be added by transformers, with an id we
// would have to guess.
func (m *Model) nameTokens(c *config) error {
	var all []jinja.Value
	for _, t := range c.Additional {
		if err := m.known(t); err != nil {
			return err
		}
		all = append(all, string(t))
	}
	for key, t := range c.Added {
		if err := m.known(t); err != nil {
			return err
		}
		if id, _ := m.tokenizer.Added(string(t)); strconv.FormatUint(uint64(id), 10) != key {
			return fmt.Errorf("token %q is %s here and %d in tokenizer.json", t, key, id)
		}
	}
	for _, named := range []struct {
		name  string
		token *tokenName
	}{
		{"bos_token", c.BOS},
		{"eos_token", c.EOS},
		{"unk_token", c.UNK},
		{"sep_token", c.SEP},
		{"pad_token", c.PAD},
		{"cls_token", c.CLS},
		{"mask_token", c.MASK},
	} {
		if named.token == nil {
			continue
		}
		if err := m.known(*named.token); err != nil {
			return fmt.Errorf("%s: %w", named.name, err)
		}
		m.special.Set(named.name, string(*named.token))
	}
	if all != nil {
		m.special.Set("additional_special_tokens", jinja.NewList(all...))
	}
	return nil
}

func (m *Model) known(t tokenName) error {
	if _, ok := m.tokenizer.Added(string(t)); !ok {
		return fmt.Errorf("unsupported: token %q is not among the added tokens of tokenizer.json", t)
	}
	return nil
}

// nameExtra makes variables of a model's own kinds of special tokens.
func (m *Model) nameExtra(raw jsontext.Value) error {
	switch raw.Kind() {
	case 0, 'n':
		return nil
	case '[':
		var list []tokenName
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		for _, t := range list {
			if err := m.known(t); err != nil {
				return err
			}
		}
		return nil
	}
	var named map[string]tokenName
	if err := json.Unmarshal(raw, &named); err != nil {
		return err
	}
	for name, t := range named {
		if err := m.known(t); err != nil {
			return err
		}
		m.special.Set(name, string(t))
	}
	return nil
}

// rebuilt are the classes of transformers that make their post-processor anew
// from add_bos_token, true if it is not there, and add_eos_token.
var rebuilt = map[string]bool{"LlamaTokenizer": true, "LlamaTokenizerFast": true, "GemmaTokenizer": true, "GemmaTokenizerFast": true}

// checkAround returns an error if versions of transformers would not agree on
// what is added around a text: if tokenizer.json and the flags here differ.
func (m *Model) checkAround(c *config) error {
	prefix, suffix := m.tokenizer.Around()
	bos, eos := c.AddBOS, c.AddEOS
	if rebuilt[c.Class] {
		yes, no := true, false
		bos, eos = cmp.Or(bos, &yes), cmp.Or(eos, &no)
	}
	for _, side := range []struct {
		flag  string
		want  *bool
		token *tokenName
		is    []uint32
	}{{"add_bos_token", bos, c.BOS, prefix}, {"add_eos_token", eos, c.EOS, suffix}} {
		if side.want == nil {
			continue
		}
		var want []uint32
		if *side.want && side.token != nil {
			id, _ := m.tokenizer.Added(string(*side.token))
			want = []uint32{id}
		}
		if !slices.Equal(want, side.is) {
			return fmt.Errorf("%s and the post_processor of tokenizer.json differ", side.flag)
		}
	}
	return nil
}
