package relay

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

const (
	heartbeatEvery = time.Second
	// loadEvery is how often a gateway is told of the load, which is all that it
	// knows of the work of others.
	loadEvery = 50 * time.Millisecond
	// leaveGrace is how long a subscriber that fell behind may take to read
	// what is under way.
	leaveGrace = 500 * time.Millisecond
	// maxIDs bounds one Diverge.
	maxIDs = 64 << 10
)

// watchServer is the residency service.
type watchServer struct {
	residencyv1.UnimplementedResidencyServer
	r *Relay
}

// caller is the identity that the handshake proved, and when that proof ends.
func caller(ctx context.Context) (id string, until time.Time, err error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return "", time.Time{}, status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return "", time.Time{}, status.Error(codes.Unauthenticated, "no TLS")
	}
	sid, err := workload.PeerID(info.State)
	if err != nil {
		return "", time.Time{}, status.Error(codes.Unauthenticated, "no SVID")
	}
	return sid.String(), info.State.PeerCertificates[0].NotAfter, nil
}

// Watch streams the engine's residency. It ends
//
//   - with FailedPrecondition for another version or a malformed request,
//   - with PermissionDenied for a log key that may not sign tickets here,
//   - with Unavailable while the engine is not ready, or once it is not what
//     hello said,
//   - with ResourceExhausted for a subscriber that does not keep up,
//   - with Unauthenticated when the SVID that the connection proved expires.
//
// In the last three cases the subscriber should watch again.
func (s *watchServer) Watch(req *residencyv1.WatchRequest, stream residencyv1.Residency_WatchServer) error {
	id, until, err := caller(stream.Context())
	if err != nil {
		return err
	}
	if req.GetVersion() != residencyv1.Version {
		return status.Errorf(codes.FailedPrecondition, "residency version %d, this relay speaks %d", req.GetVersion(), residencyv1.Version)
	}
	if len(req.GetBlockKey()) != len(blockid.Key{}) {
		return status.Errorf(codes.FailedPrecondition, "block key of %d bytes, want %d", len(req.GetBlockKey()), len(blockid.Key{}))
	}
	key, err := ticket.ParseKey(req.GetLogVkey())
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	in, changed := s.r.currentInfo()
	if in == nil {
		return status.Error(codes.Unavailable, "engine not ready")
	}
	blockKey := blockid.Key(req.GetBlockKey())
	if err := s.r.register.enter(id, key, blockKey); err != nil {
		s.r.log.Warn("log key refused", "peer", id, "error", err)
		return status.Error(codes.PermissionDenied, err.Error())
	}
	defer s.r.register.leave(id, key.Origin)
	g := gatewayLog{id, key.Origin}
	s.r.load.register(g, req.GetKeyId())
	s.r.log.Info("gateway watches", "peer", id, "log", key.Origin, "key", req.GetKeyId())
	defer s.r.log.Info("gateway watches no more", "peer", id, "log", key.Origin)

	w := &watch{r: s.r, out: stream, info: in, gateway: g, key: blockKey}
	return w.run(stream.Context(), changed, until)
}

// watch is one Watch in progress. Its fields belong to the sending goroutine.
type watch struct {
	r       *Relay
	out     residencyv1.Residency_WatchServer
	info    *info
	gateway gatewayLog
	key     blockid.Key
	seq     uint64
	load    *residencyv1.Load // last sent
}

// run sends in one goroutine and watches in another: a send to a subscriber
// that does not read can only be ended by returning from the handler.
func (w *watch) run(ctx context.Context, changed <-chan struct{}, until time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	expired := time.NewTimer(time.Until(until))
	defer expired.Stop()
	sub, pics := w.r.hub.subscribe()
	defer w.r.hub.unsubscribe(sub)
	done := make(chan error, 1)
	go func() { done <- w.send(ctx, sub, pics) }()
	var end error
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-changed:
		end = status.Error(codes.Unavailable, "engine changed or stopping")
	case <-sub.behind:
		w.r.log.Warn("subscriber fell behind", "peer", w.gateway.peer)
		w.r.counts.lagged()
		end = status.Error(codes.ResourceExhausted, "fell behind: watch again")
	case <-expired.C:
		end = status.Error(codes.Unauthenticated, "SVID expired: connect again")
	}
	cancel()
	grace := time.NewTimer(leaveGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	return end
}

