package upstream

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

func TestAConnectionIsGivenUpWhenNothingIsAcknowledged(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w.r0, anyone(), answer("ok"))
	p, err := w.client(t, Config{}).peer(s.Replica)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	raw, err := c.Conn.(*workload.Conn).NetConn().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err != nil || got != int(unacked.Milliseconds()) {
		t.Errorf("%d ms, %v", got, err)
	}
}
