package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/kvindex"
	"github.com/sallyport-ai/sallyport/routing/residency"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

const (
	connectTimeout = 5 * time.Second
	minBackoff     = 100 * time.Millisecond
	maxBackoff     = 5 * time.Second
	// minLife is how long a session lasts at least: one that begins as a
	// certificate ends is ended by the relay.
	minLife = time.Second
	// keepLost is how long the residency of a lost replica is remembered.
	keepLost = time.Minute
)

// Why a session ends that was not broken.
var (
	errRenew   = errors.New("a certificate is about to expire")
	errNoPlace = errors.New("no ordinal left in the index")
)

// refusal is an error that says why the replica is not eligible.
type refusal struct {
	reason routing.Reason
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// keep has one session after the other with r until ctx ends.
func (f *Fleet) keep(ctx context.Context, r *replica) {
	defer f.forget(r)
	backoff, away := minBackoff, absence{keep: f.cfg.keepLost}
	for {
		began := time.Now()
		err := f.session(ctx, r)
		if ctx.Err() != nil {
			return
		}
		tooLong := away.ended(r.whole, time.Now()) // whole is written by this goroutine only
		f.ended(r, err)
		if errors.Is(err, errRenew) || errors.Is(err, errAnew) {
			continue
		}
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		if tooLong {
			f.forget(r)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff/2 + rand.N(backoff)):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// absence is since when a replica has not been watched. The zero absence is of
// one that never was.
type absence struct {
	since time.Time
	keep  time.Duration // how long what it held is remembered
}

// ended says at the end of a session, in which the replica was watched or not,
// whether it has been away for too long.
func (a *absence) ended(watched bool, now time.Time) bool {
	if watched {
		a.since = now
	}
	return !a.since.IsZero() && now.Sub(a.since) > a.keep
}

// ended notes that and why r is not watched any more. Its blocks stay in the
// index, out of credit.
func (f *Fleet) ended(r *replica, err error) {
	for _, st := range r.streams {
		st.Suspend()
	}
	reason := routing.Unhealthy
	var no *refusal
	if errors.As(err, &no) {
		reason = no.reason
	}
	renewing := errors.Is(err, errRenew) || errors.Is(err, errAnew)
	defer f.send() // after the lock is given back
	f.mu.Lock()
	before, id := r.down, r.id
	r.gen++
	r.conn, r.cancel, r.whole = nil, nil, false
	if broke := brokeWord(err); broke && r.doubt == "" {
		f.doubted(r, BreaksWord, err.Error())
	}
	switch {
	case renewing: // trusted until the certificate expires, only without credit
	case r.down == routing.SVIDMismatch && reason == routing.Unhealthy:
		// That a connection proved another identity outranks losing the Watch.
	default:
		r.down, r.detail = reason, err.Error()
	}
	after := r.down
	f.mu.Unlock()
	if after != before {
		f.log.Warn("replica lost", "pool", r.target.Pool, "address", r.target.Address, "replica", id, "reason", after, "error", err)
	}
}

// forget drops the residency of r.
func (f *Fleet) forget(r *replica) {
	for _, st := range r.streams {
		st.Close()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range r.ords {
		f.owners[o] = owner{}
	}
	r.streams, r.ords, r.blocks = nil, nil, 0
}

// session is one connection and its Watch. The error says why it ended.
func (f *Fleet) session(ctx context.Context, r *replica) error {
	conn, id, err := f.connect(ctx, r)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Not a deadline: the relay would learn of it, and end the Watch itself.
	renew := time.AfterFunc(max(time.Until(conn.Renewal()), minLife), func() { cancel(errRenew) })
	defer renew.Stop()
	if err := f.pin(r, id, conn, func() { cancel(nil) }); err != nil {
		return err
	}
	s := &session{f: f, r: r, id: id, cancel: cancel}
	defer s.close()
	err = conn.Watch(ctx, residency.Request{BlockKey: f.cfg.BlockKey, KeyID: f.cfg.KeyID, LogVKey: f.cfg.LogVKey}, s.frame)
	if cause := context.Cause(ctx); errors.Is(cause, errRenew) || errors.Is(cause, errAnew) {
		return cause
	}
	return err
}

// brokeWord says whether a session ended because the relay broke the protocol.
func brokeWord(err error) bool {
	for _, e := range []error{residency.ErrProtocol, kvindex.ErrNode, kvindex.ErrReused, kvindex.ErrTwice, kvindex.ErrParent, kvindex.ErrTier} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// connect proves r's identity on a new connection.
func (f *Fleet) connect(ctx context.Context, r *replica) (*residency.Conn, string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	target := r.target
	f.mu.Lock()
	target.ID = r.id
	f.mu.Unlock()
	config, err := f.cfg.TLS(target)
	if err != nil {
		return nil, "", &refusal{routing.NoSVID, fmt.Errorf("tls for %s: %w", target.Address, err)}
	}
	conn, err := residency.Connect(ctx, target.Address, config)
	switch {
	case err == nil:
	case f.cfg.IdentityError(err):
		return nil, "", &refusal{routing.SVIDMismatch, err}
	case errors.Is(err, residency.ErrHandshake):
		return nil, "", &refusal{routing.NoSVID, err}
	default:
		return nil, "", &refusal{routing.Unhealthy, err}
	}
	id, err := f.cfg.PeerID(conn.State())
	if err != nil || id == "" {
		conn.Close()
		return nil, "", &refusal{routing.NoSVID, fmt.Errorf("identity of %s: %w", target.Address, err)}
	}
	return conn, id, nil
}

// pin holds r to the ID it proved, and notes how to end the session.
func (f *Fleet) pin(r *replica, id string, conn *residency.Conn, cancel context.CancelFunc) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.id != "" && r.id != id {
		return &refusal{routing.SVIDMismatch, fmt.Errorf("%s proved %s, not %s", r.target.Address, id, r.id)}
	}
	if other := f.byID(id); other != nil && other != r {
		return &refusal{routing.SVIDMismatch, fmt.Errorf("%s proved %s, which is %s", r.target.Address, id, other.target.Address)}
	}
	r.id, r.conn, r.cancel = id, conn, cancel
	return nil
}

// session is a Watch in progress. It runs in the goroutine of keep.
type session struct {
	f      *Fleet
	r      *replica
	id     string
	cancel context.CancelCauseFunc

	in        uint64      // blocks told since the last count
	told      bucket      // block changes
	total     int         // blocks that the replica says it has, over all ranks; 0 unknown
	ownBudget bool        // its streams are held to that number, and not to a smaller share
	muted     bool        // its residency is not listened to
	after     *time.Timer // ends that, or a doubt; nil for neither
}

func (s *session) close() {
	if s.after != nil {
		s.after.Stop()
	}
}

// frame takes one frame; see residency.Sink.
func (s *session) frame(f *residencyv1.Frame) error {
	if err := s.apply(f); err != nil {
		return err
	}
	s.r.frames.Store(f.GetSeq())
	return nil
}

func (s *session) apply(f *residencyv1.Frame) error {
	s.r.heard.Store(time.Now().UnixNano())
	if s.muted && residencyOf(f) {
		return nil
	}
	switch b := f.GetBody().(type) {
	case *residencyv1.Frame_Hello:
		return s.hello(f.GetEpoch(), b.Hello)
	case *residencyv1.Frame_Snapshot:
		changes := 0
		for _, n := range b.Snapshot.GetNodes() {
			if err := s.stored(n); err != nil {
				return err
			}
			changes += len(n.GetIds())
		}
		s.weigh(changes)
	case *residencyv1.Frame_SnapshotEnd:
		s.whole()
	case *residencyv1.Frame_Stored:
		if err := s.stored(b.Stored); err != nil {
			return err
		}
		s.weigh(len(b.Stored.GetIds()))
	case *residencyv1.Frame_Removed:
		n := b.Removed
		if err := s.r.streams[n.GetRank()].Remove(n.GetNodes(), int(n.GetTier())); err != nil {
			return err
		}
		s.count()
		s.weigh(len(n.GetNodes()))
	case *residencyv1.Frame_Cleared:
		s.r.streams[b.Cleared.GetRank()].Clear()
		s.count()
		s.weigh(1)
	case *residencyv1.Frame_State:
		s.state(b.State)
	case *residencyv1.Frame_Load:
		s.f.mu.Lock()
		s.r.report(b.Load)
		s.f.mu.Unlock()
	case *residencyv1.Frame_Drain:
		s.drain(b.Drain.GetDraining())
	case *residencyv1.Frame_Heartbeat:
		s.f.mu.Lock()
		s.r.lagMS = max(b.Heartbeat.GetEventLagUs(), 0) / 1000
		s.f.mu.Unlock()
	}
	return nil
}

// residencyOf says whether a frame tells what the replica holds.
func residencyOf(f *residencyv1.Frame) bool {
	switch f.GetBody().(type) {
	case *residencyv1.Frame_Snapshot, *residencyv1.Frame_Stored, *residencyv1.Frame_Removed, *residencyv1.Frame_Cleared:
		return true
	}
	return false
}

// hello begins with empty streams, which stay invisible until the snapshot is
// complete.
func (s *session) hello(epoch string, h *residencyv1.Hello) error {
	r, f := s.r, s.f
	if h.GetReplica() != s.id {
		return &refusal{routing.SVIDMismatch, fmt.Errorf("%s says it is %s", s.id, h.GetReplica())}
	}
	if h.GetPool() != r.target.Pool {
		return &refusal{routing.NotPermitted, fmt.Errorf("%s says it is in pool %s, not %s", s.id, h.GetPool(), r.target.Pool)}
	}
	f.forget(r)
	ranks, blocks := int(h.GetRanks()), int(h.GetNumBlocks())
	budget := f.share(ranks, blocks)
	s.total, s.ownBudget, s.told.at = ranks*blocks, budget == blocks, time.Now()
	if err := f.register(r, ranks, budget, blocks); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.newEpoch(epoch)
	r.hello, r.whole, r.refusing, r.draining = h, false, false, false
	r.load = new(residencyv1.Load)
	r.ranks = make([]rankState, h.GetRanks())
	if len(r.onRank) != len(r.ranks) {
		r.onRank = make([]rankWork, h.GetRanks())
	}
	for i := range r.ranks {
		r.ranks[i] = rankState{routing.StreamUnknown, routing.SuspectStream}
	}
	r.gen++
	return nil
}

// register gives each rank of r, which says that it has so many blocks, an
// ordinal and a stream of the index.
func (f *Fleet) register(r *replica, ranks, budget, blocks int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for rank := range ranks {
		at := 0
		for at < len(f.owners) && f.owners[at].replica != nil {
			at++
		}
		st, err := f.index.Stream(at, budget)
		if err != nil {
			return fmt.Errorf("%w: %w", errNoPlace, err)
		}
		st.Expect(blocks)
		if at == len(f.owners) {
			f.owners = append(f.owners, owner{})
		}
		f.owners[at] = owner{r, rank}
		r.ords, r.streams = append(r.ords, at), append(r.streams, st)
	}
	return nil
}

// share is how many blocks each rank of a replica may have in the index: what it
// advertises, and no more than an equal share of the index, which a replica
// that advertises any number must not crowd out others from.
func (f *Fleet) share(ranks, blocks int) int {
	const perBlock = 32 // bytes, as fragmented as traffic makes it
	f.mu.Lock()
	all := max(len(f.replicas), 1) // this one may just have been withdrawn
	f.mu.Unlock()
	share := int(f.cfg.indexBytes/perBlock)/all/ranks + 1
	if blocks == 0 {
		return share
	}
	return min(blocks, share)
}

// whole makes the snapshot visible, and the replica eligible.
func (s *session) whole() {
	if s.muted { // it may serve, without credit
		s.f.mu.Lock()
		defer s.f.mu.Unlock()
		s.r.whole, s.r.down, s.r.detail = true, "", ""
		s.r.gen++
		return
	}
	for _, st := range s.r.streams {
		st.Commit()
	}
	s.count()
	s.after = time.AfterFunc(s.f.cfg.Penalty, s.clean)
	s.f.mu.Lock()
	s.r.whole, s.r.down, s.r.detail = true, "", ""
	s.r.breaker.works()
	s.r.gen++
	blocks := s.r.blocks
	s.f.mu.Unlock()
	s.f.log.Info("replica watched", "pool", s.r.target.Pool, "address", s.r.target.Address, "replica", s.id, "blocks", blocks)
}

func (s *session) stored(n *residencyv1.Stored) error {
	st := s.r.streams[n.GetRank()]
	if err := st.Store(n.GetNs(), n.GetParentNode(), n.GetNode(), n.GetIds(), int(n.GetTier())); err != nil {
		return err
	}
	s.in += uint64(len(n.GetIds()))
	if s.r.whole { // only this goroutine writes whole
		s.count()
	}
	return nil
}

// count notes what the streams hold.
func (s *session) count() {
	blocks, refused := 0, uint64(0)
	for _, st := range s.r.streams {
		stats := st.Stats()
		blocks += stats.Blocks
		refused += stats.Refused
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.r.blocks, s.r.refusing = blocks, refused > 0
	s.r.blocksIn += s.in
	s.in = 0
}

func (s *session) drain(on bool) {
	s.f.mu.Lock()
	s.r.draining = on
	s.r.gen++
	s.f.mu.Unlock()
	s.f.log.Info("replica told", "pool", s.r.target.Pool, "replica", s.id, "draining", on)
}

func (s *session) state(st *residencyv1.State) {
	k := rankState{}
	switch st.GetState() {
	case residencyv1.State_LIVE:
		k = rankState{routing.StreamLive, ""}
	case residencyv1.State_LIVE_PARTIAL:
		k = rankState{routing.StreamLivePartial, routing.PartialStream}
	case residencyv1.State_NONE:
		k = rankState{routing.StreamNone, routing.NoEvents}
	case residencyv1.State_SUSPECT:
		k = rankState{routing.StreamSuspect, routing.SuspectStream}
	default:
		k = rankState{routing.StreamUnknown, routing.SuspectStream}
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.r.ranks[st.GetRank()] = k
	s.r.gen++
}
