package kvevents

import (
	"errors"
	"math"
)

// vLLM's events. Until 0.23 an event is an array that begins with its tag, to
// which fields were added at the end over time:
//
//	["BlockStored", block_hashes, parent_block_hash, token_ids, block_size,
//	    lora_id, medium, lora_name, extra_keys, group_idx,
//	    kv_cache_spec_kind, kv_cache_spec_sliding_window]
//	["BlockRemoved", block_hashes, medium, group_idx]
//	["AllBlocksCleared"]
//
// Since 0.24 it is a map with those keys and "type", in which fields that have
// their default may be absent:
//
//	{"type": "BlockRemoved", "block_hashes": [...], "medium": "GPU"}
//
// Hashes are integers (the low 64 bits) or, by the engine's configuration,
// the whole digest.

// Errors that cost an event; errField and errTooLarge are others.
var (
	errShape       = errors.New("event is neither an array nor a map with a type")
	errUnknownType = errors.New("event of an unknown type")
)

// A field is one of an event's fields.
type field uint8

const (
	fieldOther field = iota // one we have no use for
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldAdapter
	fieldExtra
	fieldGroup
	fieldSpecKind
	fieldWindow
	fieldLocality
	fieldSalt
)

// arrayFields are the fields by position in an array, after the tag.
var arrayFields = [...][]field{
	Stored: {
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium,
		fieldAdapter, fieldExtra, fieldGroup, fieldSpecKind, fieldWindow,
	},
	Removed: {fieldHashes, fieldMedium, fieldGroup},
	Cleared: nil,
}

// fieldNames are the fields by key in a map.
var fieldNames = map[string]field{
	"type":                         fieldType,
	"block_hashes":                 fieldHashes,
	"parent_block_hash":            fieldParent,
	"token_ids":                    fieldTokens,
	"block_size":                   fieldBlockSize,
	"lora_id":                      fieldLoRAID,
	"medium":                       fieldMedium,
	"lora_name":                    fieldAdapter,
	"extra_keys":                   fieldExtra,
	"group_idx":                    fieldGroup,
	"kv_cache_spec_kind":           fieldSpecKind,
	"kv_cache_spec_sliding_window": fieldWindow,
	"locality":                     fieldLocality,
	"cache_salt":                   fieldSalt,
}

// required are the fields without which an event of a type means nothing. An
// absent parent is not a nil one: a run must not become a root by accident.
var required = [...]uint32{
	Stored:  1<<fieldHashes | 1<<fieldParent | 1<<fieldTokens | 1<<fieldBlockSize,
	Removed: 1 << fieldHashes,
	Cleared: 0,
}

func newEvent() Event { return Event{LoRAID: None, Group: None} }

// A pass is the state of decoding one event.
type pass struct {
	d     *Decoder
	r     *reader
	ev    *Event
	seen  uint32 // bit for each field
	extra int    // where extra_keys begin; they are read last, as they need other fields
}

func (d *Decoder) event(r *reader, ev *Event) error {
	h, err := r.peek()
	if err != nil {
		return err
	}
	p := pass{d: d, r: r, ev: ev}
	switch h.kind {
	case kindArray:
		err = p.array()
	case kindMap:
		err = p.object()
	default:
		return errShape
	}
	if err != nil {
		return err
	}
	if need := required[ev.Type]; p.seen&need != need {
		return errField
	}
	return p.finish()
}

func (p *pass) array() error {
	n, err := p.r.container(kindArray)
	if err != nil {
		return err
	}
	if n == 0 {
		return errShape
	}
	if err := p.tag(); err != nil {
		return err
	}
	fields := arrayFields[p.ev.Type]
	p.ev.SaltHidden = p.ev.Type == Stored // until a field that could tell
	for i := range n - 1 {
		f := fieldOther
		if i < len(fields) {
			f = fields[i]
		}
		if err := p.field(f); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) object() error {
	n, err := p.r.container(kindMap)
	if err != nil {
		return err
	}
	for range n {
		key, err := p.r.bytes()
		if err != nil {
			return err
		}
		f := fieldNames[string(key)]
		if f != fieldOther && p.seen&(1<<f) != 0 {
			return errField // twice
		}
		if err := p.field(f); err != nil {
			return err
		}
	}
	if p.seen&(1<<fieldType) == 0 {
		return errShape
	}
	return nil
}

func (p *pass) tag() error {
	tag, err := p.r.bytes()
	if err != nil {
		return errShape
	}
	if p.ev.Type = typeOf(tag); p.ev.Type == Unknown {
		return errUnknownType
	}
	return nil
}

func (p *pass) field(f field) (err error) {
	p.seen |= 1 << f
	r, ev := p.r, p.ev
	switch f {
	case fieldType:
		return p.tag()
	case fieldHashes:
		ev.Hashes, err = p.d.hashList(r)
	case fieldTokens:
		ev.Tokens, err = p.d.tokenList(r)
	case fieldParent:
		if !r.isNil() {
			ev.Parent, err = r.hash()
		}
	case fieldBlockSize:
		ev.BlockSize, err = p.number(1, MaxTokens, 0)
	case fieldGroup:
		ev.Group, err = p.number(0, math.MaxUint16, None)
	case fieldWindow:
		ev.SlidingWindow, err = p.number(0, math.MaxInt32, 0)
	case fieldLoRAID:
		if !r.isNil() {
			ev.LoRAID, err = r.int(0, math.MaxInt64)
		}
	case fieldExtra:
		ev.SaltHidden = false
		p.extra = r.off
		return r.skip()
	case fieldAdapter:
		err = p.adapter()
	default:
		return p.text(f)
	}
	return err
}

// text reads the fields that are strings or nil, and skips what is no field.
func (p *pass) text(f field) (err error) {
	switch f {
	case fieldMedium:
		p.ev.Medium, err = p.name()
	case fieldSpecKind:
		p.ev.SpecKind, err = p.name()
	case fieldLocality:
		p.ev.Locality, err = p.name()
	case fieldSalt:
		p.ev.SaltHidden = false
		p.ev.Salt, err = p.name()
	default:
		err = p.r.skip()
	}
	return err
}

// number reads an integer between lo and hi, or nil.
func (p *pass) number(lo, hi int64, ifNil int) (int, error) {
	if p.r.isNil() {
		return ifNil, nil
	}
	n, err := p.r.int(lo, hi)
	return int(n), err
}

// name reads a string or nil.
func (p *pass) name() (string, error) {
	if p.r.isNil() {
		return "", nil
	}
	b, err := p.r.bytes()
	return p.d.names.get(b), err
}

// finish reads what depends on other fields.
func (p *pass) finish() error {
	if p.ev.Type != Stored {
		*p.ev = Event{
			Type: p.ev.Type, Hashes: p.ev.Hashes, Medium: p.ev.Medium, LoRAID: None,
			Group: p.ev.Group, Locality: p.ev.Locality,
		}
		return nil
	}
	if p.ev.BlockSize == 0 {
		return errField
	}
	if p.extra == 0 {
		return nil
	}
	return p.extraKeys(&reader{b: p.r.b, off: p.extra})
}
