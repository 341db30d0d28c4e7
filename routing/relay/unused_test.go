package relay

import (
	"net"
	"net/http"
	"testing"
)

func TestStoppingDoesNotWaitForConnectionsThatAskedNothing(t *testing.T) {
	pipe := func() (server, client net.Conn) {
		server, client = net.Pipe()
		t.Cleanup(func() { _ = server.Close(); _ = client.Close() })
		return server, client
	}
	closed := func(c net.Conn) bool {
		_, err := c.Write([]byte{0})
		return err != nil
	}
	var u unused
	idle, _ := pipe()
	asked, peer := pipe()
	u.note(idle, http.StateNew)
	u.note(asked, http.StateNew)
	u.note(asked, http.StateActive)
	u.close()
	go func() { _, _ = peer.Read(make([]byte, 1)) }()
	if !closed(idle) || closed(asked) {
		t.Errorf("idle closed: %v, in use closed: %v", closed(idle), closed(asked))
	}
	late, _ := pipe()
	u.note(late, http.StateNew)
	if !closed(late) {
		t.Error("a connection that came after the stop is open")
	}
}
