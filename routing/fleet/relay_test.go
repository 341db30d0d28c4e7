package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/test/await"
)

// authority is a certificate authority for the SVIDs of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "ca"},
	}, time.Hour)
	return a
}

func (a *authority) sign(t testing.TB, c *x509.Certificate, ttl time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(ttl)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) svid(t testing.TB, id string, ttl time.Duration) *tls.Certificate {
	u, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := a.sign(t, &x509.Certificate{URIs: []*url.URL{u}, KeyUsage: x509.KeyUsageDigitalSignature}, ttl)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (a *authority) roots() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

var errWrongID = errors.New("wrong id")

func peerID(s tls.ConnectionState) (string, error) {
	if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].URIs) != 1 {
		return "", errors.New("no svid")
	}
	return s.PeerCertificates[0].URIs[0].String(), nil
}

// config trusts the authority and t.ID, or the members, whose patterns are
// prefixes here.
func (a *authority) config(t testing.TB, targets ...Target) Config {
	return a.configUntil(t, time.Hour, targets...)
}

// configUntil is config with a certificate of our own that expires.
func (a *authority) configUntil(t testing.TB, ttl time.Duration, targets ...Target) Config {
	own := a.svid(t, "spiffe://example.org/gateway", ttl)
	return Config{
		Targets: targets, PeerID: peerID,
		IdentityError: func(err error) bool { return errors.Is(err, errWrongID) },
		KeyID:         "test", BlockKey: blockid.Key{1, 2, 3},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		TLS: func(tg Target) (*tls.Config, error) {
			return &tls.Config{
				MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
				VerifyConnection: func(s tls.ConnectionState) error {
					if _, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: a.roots(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
						return err
					}
					id, err := peerID(s)
					if err != nil {
						return err
					}
					if tg.ID != "" && tg.ID != id || tg.ID == "" && !slices.ContainsFunc(tg.Members, func(m string) bool { return strings.HasPrefix(id, m) }) {
						return fmt.Errorf("%w: %s", errWrongID, id)
					}
					return nil
				},
			}, nil
		},
	}
}

const chat = "POST /v1/chat/completions"

// relay is a publisher: it says what its engine holds, in the key of whoever
// watches.
type relay struct {
	residencyv1.UnimplementedResidencyServer
	id      string
	address string
	hello   *residencyv1.Hello
	server  *grpc.Server

	mu      sync.Mutex
	epoch   string
	state   residencyv1.State_Stream
	held    map[string][]uint32 // by domain and tokens
	watches map[*watcher]struct{}
}

// watcher is one Watch.
type watcher struct {
	key  blockid.Key
	send chan *residencyv1.Frame
	next uint32
	node map[string]uint32
}

func (a *authority) relay(t testing.TB, id, pool, address string) *relay {
	return newRelay(t, a.svid(t, id, time.Hour), id, pool, address)
}

func newRelay(t testing.TB, svid *tls.Certificate, id, pool, address string) *relay {
	r := &relay{
		id: id, epoch: fmt.Sprint(time.Now().UnixNano()), state: residencyv1.State_LIVE,
		held: map[string][]uint32{}, watches: map[*watcher]struct{}{},
		hello: &residencyv1.Hello{
			Replica: id, Pool: pool, Engine: "test", Models: []string{"small"}, BlockSize: 16, NumBlocks: 10_000, Ranks: 1,
			RoutesIsolated: []string{chat}, SaltVisible: true, TierNames: []string{"gpu"},
		},
	}
	r.listen(t, svid, address)
	t.Cleanup(func() { r.server.Stop() })
	return r
}

func (r *relay) listen(t testing.TB, svid *tls.Certificate, address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	r.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*svid}, ClientAuth: tls.RequireAnyClientCert,
	})))
	residencyv1.RegisterResidencyServer(r.server, r)
	go r.server.Serve(l)
}

func (r *relay) target(pool string) Target { return Target{Address: r.address, ID: r.id, Pool: pool} }

