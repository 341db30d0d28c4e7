// Package workloadtest gives tests identities: a development authority that
// serves the real Workload API and ends with the test. Start at [New].
package workloadtest

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// Domain is a trust domain for tests that do not mind which.
var Domain = spiffeid.RequireTrustDomainFromString("example.org")

// Authority is a development authority of one trust domain.
type Authority struct {
	*workload.Authority
	Domain spiffeid.TrustDomain
}

// New starts an authority whose SVIDs live for ttl; zero is an hour.
func New(tb testing.TB, domain spiffeid.TrustDomain, ttl time.Duration) *Authority {
	tb.Helper()
	dir, err := os.MkdirTemp("", "sp") // tb.TempDir is too long for a socket's path
	if err != nil {
		tb.Fatal(err)
	}
	a, err := workload.NewAuthority(workload.AuthorityConfig{
		TrustDomain: domain, TTL: ttl, Dir: dir, Environment: "test", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		a.Close()
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return &Authority{Authority: a, Domain: domain}
}

// At is the address of the Workload API of the workload at path.
func (a *Authority) At(tb testing.TB, path string) string {
	tb.Helper()
	socket, err := a.Socket(spiffeid.RequireFromPath(a.Domain, path))
	if err != nil {
		tb.Fatal(err)
	}
	return socket
}

// Source is the identity of the workload at path.
func (a *Authority) Source(tb testing.TB, path string, edits ...func(*workload.SourceConfig)) *workload.Source {
	tb.Helper()
	config := workload.SourceConfig{Socket: a.At(tb, path)}
	for _, edit := range edits {
		edit(&config)
	}
	s, err := workload.NewSource(tb.Context(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}
