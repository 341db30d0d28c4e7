package residency

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// script is a relay that sends what it was told to, numbered from 1 unless a
// frame has a number.
type script struct {
	residencyv1.UnimplementedResidencyServer
	frames []*residencyv1.Frame
	got    chan *residencyv1.WatchRequest
}

func (s *script) Watch(r *residencyv1.WatchRequest, out grpc.ServerStreamingServer[residencyv1.Frame]) error {
	s.got <- r
	for i, f := range s.frames {
		if f.Seq == 0 {
			f.Seq = uint64(i) + 1
		}
		if f.Epoch == "" {
			f.Epoch = "e"
		}
		if err := out.Send(f); err != nil {
			return err
		}
	}
	<-out.Context().Done()
	return nil
}

func (s *script) Diverge(_ context.Context, r *residencyv1.DivergeRequest) (*residencyv1.DivergeResponse, error) {
	return &residencyv1.DivergeResponse{Known: r.GetTicketId() == "mine", Index: 900}, nil
}

func certificate(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"relay"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serve runs s on loopback and returns its address.
func serve(t *testing.T, s *script) string {
	s.got = make(chan *residencyv1.WatchRequest, 10)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate(t)}})))
	residencyv1.RegisterResidencyServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func connect(t *testing.T, s *script) *Conn {
	c, err := Connect(t.Context(), serve(t, s), &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func hello() *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_Hello{Hello: &residencyv1.Hello{Replica: "r", Ranks: 2, BlockSize: 16}}}
}

func helloWith(change func(*residencyv1.Hello)) *residencyv1.Frame {
	f := hello()
	change(f.GetHello())
	return f
}

func end() *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_SnapshotEnd{SnapshotEnd: &residencyv1.SnapshotEnd{}}}
}

func snapshot(nodes ...*residencyv1.Stored) *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_Snapshot{Snapshot: &residencyv1.Snapshot{Nodes: nodes}}}
}

func stored(s *residencyv1.Stored) *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: s}}
}

func removed(r *residencyv1.Removed) *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: r}}
}

func beat() *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_Heartbeat{Heartbeat: &residencyv1.Heartbeat{}}}
}

func state(rank uint32) *residencyv1.Frame {
	return &residencyv1.Frame{Body: &residencyv1.Frame_State{State: &residencyv1.State{Rank: rank}}}
}

func with(f *residencyv1.Frame, change func(*residencyv1.Frame)) *residencyv1.Frame {
	change(f)
	return f
}

var block = &residencyv1.Stored{Node: 1, Ids: []uint64{7}}

