package audit

// The reasons of a gap.
const (
	GapRefused     = "witness_refused" // a witness holds something else than the log says
	GapReanchored  = "reanchored"      // this log goes on for one whose state was lost
	GapHalted      = "halted"          // records were refused for a while, for want of space
	GapBoundedLost = "bounded_lost"    // bounded records that had been let go were not written
)

// Gap is the event of a gap record: something that the log cannot show, and
// says so.
type Gap struct {
	Reason  string `json:"reason"`
	Detail  string `json:"detail,omitempty"`
	Since   int64  `json:"since,omitempty"`   // µs since the Unix epoch
	Until   int64  `json:"until,omitempty"`   // likewise
	Records uint64 `json:"records,omitempty"` // how many are missing, where that is known
	Refused uint64 `json:"refused,omitempty"` // appends that were turned away

	Witness  string `json:"witness,omitempty"`  // name of the witness that refused
	Operator string `json:"operator,omitempty"` // and who runs it
	Size     uint64 `json:"size,omitempty"`     // of the tree that was refused, or that was left of the old log
	Root     string `json:"root,omitempty"`     // of that tree, base64
	Held     uint64 `json:"held,omitempty"`     // the size that the witness holds

	Origin     string `json:"origin,omitempty"`     // of the log whose state was lost
	Checkpoint string `json:"checkpoint,omitempty"` // signed note that was held of it elsewhere
}

// Rotation is the event of a key_rotation record: from the next batch on, New
// signs the log in place of Old. Both sign that.
type Rotation struct {
	Old    string `json:"old"` // verifier keys
	New    string `json:"new"`
	Size   uint64 `json:"size"`    // records that there were when it was signed
	OldSig []byte `json:"old_sig"` // Ed25519, over [RotationMessage]
	NewSig []byte `json:"new_sig"`
}

// Prune is the event of a prune record: the leaves below Size are destroyed,
// the hashes above them are kept.
type Prune struct {
	From      uint64 `json:"from"`   // where the leaves began before
	Size      uint64 `json:"size"`   // where they begin now
	Root      string `json:"root"`   // of the tree of that size, base64
	Before    int64  `json:"before"` // all pruned records are older, µs since the Unix epoch
	Reason    string `json:"reason,omitempty"`
	By        string `json:"by,omitempty"`
	Rotations []Turn `json:"rotations,omitempty"` // of the signing key, so far
}

// Turn is a rotation with its place.
type Turn struct {
	Rotation
	At uint64 `json:"at"` // New signs trees of more records than this
}
