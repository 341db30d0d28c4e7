package kvevents

import (
	"encoding/binary"
	"math"
)

// Form is how a publisher of vLLM's dialect encodes events.
type Form uint8

// Forms of vLLM's events. The batch around them is an array in both.
const (
	FormMap   Form = iota // vLLM 0.24 and later
	FormArray             // vLLM 0.17 to 0.23, with every field in its place
)

// AppendBatch appends the batch as vLLM encodes it. If an event's Extra is nil
// it is derived from Adapter and Salt, as the engine would. A decoder returns
// the same batch, but for Skipped and for fields that the form has no place
// for.
func AppendBatch(dst []byte, b *Batch, form Form) []byte {
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(b.TS))
	dst = appendArray(dst, len(b.Events))
	for i := range b.Events {
		e := encoder{dst, form, &b.Events[i]}
		e.event()
		dst = e.b
	}
	return appendOptional(dst, b.Rank, None)
}

// An encoder appends one event.
type encoder struct {
	b    []byte
	form Form
	ev   *Event
}

func (e *encoder) event() {
	ev := e.ev
	if e.form == FormArray {
		e.b = appendArray(e.b, 1+len(arrayFields[ev.Type]))
		e.b = appendString(e.b, ev.Type.String())
		e.fields(func(string) {}, true)
		return
	}
	// The number of pairs is known when they are written, and is below 16.
	at, n := len(e.b), byte(1)
	e.b = append(e.b, 0)
	e.b = appendString(appendString(e.b, "type"), ev.Type.String())
	e.fields(func(key string) {
		n++
		e.b = appendString(e.b, key)
	}, false)
	e.b[at] = 0x80 | n
}

// fields appends each field after its key, in vLLM's order of declaration; if
// not all, then without those that vLLM omits at their default.
func (e *encoder) fields(key func(string), all bool) {
	ev := e.ev
	if ev.Type == Cleared {
		return
	}
	key("block_hashes")
	e.b = appendArray(e.b, len(ev.Hashes))
	for _, h := range ev.Hashes {
		e.b = appendHash(e.b, h)
	}
	if ev.Type == Removed {
		key("medium")
		e.b = appendName(e.b, ev.Medium)
		e.optional(key, "group_idx", ev.Group, None, all)
		e.locality(key)
		return
	}
	e.stored(key)
	if extra := e.extra(); extra != nil || all {
		key("extra_keys")
		e.b = appendExtra(e.b, extra)
	}
	e.optional(key, "group_idx", ev.Group, None, all)
	if ev.SpecKind != "" || all {
		key("kv_cache_spec_kind")
		e.b = appendName(e.b, ev.SpecKind)
	}
	e.optional(key, "kv_cache_spec_sliding_window", ev.SlidingWindow, 0, all)
	e.locality(key)
}

// stored appends the fields of BlockStored that have no default.
func (e *encoder) stored(key func(string)) {
	ev := e.ev
	key("parent_block_hash")
	e.b = appendHash(e.b, ev.Parent)
	key("token_ids")
	e.b = appendArray(e.b, len(ev.Tokens))
	for _, t := range ev.Tokens {
		e.b = appendUint(e.b, uint64(t))
	}
	key("block_size")
	e.b = appendInt(e.b, int64(ev.BlockSize))
	key("lora_id")
	if ev.LoRAID == None {
		e.b = append(e.b, 0xc0)
	} else {
		e.b = appendInt(e.b, ev.LoRAID)
	}
	key("medium")
	e.b = appendName(e.b, ev.Medium)
	key("lora_name")
	e.b = appendName(e.b, ev.Adapter)
}

func (e *encoder) optional(key func(string), name string, v, none int, all bool) {
	if v == none && !all {
		return
	}
	key(name)
	e.b = appendOptional(e.b, v, none)
}

// locality is younger than the array form.
func (e *encoder) locality(key func(string)) {
	if e.form == FormMap && e.ev.Locality != "" {
		key("locality")
		e.b = appendString(e.b, e.ev.Locality)
	}
}

func (e *encoder) extra() [][]ExtraKey {
	ev := e.ev
	if ev.Extra != nil || len(ev.Hashes) == 0 || ev.Adapter == "" && ev.Salt == "" {
		return ev.Extra
	}
	extra := make([][]ExtraKey, len(ev.Hashes))
	for i := range extra {
		if ev.Adapter != "" {
			extra[i] = append(extra[i], ExtraKey{Kind: AdapterKey, ID: ev.Adapter})
		}
		if i == 0 && ev.Parent.IsZero() && ev.Salt != "" {
			extra[i] = append(extra[i], ExtraKey{Kind: SaltKey, ID: ev.Salt})
		}
	}
	return extra
}

func appendExtra(dst []byte, blocks [][]ExtraKey) []byte {
	if blocks == nil {
		return append(dst, 0xc0)
	}
	dst = appendArray(dst, len(blocks))
	for _, keys := range blocks {
		if len(keys) == 0 {
			dst = append(dst, 0xc0)
			continue
		}
		dst = appendArray(dst, len(keys))
		for _, k := range keys {
			dst = appendExtraKey(dst, k)
		}
	}
	return dst
}

func appendExtraKey(dst []byte, k ExtraKey) []byte {
	switch {
	case k.Kind == EmbedsKey:
		return appendBin(dst, []byte(k.ID))
	case k.Kind == MediaKey && k.Offset != NoOffset:
		return appendInt(appendString(append(dst, 0x92), k.ID), k.Offset)
	case k.Kind == UnknownKey:
		return append(dst, 0xc3) // true: something no one understands
	default:
		return appendString(dst, k.ID)
	}
}

func appendHash(dst []byte, h Hash) []byte {
	if h.IsZero() {
		return append(dst, 0xc0)
	}
	if u, ok := h.Uint64(); ok {
		return appendUint(dst, u)
	}
	return appendBin(dst, h.Bytes())
}

func appendOptional(dst []byte, v, none int) []byte {
	if v == none {
		return append(dst, 0xc0)
	}
	return appendInt(dst, int64(v))
}

func appendName(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, 0xc0)
	}
	return appendString(dst, s)
}

// The rest writes MessagePack in the shortest form, as msgspec does.

func appendArray(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
	}
}

func appendString(dst []byte, s string) []byte {
	n := len(s)
	switch {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, 0xd9, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

func appendBin(dst, b []byte) []byte {
	dst = append(dst, 0xc4, byte(len(b))) // digests only
	return append(dst, b...)
}

func appendUint(dst []byte, u uint64) []byte {
	switch {
	case u <= 0x7f:
		return append(dst, byte(u))
	case u <= math.MaxUint8:
		return append(dst, 0xcc, byte(u))
	case u <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(u))
	case u <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(u))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 0xcf), u)
	}
}

func appendInt(dst []byte, i int64) []byte {
	switch {
	case i >= 0:
		return appendUint(dst, uint64(i))
	case i >= -32:
		return append(dst, byte(i))
	case i >= math.MinInt8:
		return append(dst, 0xd0, byte(i))
	case i >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(i))
	case i >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(i))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(i))
	}
}
