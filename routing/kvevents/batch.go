package kvevents

import "fmt"

// Limits on one event.
const (
	MaxBlocks = 65_536  // hashes in one event
	MaxTokens = 1 << 20 // token ids in one event
)

// None is the value of Batch.Rank, Event.Group and Event.LoRAID where the
// engine named none.
const None = -1

// A Batch is what one engine step did to its cache, in order.
type Batch struct {
	TS      float64 // Unix seconds, by the engine's clock
	Rank    int     // data-parallel rank, or None
	Events  []Event
	Skipped []Skip // events that were left out, by type and reason
}

// A Skip counts events that were left out of a batch.
type Skip struct {
	Type   EventType // Unknown if it was not one of ours
	Reason SkipReason
	N      int
}

// UnderCredits reports whether everything that was skipped could only have
// added blocks. If not, a mirror of the cache may now hold too much. A type that
// we do not know may take blocks away, even where the engine sends the removals
// that we know too: ATOM, which otherwise speaks vLLM's dialect, moves blocks to
// another tier by a BlockTransferred that no BlockRemoved goes with.
func (b *Batch) UnderCredits() bool {
	for _, s := range b.Skipped {
		if s.Type != Stored {
			return false
		}
	}
	return true
}

func (b *Batch) skip(t EventType, why SkipReason) {
	for i := range b.Skipped {
		if s := &b.Skipped[i]; s.Type == t && s.Reason == why {
			s.N++
			return
		}
	}
	b.Skipped = append(b.Skipped, Skip{t, why, 1})
}

// SkipReason says why an event was left out.
type SkipReason uint8

// Reasons to leave out an event.
const (
	BadShape    SkipReason = iota // neither an array nor a map, or without a type
	UnknownType                   // a type of event we do not know
	BadField                      // a field is absent or not of its type
	TooLarge                      // more blocks or tokens than the limit
)

var skipNames = [...]string{BadShape: "bad_shape", UnknownType: "unknown_type", BadField: "bad_field", TooLarge: "too_large"}

// String is a name fit for a metric label.
func (r SkipReason) String() string {
	if int(r) < len(skipNames) {
		return skipNames[r]
	}
	return fmt.Sprintf("SkipReason(%d)", uint8(r))
}

// EventType is what happened.
type EventType uint8

// What can happen to blocks.
const (
	Unknown EventType = iota
	Stored            // a run of blocks is now held
	Removed           // blocks, or one copy of each, are gone
	Cleared           // everything is gone
)

var typeTags = [...]string{Stored: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}

// String is the name engines use on the wire.
func (t EventType) String() string {
	if t == Unknown || int(t) >= len(typeTags) {
		return "Unknown"
	}
	return typeTags[t]
}

func typeOf(tag []byte) EventType {
	for t := Stored; int(t) < len(typeTags); t++ {
		if typeTags[t] == string(tag) {
			return t
		}
	}
	return Unknown
}

// An Event is one change. Fields beyond Type are set as the type has them:
// Removed has Hashes, Medium, Group and Locality; Cleared has none.
type Event struct {
	Type EventType

	// Hashes are consecutive blocks of one prompt when stored. An engine may
	// store a block it holds already, and remove one copy of several.
	Hashes []Hash
	// Parent is the block before the first, the zero Hash for the beginning
	// of a prompt.
	Parent Hash
	// Tokens are the ids of the run. Only a dense event (see Dense) has
	// BlockSize of them for each hash.
	Tokens    []uint32
	BlockSize int

	Medium  string // tier: "GPU", "CPU", ...; "" if not told
	Adapter string // LoRA adapter's name, or ""
	LoRAID  int64  // LoRA adapter's deprecated number, or None; with no name, the adapter is not known

	// Salt is the cache salt, which the engine sends with the first block of a
	// prompt only.
	Salt string
	// SaltHidden is set where the event's form has no place for a salt, so
	// that its absence means nothing.
	SaltHidden bool
	// Extra holds, for each block, what its hash covers beyond tokens; nil if
	// there is nothing for any block.
	Extra [][]ExtraKey

	Group         int    // KV cache group of a hybrid model, or None
	SpecKind      string // kind of attention of the group: "full_attention", ...
	SlidingWindow int    // in tokens; 0 if none
	Locality      string // "LOCAL", "REMOTE" or ""
}

// Dense reports whether every hash has its own BlockSize tokens, as for full
// attention. In other groups the tokens cover more than the hashes.
func (e *Event) Dense() bool {
	return e.BlockSize > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
}

// BlockTokens returns the tokens of block i of a dense event.
func (e *Event) BlockTokens(i int) []uint32 {
	return e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]
}

// BlockExtra returns the extra keys of block i.
func (e *Event) BlockExtra(i int) []ExtraKey {
	if i >= len(e.Extra) {
		return nil
	}
	return e.Extra[i]
}

// ExtraKind is the meaning of an extra key. The zero value is a key we do not
// understand, and a block that has one must not be taken for what its tokens
// say.
type ExtraKind uint8

// Kinds of extra key.
const (
	UnknownKey ExtraKind = iota
	AdapterKey           // ID is the LoRA adapter's name
	MediaKey             // ID is a multimodal item, Offset its position relative to the block's start
	SaltKey              // ID is the cache salt
	EmbedsKey            // ID is the digest of prompt embeddings, in raw bytes
)

// NoOffset is the Offset of media from an engine that sends identifiers alone.
const NoOffset = -1 << 63

// An ExtraKey is something a block's hash covers beyond its tokens.
type ExtraKey struct {
	Kind   ExtraKind
	ID     string
	Offset int64 // of MediaKey
}
