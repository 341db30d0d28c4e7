package workload_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/test/await"
)

func TestAWrongIdentityIsToldFromABrokenNetwork(t *testing.T) {
	a := newAuthority(t, time.Minute)
	gateway, relay := a.Source(t, "/gateway"), a.Source(t, "/pool/general/r0")
	somebody := spiffeid.RequireFromPath(domain, "/somebody")

	t.Run("the client refuses the server", func(t *testing.T) {
		url := serveTLS(t, workload.ServerConfig(relay, workload.ExactID(gateway.ID())), sayPeer)
		_, err := get(t, gateway, workload.ExactID(somebody), url)
		var refusal *workload.PeerIdentityError
		if !workload.IsIdentityError(err) || !errors.As(err, &refusal) || refusal.Got != relay.ID() || refusal.Want != somebody.String() {
			t.Fatal(err)
		}
	})
	t.Run("the server refuses the client", func(t *testing.T) {
		url := serveTLS(t, workload.ServerConfig(relay, workload.ExactID(somebody)), sayPeer)
		// Whether the write or the alert comes first is a race: all outcomes
		// must be recognised.
		for range 30 {
			if _, err := get(t, gateway, workload.ExactID(relay.ID()), url); !workload.IsIdentityError(err) {
				t.Fatalf("not an identity error: %v", err)
			}
		}
	})
	t.Run("nobody is admitted by a nil authorizer", func(t *testing.T) {
		url := serveTLS(t, workload.ServerConfig(relay, nil), sayPeer)
		if _, err := get(t, gateway, workload.ExactID(relay.ID()), url); !workload.IsIdentityError(err) {
			t.Fatal(err)
		}
		if _, err := get(t, gateway, nil, url); !errors.Is(err, workload.ErrPeerIdentity) {
			t.Fatal(err)
		}
	})
	t.Run("a closed port is no identity error", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		url := "https://" + listener.Addr().String()
		listener.Close()
		if _, err := get(t, gateway, workload.ExactID(relay.ID()), url); err == nil || workload.IsIdentityError(err) {
			t.Fatal(err)
		}
	})
	t.Run("a server that hangs up is no identity error", func(t *testing.T) {
		url := serveTLS(t, workload.ServerConfig(relay, workload.ExactID(gateway.ID())), func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		})
		if _, err := get(t, gateway, workload.ExactID(relay.ID()), url); err == nil || workload.IsIdentityError(err) {
			t.Fatal(err)
		}
	})
}

// exchange makes one connection and reads one byte, so that the server has
// decided and the client has got its session ticket.
func exchange(address string, config *tls.Config) (resumed bool, err error) {
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	return conn.ConnectionState().DidResume, err
}

// echo accepts connections and sends each a byte.
func echo(t *testing.T, config *tls.Config) (address string) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte{1}) // the client's read reports what went wrong
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

func TestAPeerTakenOffTheListDoesNotComeBackByResumption(t *testing.T) {
	a := newAuthority(t, time.Minute)
	gateway, relay := a.Source(t, "/gateway"), a.Source(t, "/relay")
	withTickets := func(c *tls.Config) { c.SessionTicketsDisabled = false }
	asBuilt := func(*tls.Config) {}

	for _, c := range []struct {
		claim           string
		server          func(*tls.Config)
		wouldResume     bool
		revokedAtServer bool
	}{
		{"a client, when the server is as built", asBuilt, false, true},
		{"a client, when the server gives tickets", withTickets, true, true},
		{"a server, when it gives tickets and the client keeps them", withTickets, true, false},
	} {
		t.Run(c.claim, func(t *testing.T) {
			var revoked atomic.Bool
			var asked atomic.Int32
			list := func(id spiffeid.ID) error {
				asked.Add(1)
				if revoked.Load() {
					return fmt.Errorf("%s was taken off the list", id)
				}
				return nil
			}
			anyone := workload.AuthorizeDomains(domain)
			serverList, clientList := workload.Authorizer(list), anyone
			if !c.revokedAtServer {
				serverList, clientList = anyone, list
			}
			server := workload.ServerConfig(relay, serverList)
			c.server(server)
			client := workload.ClientConfig(gateway, clientList)
			client.ServerName = "relay" // a session is cached under this name
			client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
			address := echo(t, server)

			if _, err := exchange(address, client); err != nil {
				t.Fatal(err)
			}
			resumed, err := exchange(address, client)
			if err != nil || resumed != c.wouldResume {
				t.Fatalf("the scene is not set: resumed=%v, %v", resumed, err)
			}
			revoked.Store(true)
			if _, err := exchange(address, client); !workload.IsIdentityError(err) {
				t.Fatalf("came back: %v", err)
			}
			if asked.Load() != 3 {
				t.Fatalf("the list was asked %d times for 3 connections", asked.Load())
			}
		})
	}
	if workload.ClientConfig(gateway, nil).ClientSessionCache != nil {
		t.Error("the client configuration keeps sessions")
	}
}

