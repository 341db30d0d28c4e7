//go:build !linux

package upstream

import (
	"net"
	"time"
)

// boundUnacked does nothing here: a peer that is gone without a word is noticed
// by the wait for its answer.
func boundUnacked(net.Conn, time.Duration) error { return nil }