func (r *relay) Watch(req *residencyv1.WatchRequest, out grpc.ServerStreamingServer[residencyv1.Frame]) error {
	w := &watcher{key: blockid.Key(req.GetBlockKey()), send: make(chan *residencyv1.Frame, 1000), node: map[string]uint32{}}
	r.mu.Lock()
	w.put(&residencyv1.Frame{Body: &residencyv1.Frame_Hello{Hello: r.hello}})
	for rank := range r.hello.GetRanks() {
		w.put(&residencyv1.Frame{Body: &residencyv1.Frame_State{State: &residencyv1.State{Rank: rank, State: r.state}}})
	}
	var nodes []*residencyv1.Stored
	for k, tokens := range r.held {
		nodes = append(nodes, w.stored(k, tokens))
	}
	w.put(&residencyv1.Frame{Body: &residencyv1.Frame_Snapshot{Snapshot: &residencyv1.Snapshot{Nodes: nodes}}})
	w.put(&residencyv1.Frame{Body: &residencyv1.Frame_SnapshotEnd{SnapshotEnd: &residencyv1.SnapshotEnd{}}})
	r.watches[w] = struct{}{}
	epoch := r.epoch
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.watches, w)
		r.mu.Unlock()
	}()
	beat := time.NewTicker(100 * time.Millisecond)
	defer beat.Stop()
	for seq := uint64(1); ; seq++ {
		var f *residencyv1.Frame
		select {
		case f = <-w.send:
		case <-beat.C:
			f = &residencyv1.Frame{Body: &residencyv1.Frame_Heartbeat{Heartbeat: &residencyv1.Heartbeat{EventLagUs: 7000}}}
		case <-out.Context().Done():
			return nil
		}
		f.Epoch = epoch
		if f.Seq == 0 {
			f.Seq = seq
		}
		if err := out.Send(f); err != nil {
			return err
		}
	}
}

func (w *watcher) put(f *residencyv1.Frame) { w.send <- f }

// stored tells of one prompt as a chain of its own from the root. The tests'
// prompts share no beginning within a domain.
func (w *watcher) stored(key string, tokens []uint32) *residencyv1.Stored {
	domain, _, _ := strings.Cut(key, " ")
	s := &residencyv1.Stored{
		Ns: blockid.Namespace(&w.key, "small", "", domain), Node: w.next + 1,
		Ids: blockid.Append(nil, &w.key, tokens, 16),
	}
	w.node[key] = s.Node
	w.next += uint32(len(s.Ids))
	return s
}

func heldKey(domain string, tokens []uint32) string { return domain + " " + fmt.Sprint(tokens) }

// store says that the engine now holds a prompt.
func (r *relay) store(domain string, tokens []uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := heldKey(domain, tokens)
	r.held[k] = tokens
	for w := range r.watches {
		w.put(&residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: w.stored(k, tokens)}})
	}
}

// evict says that the engine gave a prompt up, from block on.
func (r *relay) evict(domain string, tokens []uint32, from int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := heldKey(domain, tokens)
	for w := range r.watches {
		var nodes []uint32
		for i := from; i < len(tokens)/16; i++ {
			nodes = append(nodes, w.node[k]+uint32(i))
		}
		w.put(&residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: &residencyv1.Removed{Nodes: nodes}}})
	}
	delete(r.held, k)
}

// say sends a frame to everybody who watches.
func (r *relay) say(f func() *residencyv1.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watches {
		w.put(f())
	}
}

func (r *relay) report(l *residencyv1.Load) {
	r.say(func() *residencyv1.Frame { return &residencyv1.Frame{Body: &residencyv1.Frame_Load{Load: l}} })
}

func (r *relay) setState(s residencyv1.State_Stream) {
	r.mu.Lock()
	r.state = s
	r.mu.Unlock()
	r.say(func() *residencyv1.Frame {
		return &residencyv1.Frame{Body: &residencyv1.Frame_State{State: &residencyv1.State{State: s}}}
	})
}

// start runs a fleet until the test ends.
func start(t testing.TB, c Config) *Fleet {
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// until waits for a condition that another goroutine brings about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

func (f *Fleet) status(i int) Status { return f.Replicas()[i] }

func up(t testing.TB, f *Fleet, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d replicas up", n), func() bool {
		up := 0
		for _, s := range f.Replicas() {
			if s.Excluded == "" {
				up++
			}
		}
		return up == n
	})
}