func TestAPublicListenerTakesClientsWithAndWithoutAnSVID(t *testing.T) {
	a, stranger := newAuthority(t, time.Minute), newAuthority(t, time.Minute)
	gateway, app := a.Source(t, "/gateway"), a.Source(t, "/app")
	forged := stranger.Source(t, "/app") // the same name, from another authority
	files, err := a.ServerCertificate([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := workload.FileCertificate(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	url := serveTLS(t, workload.OptionalClientConfig(certificate, gateway, workload.AuthorizeDomains(domain)), sayPeer)

	call := func(own workload.Material) (int, error) {
		pem, err := os.ReadFile(files.CA)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		config := &tls.Config{RootCAs: roots}
		if own != nil {
			config.GetClientCertificate = workload.ClientConfig(own, nil).GetClientCertificate
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Get(url)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	if code, err := call(nil); code != http.StatusForbidden {
		t.Errorf("without an SVID: %d, %v", code, err)
	}
	if code, err := call(app); code != http.StatusOK {
		t.Errorf("with an SVID: %d, %v", code, err)
	}
	if code, err := call(forged); err == nil {
		t.Errorf("with another authority's SVID: %d", code)
	}
}

func TestAReplacedServerCertificateIsPickedUp(t *testing.T) {
	a := newAuthority(t, time.Minute)
	files, err := a.ServerCertificate([]string{"old.test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	get, err := workload.FileCertificate(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	name := func() string {
		cert, err := get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return cert.Leaf.DNSNames[0]
	}
	touch := func(at time.Duration) {
		for _, f := range []string{files.Cert, files.Key} {
			if err := os.Chtimes(f, time.Time{}, time.Now().Add(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := name(); got != "old.test" {
		t.Fatal(got)
	}
	if err := os.WriteFile(files.Cert, []byte("half a fi"), 0o644); err != nil {
		t.Fatal(err)
	}
	touch(time.Second)
	if got := name(); got != "old.test" {
		t.Fatalf("an unreadable replacement took the place of a good one: %s", got)
	}
	if _, err := a.ServerCertificate([]string{"new.test"}, nil); err != nil {
		t.Fatal(err)
	}
	touch(2 * time.Second)
	if got := name(); got != "new.test" {
		t.Fatal(got)
	}
	if _, err := workload.FileCertificate(files.Cert, files.Cert); err == nil {
		t.Error("a missing key was accepted at start")
	}
}

func TestRotationEndsNoStream(t *testing.T) {
	a := newAuthority(t, time.Minute)
	gateway, relay := a.Source(t, "/gateway"), a.Source(t, "/relay")
	step := make(chan struct{})
	url := serveTLS(t, workload.ServerConfig(relay, workload.ExactID(gateway.ID())), func(w http.ResponseWriter, _ *http.Request) {
		for i := range 6 {
			fmt.Fprintf(w, "event %d\n", i)
			w.(http.Flusher).Flush()
			<-step
		}
	})
	transport := &http.Transport{DialTLSContext: workload.Dialer(gateway, workload.ExactID(relay.ID()))}
	defer transport.CloseIdleConnections()
	var peer spiffeid.ID
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		peer, _ = workload.PeerID(got.Conn.(*workload.Conn).ConnectionState()) // the zero ID fails below
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if peer != relay.ID() {
		t.Errorf("the connection does not say who answered: %v", peer)
	}

	serial := func() string {
		svid, err := gateway.GetX509SVID()
		if err != nil {
			t.Fatal(err)
		}
		return svid.Certificates[0].SerialNumber.String()
	}
	lines := bufio.NewScanner(resp.Body)
	for i := range 6 {
		if !lines.Scan() || lines.Text() != fmt.Sprintf("event %d", i) {
			t.Fatalf("event %d: %q, %v", i, lines.Text(), lines.Err())
		}
		before := serial()
		a.Rotate()
		await.That(t, "a new SVID", func() bool { return serial() != before })
		step <- struct{}{}
	}
	if body, err := io.ReadAll(resp.Body); err != nil || len(body) != 0 {
		t.Errorf("after the last event: %q, %v", body, err)
	}
}

func TestAnOutageLongerThanAnSVIDIsNoticedAndOver(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, 2500*time.Millisecond)
	gateway, relay := a.Source(t, "/gateway"), a.Source(t, "/relay")
	url := serveTLS(t, workload.ServerConfig(relay, workload.ExactID(gateway.ID())), sayPeer)
	want := workload.ExactID(relay.ID())
	if _, err := get(t, gateway, want, url); err != nil || gateway.Remaining() <= 0 {
		t.Fatal(err, gateway.Remaining())
	}

	if err := a.Outage(true); err != nil {
		t.Fatal(err)
	}
	await.That(t, "expiry", func() bool { return errors.Is(gateway.Ready(), workload.ErrExpired) })
	if gateway.Remaining() != 0 || !gateway.ID().IsZero() {
		t.Errorf("an expired source still is somebody: %v, %v", gateway.ID(), gateway.Remaining())
	}
	if _, err := get(t, gateway, want, url); err == nil {
		t.Error("a connection was made with expired SVIDs")
	}
	if _, err := workload.ClientConfig(gateway, want).GetClientCertificate(nil); !errors.Is(err, workload.ErrExpired) || !workload.IsIdentityError(err) {
		t.Errorf("with an expired SVID: %v", err)
	}

	if _, err := gateway.GetX509BundleForTrustDomain(domain); !errors.Is(err, workload.ErrExpired) {
		t.Errorf("authorities that nobody vouches for any more are believed: %v", err)
	}

	if err := a.Outage(false); err != nil {
		t.Fatal(err)
	}
	await.That(t, "recovery", func() bool { return gateway.Ready() == nil && relay.Ready() == nil })
	if _, err := get(t, gateway, want, url); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}

// A certificate that is no SVID proves a key and no name.
func TestAListenerThatBindsTokensTakesAnyCertificateButAFalseSVID(t *testing.T) {
	a, stranger := newAuthority(t, time.Minute), newAuthority(t, time.Minute)
	gateway, app := a.Source(t, "/gateway"), a.Source(t, "/app")
	forged := stranger.Source(t, "/app")
	files, err := a.ServerCertificate([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := workload.FileCertificate(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := stranger.ServerCertificate([]string{"client.test"}, nil) // of an authority that nobody here knows
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	shown := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, len(r.TLS.PeerCertificates) > 0 && workload.NamesID(r.TLS.PeerCertificates[0]), len(r.TLS.PeerCertificates))
	}
	names := serveTLS(t, workload.AnyClientConfig(certificate, gateway, workload.AuthorizeDomains(domain)), shown)
	binds := serveTLS(t, workload.AnyClientConfig(certificate, nil, nil), shown)
	svid := func(own workload.Material) *tls.Config {
		return &tls.Config{RootCAs: roots, GetClientCertificate: workload.ClientConfig(own, nil).GetClientCertificate}
	}
	pair, err := tls.LoadX509KeyPair(foreign.Cert, foreign.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim  string
		url    string
		config *tls.Config
		want   string // empty: refused
	}{
		{"no certificate", names, &tls.Config{RootCAs: roots}, "false 0"},
		{"a certificate of any authority", names, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, "false 1"},
		{"an SVID", names, svid(app), "true 1"},
		{"an SVID of another authority", names, svid(forged), ""},
		{"where nobody is named, an SVID is a certificate", binds, svid(forged), "true 1"},
	} {
		transport := &http.Transport{TLSClientConfig: c.config}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Get(c.url)
		if err != nil {
			if c.want != "" {
				t.Errorf("%s: %v", c.claim, err)
			}
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != c.want {
			t.Errorf("%s: %q, %v", c.claim, body, err)
		}
	}
}
