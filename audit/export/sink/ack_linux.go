package sink

import (
	"net"
	"syscall"
)

// acknowledgeSoon has the kernel acknowledge what comes next at once. A receiver
// that answers message by message waits for that, as Nagle's algorithm has it,
// and an acknowledgement that has nothing to travel with is held back for 40 ms.
// The kernel forgets it after a while, so it is asked again and again. Where it
// will not, answers come later and nothing else is the matter.
func acknowledgeSoon(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1)
	})
}
