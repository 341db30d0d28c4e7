package workload_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/test/await"
)

func TestTheAuthorityWarnsAndStaysOutOfProduction(t *testing.T) {
	var log bytes.Buffer
	config := workload.AuthorityConfig{
		TrustDomain: domain, Dir: t.TempDir(), Environment: "demo",
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	a, err := workload.NewAuthority(config)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "DEVELOPMENT AUTHORITY") {
		t.Errorf("no warning: %q", log.String())
	}
	for _, environment := range []string{"production", "Production", "staging", ""} {
		config.Environment = environment
		if _, err := workload.NewAuthority(config); !errors.Is(err, identity.ErrProduction) {
			t.Errorf("environment %q: %v", environment, err)
		}
	}
}

func TestAnIncompleteAuthorityIsRefused(t *testing.T) {
	whole := workload.AuthorityConfig{TrustDomain: domain, Dir: t.TempDir(), Environment: "test", Logger: slog.New(slog.DiscardHandler)}
	for what, breakIt := range map[string]func(*workload.AuthorityConfig){
		"trust domain": func(c *workload.AuthorityConfig) { c.TrustDomain = spiffeid.TrustDomain{} },
		"directory":    func(c *workload.AuthorityConfig) { c.Dir = "" },
		"logger":       func(c *workload.AuthorityConfig) { c.Logger = nil },
	} {
		config := whole
		breakIt(&config)
		if _, err := workload.NewAuthority(config); err == nil {
			t.Errorf("without a %s", what)
		}
	}
	config := whole
	config.Dir = filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	a, err := workload.NewAuthority(config)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Socket(spiffeid.RequireFromPath(domain, "/a")); err == nil {
		t.Error("a socket path too long for the system was accepted")
	}
	for _, id := range []spiffeid.ID{{}, domain.ID(), spiffeid.RequireFromString("spiffe://example.com/a")} {
		if _, err := a.Socket(id); err == nil {
			t.Errorf("issued %q", id)
		}
	}
}

func TestASocketIsForThisUserAlone(t *testing.T) {
	a := newAuthority(t, time.Minute)
	id := spiffeid.RequireFromPath(domain, "/a")
	addr, err := a.Socket(id)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.Socket(id); err != nil || again != addr {
		t.Errorf("asked twice: %q then %q, %v", addr, again, err)
	}
	path := strings.TrimPrefix(addr, "unix://")
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	a.Close()
	a.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := a.Socket(id); err == nil {
		t.Error("a closed authority opens sockets")
	}
}

func TestACallWithoutTheSecurityHeaderIsRefused(t *testing.T) {
	a := newAuthority(t, time.Minute)
	addr, err := a.Socket(spiffeid.RequireFromPath(domain, "/a"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := pb.NewSpiffeWorkloadAPIClient(conn)
	for _, c := range []struct {
		header []string
		want   codes.Code
	}{
		{nil, codes.InvalidArgument},
		{[]string{"workload.spiffe.io", "TRUE"}, codes.InvalidArgument},
		{[]string{"workload.spiffe.io", "true", "workload.spiffe.io", "true"}, codes.InvalidArgument},
		{[]string{"workload.spiffe.io", "true"}, codes.OK},
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), c.header...)
		stream, err := client.FetchX509SVID(ctx, &pb.X509SVIDRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != c.want {
			t.Errorf("stream with %v: %v", c.header, err)
		}
		_, err = client.FetchJWTSVID(ctx, &pb.JWTSVIDRequest{Audience: []string{"x"}})
		if status.Code(err) != c.want {
			t.Errorf("call with %v: %v", c.header, err)
		}
	}
}

func TestTheAuthorityServesTheWholeWorkloadAPI(t *testing.T) {
	a := newAuthority(t, time.Minute)
	id := spiffeid.RequireFromPath(domain, "/a")
	addr, err := a.Socket(id)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	client, err := workloadapi.New(ctx, workloadapi.WithAddr(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	bundles, err := client.FetchX509Bundles(ctx)
	if err != nil || !bundles.Has(domain) {
		t.Errorf("X.509 bundles: %v, %v", bundles, err)
	}
	token, err := client.FetchJWTSVID(ctx, jwtsvid.Params{Audience: "sallyport"})
	if err != nil || token.ID != id {
		t.Fatalf("JWT-SVID: %v, %v", token, err)
	}
	keys, err := client.FetchJWTBundles(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if svid, err := jwtsvid.ParseAndValidate(token.Marshal(), keys, []string{"sallyport"}); err != nil || svid.ID != id {
		t.Errorf("the token does not verify under the bundle: %v, %v", svid, err)
	}
	if svid, err := client.ValidateJWTSVID(ctx, token.Marshal(), "sallyport"); err != nil || svid.ID != id {
		t.Errorf("validation by the API: %v, %v", svid, err)
	}
	if _, err := client.ValidateJWTSVID(ctx, token.Marshal(), "somebody else"); err == nil {
		t.Error("a token for another audience was found valid")
	}
	other := spiffeid.RequireFromPath(domain, "/b")
	if _, err := client.FetchJWTSVID(ctx, jwtsvid.Params{Audience: "sallyport", Subject: other}); err == nil || !strings.Contains(err.Error(), "no identity issued") {
		t.Errorf("another workload's JWT-SVID: %v", err)
	}
}

func TestAnSVIDIsReplacedAtHalfItsLife(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, 2*time.Second)
	source := a.Source(t, "/a")
	first, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	await.That(t, "rotation", func() bool {
		svid, err := source.GetX509SVID()
		if err != nil {
			t.Fatalf("expired before it was replaced: %v", err)
		}
		return !svid.Certificates[0].Equal(first.Certificates[0])
	})
}

func TestASourceStartsInBoundedTimeOrSaysWhy(t *testing.T) {
	for _, socket := range []string{"", "/run/agent.sock", "tcp://127.0.0.1"} {
		if _, err := workload.NewSource(t.Context(), workload.SourceConfig{Socket: socket}); err == nil {
			t.Errorf("socket %q was accepted", socket)
		}
	}
	start := time.Now()
	_, err := workload.NewSource(t.Context(), workload.SourceConfig{
		Socket: "unix://" + filepath.Join(t.TempDir(), "none.sock"), StartTimeout: 200 * time.Millisecond,
	})
	if err == nil || !strings.Contains(err.Error(), "is the agent running") || time.Since(start) > await.Limit/2 {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
