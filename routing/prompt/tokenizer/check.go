package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// form is which of the implemented kinds of tokenizer a file describes.
type form struct {
	pieces   bool // characters with byte fallback, not bytes
	nfc      bool
	patterns string // key of scanners; empty with pieces
	prefix   []uint32
	suffix   []uint32
}

// check returns the error that names everything unsupported in f.
func (f *file) check() (form, error) {
	var out form
	out.pieces = f.Model.ByteFallback
	var errs [6]error
	errs[0] = f.checkTop()
	errs[1] = f.Model.check()
	if out.pieces {
		errs[2] = f.checkPieces()
	} else {
		out.nfc, errs[2] = f.checkNormalizer()
		out.patterns, errs[3] = f.checkPreTokenizer()
		errs[4] = checkByteLevel("decoder", f.Decoder)
	}
	errs[5] = f.checkPostProcessor(&out)
	return out, errors.Join(append(errs[:], f.checkAdded())...)
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
	// With byte fallback nothing is unknown.
	if m.UnkToken != nil && !m.ByteFallback {
		errs = append(errs, unsupported("model unk_token", *m.UnkToken))
	}
	if m.FuseUnk && !m.ByteFallback {
		errs = append(errs, unsupported("model fuse_unk", true))
	}
	if m.IgnoreMerges && m.ByteFallback {
		errs = append(errs, unsupported("model ignore_merges with byte_fallback", true))
	}
	if m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "" {
		errs = append(errs, unsupported("model continuing_subword_prefix", *m.ContinuingSubwordPrefix))
	}
	if m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "" {
		errs = append(errs, unsupported("model end_of_word_suffix", *m.EndOfWordSuffix))
	}
	return errors.Join(errs...)
}

// checkNormalizer accepts none, an empty sequence, and NFC.
func (f *file) checkNormalizer() (nfc bool, err error) {
	switch n := f.Normalizer; {
	case n == nil, n.Type == "Sequence" && len(n.Normalizers) == 0:
		return false, nil
	case n.Type == "NFC":
		return true, nil
	case n.Type == "Sequence":
		return false, unsupported("normalizer", fmt.Sprintf("Sequence of %d", len(n.Normalizers)))
	default:
		return false, unsupported("normalizer", n.Type)
	}
}

// checkPreTokenizer accepts the form in use: Splits on a known chain of
// patterns, then ByteLevel for the spelling only.
func (f *file) checkPreTokenizer() (patterns string, err error) {
	p := f.PreTokenizer
	if p == nil {
		return "", unsupported("pre_tokenizer", "null")
	}
	n := len(p.PreTokenizers) - 1
	if p.Type != "Sequence" || n < 1 {
		return "", unsupported("pre_tokenizer", fmt.Sprintf("%s of %d", p.Type, n+1))
	}
	var all []string
	for i := range p.PreTokenizers[:n] {
		regex, err := p.PreTokenizers[i].splitRegex()
		if err != nil {
			return "", err
		}
		all = append(all, regex)
	}
	patterns = chain(all...)
	spell := &p.PreTokenizers[n]
	switch {
	case scanners[patterns] == nil:
		return "", unsupported("Split pattern", patterns)
	case spell.Type != "ByteLevel":
		return "", unsupported("last pre-tokenizer", spell.Type)
	case spell.AddPrefixSpace == nil || *spell.AddPrefixSpace:
		return "", unsupported("ByteLevel pre-tokenizer add_prefix_space", "true")
	case spell.UseRegex == nil || *spell.UseRegex:
		return "", unsupported("ByteLevel pre-tokenizer use_regex", "true")
	}
	return patterns, nil
}

func (s *fileStage) splitRegex() (string, error) {
	switch {
	case s.Type != "Split":
		return "", unsupported("pre-tokenizer", s.Type)
	case s.Pattern == nil || s.Pattern.Regex == nil:
		return "", unsupported("Split pattern", "without Regex")
	case s.Behavior != "Isolated" || s.Invert:
		return "", unsupported("Split behavior", fmt.Sprintf("%s, invert %v", s.Behavior, s.Invert))
	}
	return *s.Pattern.Regex, nil
}

