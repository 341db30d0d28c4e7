package kvevents

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
)

// An address is a parsed ZeroMQ address: tcp://host:port or ipc://path, where
// a path that begins with @ is in Linux's abstract namespace.
type address struct {
	network string // "tcp" or "unix"
	host    string // as package net wants it; a "*" host or port is still there
}

// CheckEndpoint says what is wrong with an endpoint.
func CheckEndpoint(s string) error {
	_, err := parseEndpoint(s)
	return err
}

func parseEndpoint(s string) (address, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || rest == "" {
		return address{}, fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", s)
	}
	switch scheme {
	case "ipc":
		return address{"unix", rest}, nil
	case "tcp":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return address{}, fmt.Errorf("endpoint %q: %w", s, err)
		}
		return address{"tcp", rest}, nil
	default:
		return address{}, fmt.Errorf("endpoint %q: transport %q is not tcp or ipc", s, scheme)
	}
}

func (a address) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, a.network, a.host)
}

func (a address) listen(mode fs.FileMode) (net.Listener, error) {
	if a.network == "unix" {
		return a.listenUnix(mode)
	}
	host, port, err := net.SplitHostPort(a.host)
	if err != nil {
		return nil, err
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	return net.Listen(a.network, net.JoinHostPort(host, port))
}

// listenUnix replaces the socket file of a listener that is gone, as libzmq
// does, but not that of one that still answers.
func (a address) listenUnix(mode fs.FileMode) (net.Listener, error) {
	if strings.HasPrefix(a.host, "@") {
		return net.Listen(a.network, a.host)
	}
	if fi, err := os.Lstat(a.host); err == nil && fi.Mode()&fs.ModeSocket != 0 {
		c, err := net.Dial(a.network, a.host)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("ipc://%s is in use", a.host), c.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err // it may be in use by someone we cannot reach
		}
		if err := os.Remove(a.host); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen(a.network, a.host)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(a.host, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// endpointOf is the inverse of parseEndpoint for an address that is bound.
func endpointOf(n net.Addr) string {
	if n.Network() == "unix" {
		return "ipc://" + n.String()
	}
	return n.Network() + "://" + n.String()
}
