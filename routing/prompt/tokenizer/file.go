package tokenizer

import (
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
	Type string `json:"type"`

	// The stages of a Sequence.
	Normalizers   []fileStage `json:"normalizers"`
	PreTokenizers []fileStage `json:"pretokenizers"`
	Processors    []fileStage `json:"processors"`
	Decoders      []fileStage `json:"decoders"`

	Pattern        *filePattern `json:"pattern"`
	Content        string       `json:"content"`
	Behavior       string       `json:"behavior"`
	Invert         bool         `json:"invert"`
	AddPrefixSpace *bool        `json:"add_prefix_space"`
	TrimOffsets    *bool        `json:"trim_offsets"`
	UseRegex       *bool        `json:"use_regex"`

	// Of TemplateProcessing.
	Single        []filePiece            `json:"single"`
	Pair          []filePiece            `json:"pair"`
	SpecialTokens map[string]fileSpecial `json:"special_tokens"`
}

type filePattern struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

// filePiece is a special token or, with the id A, the text.
type filePiece struct {
	SpecialToken *filePieceID `json:"SpecialToken"`
	Sequence     *filePieceID `json:"Sequence"`
}

type filePieceID struct {
	ID     string `json:"id"`
	TypeID int    `json:"type_id"`
}

type fileSpecial struct {
	ID     string   `json:"id"`
	IDs    []uint32 `json:"ids"`
	Tokens []string `json:"tokens"`
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