// send writes frames until ctx ends.
func (w *watch) send(ctx context.Context, sub *subscriber, pics []picture) error {
	if err := w.begin(pics); err != nil {
		return err
	}
	draining, drainChanged := w.r.drain.state()
	if draining {
		if err := w.drain(true); err != nil {
			return err
		}
	}
	heart, load := time.NewTicker(heartbeatEvery), time.NewTicker(loadEvery)
	defer heart.Stop()
	defer load.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case c := <-sub.changes:
			err = w.change(c)
			sub.waiting.Add(-int64(c.size()))
		case <-drainChanged:
			draining, drainChanged = w.r.drain.state()
			err = w.drain(draining)
		case <-load.C:
			err = w.reportLoad()
		case <-heart.C:
			err = w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Heartbeat{
				Heartbeat: &residencyv1.Heartbeat{EventLagUs: w.r.hub.eventLag().Microseconds()},
			}})
		}
		if err != nil {
			return err
		}
	}
}

func (w *watch) frame(f *residencyv1.Frame) error {
	w.seq++
	f.Epoch, f.Seq = w.r.epoch, w.seq
	return w.out.Send(f)
}

// begin sends hello, the snapshot and the load.
func (w *watch) begin(pics []picture) error {
	hello := &residencyv1.Hello{
		Replica: w.r.id, Pool: w.r.cfg.Pool, Engine: w.info.name, Models: w.info.models, Adapters: w.info.adapters,
		BlockSize: uint32(w.info.blockSize), NumBlocks: uint64(w.info.numBlocks), Ranks: uint32(w.r.cfg.Engine.ranks()),
		SaltVisible: w.r.cfg.Engine.Kind != External && !w.r.hub.saltHidden(), TierNames: tierNames[:],
	}
	hello.RanksAddressable = w.r.cfg.Engine.addressable()
	for _, rt := range w.info.routes {
		hello.RoutesIsolated = append(hello.RoutesIsolated, string(rt))
	}
	for _, rt := range w.info.sole {
		hello.RoutesSole = append(hello.RoutesSole, string(rt))
	}
	if len(w.info.sole) > 0 {
		hello.SoleDomain = blockid.Sole(&w.key, w.r.cfg.SaltDomain)
	}
	if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Hello{Hello: hello}}); err != nil {
		return err
	}
	for _, p := range pics {
		if err := w.snapshot(p); err != nil {
			return err
		}
	}
	if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_SnapshotEnd{SnapshotEnd: &residencyv1.SnapshotEnd{}}}); err != nil {
		return err
	}
	for _, p := range pics {
		if err := w.state(p.rank, &p.state); err != nil {
			return err
		}
	}
	return w.reportLoad()
}

// snapshotBlocks is how many blocks a snapshot frame holds at most: in the
// worst case each is a run of its own, of about 32 bytes.
const snapshotBlocks = 16 << 10

func (w *watch) snapshot(p picture) error {
	for nodes := p.nodes; len(nodes) > 0; {
		n := min(len(nodes), snapshotBlocks)
		part := &residencyv1.Snapshot{Nodes: w.runs(p.rank, nodes[:n])}
		if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Snapshot{Snapshot: part}}); err != nil {
			return err
		}
		nodes = nodes[n:]
	}
	return nil
}