// checkPieces accepts what Gemma has: the normalizer leaves no space in the
// text, so that splitting at spaces does nothing.
func (f *file) checkPieces() error {
	if n := f.Normalizer; n == nil || !n.replaces(" ", metaspace) {
		return unsupported("normalizer with byte_fallback", stageType(n))
	}
	if p := f.PreTokenizer; p != nil && (p.Type != "Split" || p.Pattern == nil || p.Pattern.String == nil || *p.Pattern.String != " " || p.Invert) {
		return unsupported("pre_tokenizer with byte_fallback", p.Type)
	}
	d := f.Decoder
	if d == nil || d.Type != "Sequence" || len(d.Decoders) != 3 || !d.Decoders[0].replaces(metaspace, " ") ||
		d.Decoders[1].Type != "ByteFallback" || d.Decoders[2].Type != "Fuse" {
		return unsupported("decoder with byte_fallback", stageType(d))
	}
	return nil
}

func stageType(s *fileStage) string {
	if s == nil {
		return "null"
	}
	return s.Type
}

func (s *fileStage) replaces(old, by string) bool {
	return s.Type == "Replace" && s.Pattern != nil && s.Pattern.String != nil && *s.Pattern.String == old && s.Content == by
}

// checkByteLevel: as a decoder, ByteLevel has no options that matter.
func checkByteLevel(what string, s *fileStage) error {
	if s == nil || s.Type != "ByteLevel" {
		return unsupported(what, stageType(s))
	}
	return nil
}

// checkPostProcessor accepts ByteLevel, which only moves offsets that we do not
// have, and a template that puts special tokens around the text.
func (f *file) checkPostProcessor(out *form) error {
	p := f.PostProcessor
	if p == nil {
		return nil
	}
	stages := []fileStage{*p}
	if p.Type == "Sequence" {
		stages = p.Processors
	}
	templates := 0
	for i := range stages {
		switch s := &stages[i]; s.Type {
		case "ByteLevel":
		case "TemplateProcessing":
			if templates++; templates > 1 {
				return unsupported("post_processor", "of two templates")
			}
			if err := s.around(out); err != nil {
				return err
			}
		default:
			return unsupported("post_processor", s.Type)
		}
	}
	return nil
}

// around reads what the template puts before and after one text.
func (s *fileStage) around(out *form) error {
	texts := 0
	for _, piece := range s.Single {
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil && piece.Sequence.ID == "A":
			texts++
		case piece.SpecialToken != nil && piece.Sequence == nil:
			special, ok := s.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return unsupported("post_processor with unknown token", piece.SpecialToken.ID)
			}
			if texts == 0 {
				out.prefix = append(out.prefix, special.IDs...)
			} else {
				out.suffix = append(out.suffix, special.IDs...)
			}
		default:
			return unsupported("post_processor", "TemplateProcessing with this template")
		}
	}
	if texts != 1 {
		return unsupported("post_processor", "TemplateProcessing without one text")
	}
	return nil
}

// checkAdded refuses empty tokens, and tokens that begin with white space
// beside ones that take the white space after them: two could then overlap.
func (f *file) checkAdded() error {
	var errs []error
	takes, begins := "", ""
	for i := range f.AddedTokens {
		a := &f.AddedTokens[i]
		if a.Content == "" {
			errs = append(errs, unsupported(fmt.Sprintf("empty content of added token %d", a.ID), a.Content))
			continue
		}
		if a.RStrip {
			takes = a.Content
		}
		if r, _ := utf8.DecodeRuneInString(a.Content); in(spaces, r) || r == '\u2581' {
			begins = a.Content
		}
	}
	if takes != "" && begins != "" {
		errs = append(errs, unsupported("added token with rstrip beside one that begins with white space", fmt.Sprintf("%q, %q", takes, begins)))
	}
	return errors.Join(errs...)
}
