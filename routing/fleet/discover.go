package fleet

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
)

// Source finds the addresses of a pool's replicas. The targets it returns are
// made from like, which says everything but the address and the identity. An
// error means that it could not look, not that there are none: the caller keeps
// what it had.
type Source func(ctx context.Context, like Target) ([]Target, error)

// FromDNS finds an address for each record behind host:port, as a headless
// Service gives one for each ready pod.
func FromDNS(hostport string) Source {
	return func(ctx context.Context, like Target) ([]Target, error) {
		host, port, err := net.SplitHostPort(hostport)
		if err != nil {
			return nil, fmt.Errorf("discover %s: %w", hostport, err)
		}
		addrs, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("discover %s: %w", hostport, err)
		}
		slices.Sort(addrs) // resolvers rotate; a new order is no change
		var out []Target
		for _, a := range slices.Compact(addrs) {
			t := like
			t.Address, t.ID = net.JoinHostPort(a, port), ""
			out = append(out, t)
		}
		return out, nil
	}
}

// FromFile finds an address on each line of a file, with the SPIFFE ID that is
// expected there where one follows it. Empty lines and those that begin with #
// do not count.
func FromFile(path string) Source {
	return func(_ context.Context, like Target) ([]Target, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("discover: %w", err)
		}
		defer func() { _ = f.Close() }() // only read from
		var out []Target
		lines := bufio.NewScanner(f)
		for n := 1; lines.Scan(); n++ {
			words := strings.Fields(lines.Text())
			if len(words) == 0 || strings.HasPrefix(words[0], "#") {
				continue
			}
			t := like
			t.Address, t.ID = words[0], ""
			if len(words) == 2 {
				t.ID = words[1]
			}
			if _, _, err := net.SplitHostPort(t.Address); err != nil || len(words) > 2 {
				return nil, fmt.Errorf("discover: %s:%d: want an address and perhaps a SPIFFE ID", path, n)
			}
			out = append(out, t)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("discover: %w", err)
		}
		return out, nil
	}
}