func TestFramesThatKeepTheProtocolReachTheSinkInOrder(t *testing.T) {
	s := &script{frames: []*residencyv1.Frame{
		hello(), state(1), snapshot(block), beat(), snapshot(), end(), {}, stored(block), removed(&residencyv1.Removed{Nodes: []uint32{1}}), beat(),
	}}
	c := connect(t, s)
	if len(c.State().PeerCertificates) != 1 {
		t.Error("the peer's certificate is not known")
	}
	done := errors.New("done")
	var got []uint64
	err := c.Watch(t.Context(), Request{BlockKey: [16]byte{9}, KeyID: "k", LogVKey: "v"}, func(f *residencyv1.Frame) error {
		got = append(got, f.GetSeq())
		if f.GetSeq() == 10 {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) || errors.Is(err, ErrProtocol) || len(got) != 9 {
		t.Errorf("frames %v, then %v", got, err)
	}
	if r := <-s.got; r.GetVersion() != 1 || len(r.GetBlockKey()) != 16 || r.GetBlockKey()[0] != 9 || r.GetKeyId() != "k" || r.GetLogVkey() != "v" {
		t.Errorf("asked %v", r)
	}
}

func TestFramesThatBreakTheProtocolEndTheWatch(t *testing.T) {
	for name, frames := range map[string][]*residencyv1.Frame{
		"no hello":                   {snapshot()},
		"two hellos":                 {hello(), hello()},
		"hello without replica":      {helloWith(func(h *residencyv1.Hello) { h.Replica = "" })},
		"no ranks":                   {helloWith(func(h *residencyv1.Hello) { h.Ranks = 0 })},
		"too many ranks":             {helloWith(func(h *residencyv1.Hello) { h.Ranks = MaxRanks + 1 })},
		"absurd block size":          {helloWith(func(h *residencyv1.Hello) { h.BlockSize = 1 << 16 })},
		"absurd capacity":            {helloWith(func(h *residencyv1.Hello) { h.NumBlocks = MaxBlocks + 1 })},
		"first is not number 1":      {with(hello(), func(f *residencyv1.Frame) { f.Seq = 2 })},
		"a hole":                     {hello(), with(beat(), func(f *residencyv1.Frame) { f.Seq = 3 })},
		"a number twice":             {hello(), with(beat(), func(f *residencyv1.Frame) { f.Seq = 1 })},
		"another epoch":              {hello(), with(beat(), func(f *residencyv1.Frame) { f.Epoch = "f" })},
		"change before the snapshot": {hello(), stored(block), end()},
		"removal before its end":     {hello(), snapshot(block), removed(&residencyv1.Removed{Nodes: []uint32{1}})},
		"snapshot after its end":     {hello(), end(), snapshot()},
		"two ends":                   {hello(), end(), end()},
		"stored nothing":             {hello(), end(), stored(&residencyv1.Stored{Node: 1})},
		"stored at node 0":           {hello(), snapshot(&residencyv1.Stored{Ids: []uint64{1}})},
		"node numbers overflow":      {hello(), end(), stored(&residencyv1.Stored{Node: 1<<32 - 1, Ids: []uint64{1, 2}})},
		"rank out of bounds":         {hello(), end(), stored(&residencyv1.Stored{Rank: 2, Node: 1, Ids: []uint64{1}})},
		"tier out of bounds":         {hello(), end(), stored(&residencyv1.Stored{Tier: MaxTiers, Node: 1, Ids: []uint64{1}})},
		"removed node 0":             {hello(), end(), removed(&residencyv1.Removed{Nodes: []uint32{0}})},
		"removed from no tier":       {hello(), end(), removed(&residencyv1.Removed{Tier: MaxTiers, Nodes: []uint32{1}})},
		"state of no rank":           {hello(), state(2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frames = append(frames, with(beat(), func(f *residencyv1.Frame) { f.Seq = uint64(len(frames)) + 1 }))
			last := uint64(len(frames))
			err := connect(t, &script{frames: frames}).Watch(t.Context(), Request{}, func(f *residencyv1.Frame) error {
				if f.GetSeq() == last {
					return errors.New("all frames were accepted")
				}
				return nil
			})
			if !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
		})
	}
}

func TestAFrameAboveOneMebibyteEndsTheWatch(t *testing.T) {
	big := &residencyv1.Stored{Node: 1, Ids: make([]uint64, residencyv1.MaxFrame/8)}
	err := connect(t, &script{frames: []*residencyv1.Frame{hello(), snapshot(big)}}).Watch(t.Context(), Request{}, func(f *residencyv1.Frame) error {
		if f.GetSnapshot() != nil {
			return errors.New("accepted")
		}
		return nil
	})
	if err == nil || err.Error() == "accepted" {
		t.Error(err)
	}
	small := &residencyv1.Stored{Node: 1, Ids: make([]uint64, residencyv1.MaxFrame/8-20)}
	done := errors.New("accepted")
	err = connect(t, &script{frames: []*residencyv1.Frame{hello(), snapshot(small)}}).Watch(t.Context(), Request{}, func(f *residencyv1.Frame) error {
		if f.GetSnapshot() != nil {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Errorf("a frame just below: %v", err)
	}
}

func TestARelayThatFallsSilentIsGivenUp(t *testing.T) {
	c := connect(t, &script{frames: []*residencyv1.Frame{hello(), end()}})
	c.silence = 50 * time.Millisecond
	if err := c.Watch(t.Context(), Request{}, func(*residencyv1.Frame) error { return nil }); !errors.Is(err, ErrSilent) {
		t.Error(err)
	}
}

func TestConnectSaysThatItWasTheHandshake(t *testing.T) {
	address := serve(t, &script{})
	wrong := errors.New("wrong peer")
	_, err := Connect(t.Context(), address, &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		VerifyConnection: func(tls.ConnectionState) error { return wrong },
	})
	if !errors.Is(err, ErrHandshake) || !errors.Is(err, wrong) {
		t.Errorf("wrong peer: %v", err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		if c, err := plain.Accept(); err == nil {
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			c.Close()
		}
	}()
	if _, err := Connect(t.Context(), plain.Addr().String(), &tls.Config{InsecureSkipVerify: true}); !errors.Is(err, ErrHandshake) {
		t.Errorf("plain text: %v", err)
	}
	if _, err := Connect(t.Context(), "127.0.0.1:1", &tls.Config{InsecureSkipVerify: true}); err == nil || errors.Is(err, ErrHandshake) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestDivergeIsBounded(t *testing.T) {
	c := connect(t, &script{})
	if at, known, err := c.Diverge(t.Context(), "mine", []uint64{1, 2, 3}); err != nil || !known || at != 3 {
		t.Error(at, known, err)
	}
	if _, known, err := c.Diverge(t.Context(), "other", nil); err != nil || known {
		t.Error(known, err)
	}
}
