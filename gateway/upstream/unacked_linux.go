package upstream

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// boundUnacked has the kernel give a connection up when what was sent on it has
// not been acknowledged for that long: a peer that is gone without a word, which
// no deadline of ours tells from one that thinks. See tcp(7), TCP_USER_TIMEOUT.
func boundUnacked(c net.Conn, d time.Duration) error {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return fmt.Errorf("bound unacknowledged data: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
	if err == nil {
		err = set
	}
	if err != nil {
		return fmt.Errorf("bound unacknowledged data: %w", err)
	}
	return nil
}
