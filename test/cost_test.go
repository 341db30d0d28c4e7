package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// TestCost compares what a request costs the gateway and the relays with what it
// costs two plain reverse proxies in their place: the first takes TLS and asks
// over mTLS, the second takes mTLS and asks in the clear.
func TestCost(t *testing.T) {
	if os.Getenv("SALLYPORT_COST") == "" {
		t.Skip("set SALLYPORT_COST to measure, on a machine that is otherwise idle")
	}
	const requests, callers = 2000, 16
	w := newWorld(t, append([]string{"--sentences", "8"}, idle...)...)
	w.asInService(t)
	gateway, at := w.serve(t)
	token := w.token(t, "alice@acme.example", "acme")
	awaitOK(t, w.client(t, nil), at, token)
	back := startProxy(t, "back", w.socket(t, w.replicas[0].id), "http://"+engineAddress(t, w.replicas[0].engine), "")
	front := startProxy(t, "front", w.socket(t, gatewayID), "https://"+back.at, w.config)

	for _, c := range []struct {
		name   string
		stream bool
		tokens int
	}{{"JSON", false, 1}, {"stream", true, 50}} {
		body := func(n int) []byte {
			return chat(fmt.Sprintf("Tell all that paragraph %d of handbook %d says of harbours, and why.", n, n%97), c.stream, c.tokens)
		}
		before := w.cpu(t, gateway)
		got := run(t, w, at, token, requests, callers, body)
		ours := w.cpu(t, gateway)
		beforeFront, beforeBack := front.used(t), back.used(t)
		plain := run(t, w, "https://"+front.at, token, requests, callers, body)
		frontUsed, backUsed := front.used(t)-beforeFront, back.used(t)-beforeBack
		if got.truncated.Load() > 0 {
			t.Errorf("%s: %d truncated", c.name, got.truncated.Load())
		}
		if n := plain.truncated.Load(); n > 0 {
			t.Logf("%s: the plain proxies truncated %d of %d", c.name, n, requests) // as ReverseProxy may
		}
		t.Logf("%s, %d events: gateway %v, proxy in its place %v; relay %v, proxy in its place %v", c.name, got.events.Load()/requests,
			per(ours[0]-before[0], requests), per(frontUsed, requests), per(ours[1]-before[1], requests), per(backUsed, requests))
	}
}

// proxy is a plain reverse proxy in a process of its own.
type proxy struct {
	process
	at string
}

const (
	proxyRole   = "SALLYPORT_TEST_PROXY"
	proxySocket = "SALLYPORT_TEST_SOCKET"
	proxyTo     = "SALLYPORT_TEST_TO"
	proxyConfig = "SALLYPORT_TEST_CONFIG"
)

func startProxy(t *testing.T, role, socket, to, config string) *proxy {
	t.Helper()
	p := &proxy{process: process{name: role, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}}
	p.cmd.Env = append(os.Environ(), proxyRole+"="+role, proxySocket+"="+socket, proxyTo+"="+to, proxyConfig+"="+config)
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	found := make(chan []string, 1)
	go p.follow(out, regexp.MustCompile(`proxy at (\S+)`), found)
	select {
	case match := <-found:
		p.at = match[0]
	case <-time.After(startTime):
		t.Fatalf("the %s proxy does not serve: %s", role, p.output())
	}
	return p
}

// runProxy is the process of a proxy; it returns only after an error.
func runProxy() error {
	ctx := context.Background()
	source, err := workload.NewSource(ctx, workload.SourceConfig{Socket: os.Getenv(proxySocket)})
	if err != nil {
		return err
	}
	to, err := url.Parse(os.Getenv(proxyTo))
	if err != nil {
		return err
	}
	anybody := workload.AuthorizeDomains(spiffeid.RequireTrustDomainFromString(trustDomain))
	conf := workload.ServerConfig(source, anybody)
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	if os.Getenv(proxyRole) == "front" {
		text, err := os.ReadFile(os.Getenv(proxyConfig))
		if err != nil {
			return err
		}
		files := regexp.MustCompile(`cert_file: "([^"]+)", key_file: "([^"]+)"`).FindStringSubmatch(string(text))
		web, err := workload.FileCertificate(files[1], files[2])
		if err != nil {
			return err
		}
		conf = &tls.Config{GetCertificate: web, MinVersion: tls.VersionTLS12}
		transport.TLSClientConfig = workload.ClientConfig(source, anybody)
	}
	conf.NextProtos = []string{"http/1.1"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "proxy at", l.Addr())
	handler := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	}
	return http.Serve(tls.NewListener(l, conf), handler)
}

// engineAddress is where a stand-in engine serves.
func engineAddress(t *testing.T, p *process) string {
	t.Helper()
	m := engineServes.FindStringSubmatch(strings.SplitN(p.output(), "\n", 2)[0])
	if m == nil {
		t.Fatalf("the engine said %s", p.output())
	}
	return filepath.Base(m[1])
}
