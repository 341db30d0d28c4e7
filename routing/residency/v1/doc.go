// Package residencyv1 is generated from residency.proto, which describes the
// protocol, but for the two constants that both sides keep to. Start at package
// residency, which is the gateway's side, or at watch.go of package relay, which
// is the other.
package residencyv1

const (
	// Version is the version of the protocol.
	Version = 1
	// MaxFrame is the largest frame, in bytes.
	MaxFrame = 1 << 20
)