// runs joins consecutive blocks and computes their ids in the subscriber's key.
func (w *watch) runs(rank int, nodes []stored) []*residencyv1.Stored {
	var out []*residencyv1.Stored
	var run *residencyv1.Stored
	var last stored
	for _, n := range nodes {
		if run == nil || n.node != last.node+1 || n.parent != last.node || n.tier != last.tier || n.space != last.space {
			ns := n.space.namespace()
			run = &residencyv1.Stored{
				Rank: uint32(rank), Ns: blockid.Namespace(&w.key, ns.model, ns.adapter, ns.domain),
				ParentNode: n.parent, Node: n.node, Tier: uint32(n.tier),
			}
			out = append(out, run)
		}
		run.Ids = append(run.Ids, blockid.Tokens(&w.key, n.tokens, n.extra))
		last = n
	}
	return out
}

// maxRun keeps a frame with one run, of 8 bytes a block, well below the
// largest frame.
const maxRun = 64 << 10

// change sends one net change.
func (w *watch) change(c *change) error {
	rank := uint32(c.rank)
	if c.cleared {
		if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Cleared{Cleared: &residencyv1.Cleared{Rank: rank}}}); err != nil {
			return err
		}
	}
	for t, nodes := range c.removed {
		for len(nodes) > 0 {
			n := min(len(nodes), maxRun)
			removed := &residencyv1.Removed{Rank: rank, Nodes: nodes[:n], Tier: uint32(t)}
			if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: removed}}); err != nil {
				return err
			}
			nodes = nodes[n:]
		}
	}
	for nodes := c.stored; len(nodes) > 0; {
		n := min(len(nodes), maxRun)
		for _, run := range w.runs(c.rank, nodes[:n]) {
			if err := w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: run}}); err != nil {
				return err
			}
		}
		nodes = nodes[n:]
	}
	if c.state != nil {
		return w.state(c.rank, c.state)
	}
	return nil
}

func (w *watch) state(rank int, s *streamState) error {
	return w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_State{State: &residencyv1.State{
		Rank: uint32(rank), State: s.code, Reason: s.reason, OrphansPct: s.orphans,
	}}})
}

func (w *watch) drain(on bool) error {
	return w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Drain{Drain: &residencyv1.Drain{Draining: on}}})
}

// reportLoad sends the load if it is not what was sent last.
func (w *watch) reportLoad() error {
	now := w.r.load.report(w.gateway)
	if w.load != nil && proto.Equal(now, w.load) {
		return nil
	}
	w.load = now
	return w.frame(&residencyv1.Frame{Body: &residencyv1.Frame_Load{Load: now}})
}

// Diverge says how far ids, in the key of the Watch of the gateway that the
// ticket came from, follow what the engine stored in the ticket's namespace. A
// gateway that sees where its own tokens part from the engine's can tell a
// wrong chat template from an eviction. Nothing is known of a ticket that is
// forgotten or not the caller's, nor of one during which nothing was stored:
// what it found cached may have been evicted since.
func (s *watchServer) Diverge(ctx context.Context, req *residencyv1.DivergeRequest) (*residencyv1.DivergeResponse, error) {
	id, _, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	ids := req.GetIds()
	if len(ids) > maxIDs {
		return nil, status.Errorf(codes.InvalidArgument, "%d ids, at most %d", len(ids), maxIDs)
	}
	t, ok := s.r.tickets.get(req.GetTicketId())
	if !ok || t.gateway.peer != id {
		return new(residencyv1.DivergeResponse), nil
	}
	key, ok := s.r.register.blockKey(t.gateway)
	if !ok {
		return new(residencyv1.DivergeResponse), nil
	}
	depth, seen := s.r.hub.traces.follow(traceKey{t.ns, t.rank}, &key, ids, t.since)
	if depth < len(ids) {
		depth = max(depth, s.r.hub.match(t.rank, &key, t.ns, ids))
	}
	// A path is remembered so far and no further.
	whole := depth == len(ids) || depth >= traceLength
	return &residencyv1.DivergeResponse{Known: seen || whole, Index: uint32(depth)}, nil
}
