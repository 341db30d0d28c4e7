package relay

import (
	"net"
	"net/http"
	"sync"
)

// unused are the connections on which no request has come yet. A gateway dials
// ahead of its requests, and [http.Server.Shutdown] waits some seconds for such
// connections, as if one were about to come. The zero value is ready.
type unused struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	done  bool
}

// note is the server's ConnState.
func (u *unused) note(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(u.conns, c)
	case u.done:
		_ = c.Close() // nothing was asked on it
	default:
		if u.conns == nil {
			u.conns = make(map[net.Conn]struct{})
		}
		u.conns[c] = struct{}{}
	}
}

// close closes them, and those to come.
func (u *unused) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.conns {
		_ = c.Close() // nothing was asked on it
	}
	u.conns, u.done = nil, true
}
