//go:build !linux

package sink

import "net"

// acknowledgeSoon does nothing where there is nothing to ask the kernel for.
func acknowledgeSoon(net.Conn) {}
