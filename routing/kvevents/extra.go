package kvevents

import "math"

// maxExtraID is the longest name of an adapter, item or salt, in bytes.
const maxExtraID = 4 << 10

// extraKeys reads one entry for each block, nil or a tuple, in vLLM's order:
//
//	(lora_name, media..., cache_salt, embeds)
//
// where the salt is in the first block of a prompt only, media is
// [identifier, offset] or in early versions an identifier, and embeds is the
// digest of prompt embeddings. Nothing says which string is which, so they are
// told by place. A client chooses identifiers and salts, so doubt is resolved
// towards a salt, which at worst belongs to no one.
func (p *pass) extraKeys(r *reader) error {
	if r.isNil() {
		return nil
	}
	n, err := r.container(kindArray)
	if err != nil {
		return err
	}
	if n > MaxBlocks || len(p.d.blocks)+n > maxBatchBlocks {
		return errTooLarge
	}
	from, keys := len(p.d.blocks), len(p.d.extra)
	for i := range n {
		k, err := p.blockKeys(r, i)
		if err != nil {
			return err
		}
		p.d.blocks = append(p.d.blocks, k)
	}
	if keys == len(p.d.extra) {
		p.d.blocks = p.d.blocks[:from] // all nil
		return nil
	}
	p.ev.Extra = p.d.blocks[from:len(p.d.blocks):len(p.d.blocks)]
	if n != len(p.ev.Hashes) {
		return errField // no telling which block has which
	}
	return nil
}

// blockKeys reads the entry of block i.
func (p *pass) blockKeys(r *reader, i int) ([]ExtraKey, error) {
	if r.isNil() {
		return nil, nil
	}
	from := len(p.d.extra)
	n, err := r.container(kindArray)
	if err != nil {
		p.d.extra = append(p.d.extra, ExtraKey{})
		return p.d.extra[from : from+1 : from+1], r.skip()
	}
	if from+n > maxBatchExtra {
		return nil, errTooLarge
	}
	bare := None // the last string without an offset, if no media follows it
	for j := range n {
		k, err := p.extraKey(r)
		if err != nil {
			return nil, err
		}
		switch {
		case k.Kind != MediaKey:
		case k.Offset != NoOffset:
			bare = None
		case j == 0 && k.ID == p.ev.Adapter:
			k.Kind, k.Offset = AdapterKey, 0
		default:
			bare = from + j
		}
		p.d.extra = append(p.d.extra, k)
	}
	keys := p.d.extra[from:len(p.d.extra):len(p.d.extra)]
	if i == 0 && p.ev.Parent.IsZero() && bare != None {
		salt := &keys[bare-from]
		salt.Kind, salt.Offset = SaltKey, 0
		p.ev.Salt = salt.ID
	}
	return keys, nil
}

// extraKey reads one member of a tuple. A bare string is taken for
// media until its place in the tuple says otherwise.
func (p *pass) extraKey(r *reader) (ExtraKey, error) {
	h, err := r.peek()
	if err != nil {
		return ExtraKey{}, err
	}
	start := r.off
	switch h.kind {
	case kindStr:
		if b, err := r.bytes(); err == nil && len(b) > 0 && len(b) <= maxExtraID {
			return ExtraKey{MediaKey, p.d.names.get(b), NoOffset}, nil
		}
	case kindBin:
		if b, err := r.bytes(); err == nil && len(b) == MaxHash {
			return ExtraKey{EmbedsKey, string(b), 0}, nil
		}
	case kindArray:
		if k, ok := p.media(r); ok {
			return k, nil
		}
	}
	r.off = start
	return ExtraKey{}, r.skip()
}

// media reads [identifier, offset].
func (p *pass) media(r *reader) (ExtraKey, bool) {
	if n, err := r.container(kindArray); err != nil || n != 2 {
		return ExtraKey{}, false
	}
	if h, err := r.peek(); err != nil || h.kind != kindStr {
		return ExtraKey{}, false
	}
	id, err := r.bytes()
	if err != nil || len(id) == 0 || len(id) > maxExtraID {
		return ExtraKey{}, false
	}
	offset, err := r.int(-math.MaxInt64, math.MaxInt64)
	return ExtraKey{MediaKey, p.d.names.get(id), offset}, err == nil
}
