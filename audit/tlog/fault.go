package tlog

import "fmt"

// Code says what is wrong with a log. The values are stable.
type Code string

// The codes of a [Fault].
const (
	CRCMismatch     Code = "crc_mismatch"     // a frame's bytes changed
	BadFrame        Code = "bad_frame"        // bytes that cannot be a frame
	OutOfPlace      Code = "out_of_place"     // a frame of a kind that cannot be there
	ChainBroken     Code = "chain_broken"     // a frame does not follow the one before it
	SequenceGap     Code = "sequence_gap"     // records are missing or doubled
	SizeMismatch    Code = "size_mismatch"    // a trailer counts other leaves than there are
	RootMismatch    Code = "root_mismatch"    // a trailer's or checkpoint's root is not that of the leaves
	BadSignature    Code = "bad_signature"    // a trailer is not signed by the pinned key
	KeyMismatch     Code = "key_mismatch"     // a segment names another key
	OriginMismatch  Code = "origin_mismatch"  // a segment or checkpoint is of another log
	BadHeader       Code = "bad_header"       // a segment header says what is not so
	MissingSegment  Code = "missing_segment"  // a segment file is gone
	NotAFile        Code = "not_a_file"       // a segment is a link, or no regular file
	Truncated       Code = "truncated"        // the log ends inside a batch
	Unsigned        Code = "unsigned_tail"    // the last records are sealed, and not signed yet: the log has to be opened once
	BadSeal         Code = "bad_seal"         // the last records are sealed with another key than the log's
	TrailingData    Code = "trailing_data"    // bytes that are not zero follow the last batch
	CheckpointAhead Code = "checkpoint_ahead" // a signed checkpoint covers records that are not there
	NotAnchored     Code = "not_anchored"     // too few of the witnesses asked for have cosigned
	BadRotation     Code = "bad_rotation"     // a change of the signing key that both keys did not sign
	BadCheckpoint   Code = "bad_checkpoint"   // the checkpoint is malformed or not signed by the pinned key
)

// Fault is damage found in a log.
type Fault struct {
	Code    Code
	Index   uint64 // the damaged record, or the nearest to the damage
	Detail  string
	Segment int
	Offset  int64

	torn bool // a write that was cut short, or is under way, explains it
}

func (f *Fault) Error() string {
	return fmt.Sprintf("%s at record %d (segment %d, byte %d): %s", f.Code, f.Index, f.Segment, f.Offset, f.Detail)
}

// torn says whether a write that was cut short can look like this.
func (c Code) torn() bool {
	switch c {
	case Truncated, CRCMismatch, BadFrame, TrailingData, Unsigned:
		return true
	}
	return false
}
