package tokenizer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// file is tokenizer.json. A member that is not here is refused by the decoder,
// a value that is not implemented by the check methods.
type file struct {
	Version       string         `json:"version"`
	Truncation    jsontext.Value `json:"truncation"`
	Padding       jsontext.Value `json:"padding"`
	AddedTokens   []fileAdded    `json:"added_tokens"`
	Normalizer    *fileStage     `json:"normalizer"`
	PreTokenizer  *fileStage     `json:"pre_tokenizer"`
	PostProcessor *fileStage     `json:"post_processor"`
	Decoder       *fileStage     `json:"decoder"`
	Model         fileModel      `json:"model"`
}

type fileAdded struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// fileStage is any normalizer, pre-tokenizer, post-processor or decoder: the
// union of the members that the implemented types have.
type fileStage struct {
	Type           string       `json:"type"`
	PreTokenizers  []fileStage  `json:"pretokenizers"`
	Pattern        *filePattern `json:"pattern"`
	Behavior       string       `json:"behavior"`
	Invert         bool         `json:"invert"`
	AddPrefixSpace *bool        `json:"add_prefix_space"`
	TrimOffsets    *bool        `json:"trim_offsets"`
	UseRegex       *bool        `json:"use_regex"`
}

type filePattern struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

type fileModel struct {
	Type                    string            `json:"type"`
	Dropout                 *float64          `json:"dropout"`
	UnkToken                *string           `json:"unk_token"`
	ContinuingSubwordPrefix *string           `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string           `json:"end_of_word_suffix"`
	FuseUnk                 bool              `json:"fuse_unk"`
	ByteFallback            bool              `json:"byte_fallback"`
	IgnoreMerges            bool              `json:"ignore_merges"`
	Vocab                   map[string]uint32 `json:"vocab"`
	Merges                  []fileMerge       `json:"merges"`
}

// fileMerge is "a b" in older files and ["a", "b"] in newer ones.
type fileMerge [2]string

// UnmarshalJSONFrom reads either form.
func (m *fileMerge) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '[' {
		return json.UnmarshalDecode(d, (*[2]string)(m))
	}
	var s string
	if err := json.UnmarshalDecode(d, &s); err != nil {
		return err
	}
	a, b, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(b, " ") {
		return fmt.Errorf("merge %q is not two tokens", s)
	}
	*m = fileMerge{a, b}
	return nil
}

// check returns the error that names everything unsupported in f.
func (f *file) check() error {
	return errors.Join(
		f.checkTop(),
		f.Model.check(),
		f.checkNormalizer(),
		f.checkPreTokenizer(),
		checkByteLevel("post_processor", f.PostProcessor, false),
		checkByteLevel("decoder", f.Decoder, true),
		f.checkAdded(),
	)
}

func unsupported(what string, value any) error {
	return fmt.Errorf("unsupported: %s %v", what, value)
}

func (f *file) checkTop() error {
	var errs []error
	if f.Version != "1.0" {
		errs = append(errs, unsupported("version", f.Version))
	}
	if f.Truncation != nil && f.Truncation.Kind() != 'n' {
		errs = append(errs, unsupported("truncation", f.Truncation))
	}
	if f.Padding != nil && f.Padding.Kind() != 'n' {
		errs = append(errs, unsupported("padding", f.Padding))
	}
	return errors.Join(errs...)
}

func (m *fileModel) check() error {
	var errs []error
	if m.Type != "BPE" {
		return unsupported("model type", m.Type)
	}
	if m.Dropout != nil && *m.Dropout != 0 {
		errs = append(errs, unsupported("model dropout", *m.Dropout))
	}
	if m.UnkToken != nil {
		errs = append(errs, unsupported("model unk_token", *m.UnkToken))
	}
	if m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "" {
		errs = append(errs, unsupported("model continuing_subword_prefix", *m.ContinuingSubwordPrefix))
	}
	if m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "" {
		errs = append(errs, unsupported("model end_of_word_suffix", *m.EndOfWordSuffix))
	}
	if m.FuseUnk {
		errs = append(errs, unsupported("model fuse_unk", true))
	}
	if m.ByteFallback {
		errs = append(errs, unsupported("model byte_fallback", true))
	}
	return errors.Join(errs...)
}

func (f *file) checkNormalizer() error {
	if n := f.Normalizer; n != nil && n.Type != "NFC" {
		return unsupported("normalizer", n.Type)
	}
	return nil
}

// checkPreTokenizer accepts the one form in use: a Split on a known pattern,
// then ByteLevel for the spelling only.
func (f *file) checkPreTokenizer() error {
	p := f.PreTokenizer
	if p == nil {
		return unsupported("pre_tokenizer", "null")
	}
	if p.Type != "Sequence" || len(p.PreTokenizers) != 2 {
		return unsupported("pre_tokenizer", fmt.Sprintf("%s of %d", p.Type, len(p.PreTokenizers)))
	}
	split, spell := &p.PreTokenizers[0], &p.PreTokenizers[1]
	switch {
	case split.Type != "Split":
		return unsupported("first pre-tokenizer", split.Type)
	case split.Pattern == nil || split.Pattern.Regex == nil:
		return unsupported("Split pattern", "without Regex")
	case scanners[*split.Pattern.Regex] == nil:
		return unsupported("Split pattern", *split.Pattern.Regex)
	case split.Behavior != "Isolated" || split.Invert:
		return unsupported("Split behavior", fmt.Sprintf("%s, invert %v", split.Behavior, split.Invert))
	case spell.Type != "ByteLevel":
		return unsupported("second pre-tokenizer", spell.Type)
	case spell.AddPrefixSpace == nil || *spell.AddPrefixSpace:
		return unsupported("ByteLevel pre-tokenizer add_prefix_space", "true")
	case spell.UseRegex == nil || *spell.UseRegex:
		return unsupported("ByteLevel pre-tokenizer use_regex", "true")
	}
	return nil
}

// checkByteLevel: as a decoder, ByteLevel has no options that matter; as a
// post-processor, it only moves offsets, which we do not have.
func checkByteLevel(what string, s *fileStage, required bool) error {
	switch {
	case s == nil && required:
		return unsupported(what, "null")
	case s != nil && s.Type != "ByteLevel":
		return unsupported(what, s.Type)
	}
	return nil
}

func (f *file) checkAdded() error {
	var errs []error
	for i := range f.AddedTokens {
		a := &f.AddedTokens[i]
		for _, flag := range []struct {
			name string
			set  bool
		}{{"single_word", a.SingleWord}, {"lstrip", a.LStrip}, {"rstrip", a.RStrip}, {"empty content", a.Content == ""}} {
			if flag.set {
				errs = append(errs, unsupported(fmt.Sprintf("%s of added token %d", flag.name, a.ID), a.Content))
			}
		}
	}
	return errors.Join(errs...)
}
