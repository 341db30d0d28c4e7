package sink

import (
	"net"
	"syscall"
)

// acknowledgeSoon has the kernel acknowledge what comes next at once. A receiver
// that answers message by message waits for that, as Nagle's algorithm has it,
// and an acknowledgement that has nothing to travel with is held back for 40 ms.
// The kernel forgets it after a while, so it is asked again and again.
func acknowledgeSoon(conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1)
	}); err != nil {
		return err
	}
	return set
}
