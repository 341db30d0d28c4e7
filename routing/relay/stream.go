package relay

import (
	"errors"
	"hash/maphash"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// streamState is what subscribers are told of a stream.
type streamState struct {
	code    residencyv1.State_Stream
	reason  string
	orphans uint32 // per cent
}

// seenBatches is how many of the last batches a stream can recognise.
const seenBatches = 4096

// seen is a batch that was applied.
type seen struct {
	seq uint64
	sum uint64
	ok  bool
}

// verdict is what became of a batch that was offered.
type verdict uint8

const (
	applied   verdict = iota
	duplicate         // applied before
	hole              // batches before it are missing: replay them, then offer it again
)

// errOtherHistory ends a replay that shows that the engine's numbers no longer
// mean what they did.
var errOtherHistory = errors.New("the engine's sequence began anew")

// stream decides from what one engine rank publishes whether its mirror can be
// believed. An engine's sequence has no epoch, so a restarted one may go on at
// a higher number as if nothing had happened. What a number means is therefore
// proven by asking for the last batch again: only the same process still has
// the same bytes (they begin with a time of day) under that number.
//
//	          connected            replayed from 0
//	UNKNOWN ───────────▶ REPLAYING ─────────────▶ LIVE
//	                      ▲     │ no replay, or its beginning is lost
//	    lost, hole        │     └───────────────▶ LIVE_PARTIAL
//	SUSPECT ◀── anywhere ─┘
//
// Whenever continuity is not proven, the mirror starts empty. From there it
// holds no more than the engine does, whatever came before, since a removal
// of a block that it does not know changes nothing.
type stream struct {
	rank       int
	replayable bool
	m          *mirror
	state      streamState
	started    bool   // next means something
	next       uint64 // expected sequence number
	complete   bool   // the mirror has seen everything since the engine started
	recent     []seen // by seq modulo its length
	seed       maphash.Seed
	restarts   uint64 // times the mirror was emptied in doubt
	reborn     uint64 // of these, times the engine may be another process
}

func newStream(rank int, replayable bool, cfg mirrorConfig) *stream {
	return &stream{
		rank: rank, replayable: replayable, m: newMirror(cfg),
		recent: make([]seen, seenBatches), seed: maphash.MakeSeed(),
	}
}

// fit takes what the engine turned out to be. Blocks of another size than was
// believed are worthless, so a change of size empties the mirror.
func (s *stream) fit(cfg mirrorConfig) {
	if cfg.blockSize == 0 {
		cfg.blockSize = s.m.cfg.blockSize
	}
	if cfg.maxNodes == 0 {
		cfg.maxNodes = defaultMaxNodes
	}
	changed := s.m.cfg.blockSize != 0 && cfg.blockSize != s.m.cfg.blockSize
	s.m.cfg = cfg
	if !changed {
		return
	}
	s.m.restart()
	s.complete = false
	if s.state.code == residencyv1.State_LIVE {
		s.set(residencyv1.State_LIVE_PARTIAL, "block_size")
	}
}

// lost says that the connection is gone.
func (s *stream) lost(reason string) {
	s.set(residencyv1.State_SUSPECT, reason)
}

// connected says that there is a new connection. The caller replays if it can.
func (s *stream) connected() {
	if s.replayable {
		s.set(residencyv1.State_REPLAYING, "connected")
		return
	}
	s.newEngine("no_replay")
	s.set(residencyv1.State_LIVE_PARTIAL, "no_replay")
}

func (s *stream) set(code residencyv1.State_Stream, reason string) {
	s.state.code, s.state.reason = code, reason
}

// restart empties the mirror and forgets what the numbers mean.
func (s *stream) restart(reason string) {
	if s.started {
		s.restarts++
	}
	s.m.restart()
	s.started, s.complete, s.next = false, false, 0
	clear(s.recent)
	s.set(residencyv1.State_SUSPECT, reason)
}

// asleep says that the engine has dropped its cache without saying so.
func (s *stream) asleep() {
	if s.m.live > 0 || s.state.code == residencyv1.State_LIVE || s.state.code == residencyv1.State_LIVE_PARTIAL {
		s.restart("asleep")
	}
}

// newEngine is restart where the engine may be another process.
func (s *stream) newEngine(reason string) {
	if s.started {
		s.reborn++
	}
	s.restart(reason)
}

// settle gives the state that the content deserves once nothing is missing.
func (s *stream) settle(reason string) {
	if s.complete {
		s.set(residencyv1.State_LIVE, "")
		return
	}
	s.set(residencyv1.State_LIVE_PARTIAL, reason)
}

// offer takes a batch from the live connection. b is nil if it could not be
// decoded.
func (s *stream) offer(msg kvevents.Message, b *kvevents.Batch) verdict {
	sum := maphash.Bytes(s.seed, msg.Payload)
	switch {
	case !s.started:
		s.begin(msg.Seq)
	case msg.Seq < s.next && s.knows(msg.Seq, sum):
		return duplicate
	case msg.Seq != s.next && s.replayable:
		s.set(residencyv1.State_REPLAYING, "sequence")
		return hole
	case msg.Seq < s.next:
		s.newEngine("sequence_backward")
		s.begin(msg.Seq)
	case msg.Seq > s.next:
		s.restart("sequence_hole")
		s.begin(msg.Seq)
	}
	s.take(msg.Seq, sum, b)
	return applied
}

// skip is for a hole that no replay fills: the mirror starts anew at the batch,
// which is offered next.
func (s *stream) skip() {
	s.restart("sequence_hole")
}

// begin starts a history at seq. An engine's first batch has number 0, and
// before it the cache is empty.
func (s *stream) begin(seq uint64) {
	reason := s.state.reason
	s.started, s.next, s.complete = true, seq, seq == 0
	s.settle(reason)
}

// take applies the batch that is next.
func (s *stream) take(seq, sum uint64, b *kvevents.Batch) {
	s.next = seq + 1
	s.recent[seq%seenBatches] = seen{seq, sum, true}
	var f fault
	switch {
	case b == nil:
		f = "undecodable_batch"
	case !b.UnderCredits():
		// What was left out may have been a removal, of what was stored before it
		// in this batch or ever: so the known events of the batch go with it.
		s.m.count(b)
		f = "unknown_event"
	case b.Rank != kvevents.None && b.Rank != s.rank && !(b.Rank == 0 && s.m.cfg.perEvent):
		// Who speaks is known from the connection, not from what it says. SGLang
		// names the rank of its attention, which is 0 where that is not parallel.
		f = "other_rank"
	default:
		f = s.m.apply(b)
	}
	if f == "" {
		return
	}
	s.restarts++
	s.m.restart()
	s.complete = false
	s.set(residencyv1.State_LIVE_PARTIAL, string(f))
}

// knows reports whether this very batch was applied as number seq.
func (s *stream) knows(seq, sum uint64) bool {
	r := s.recent[seq%seenBatches]
	return r.ok && r.seq == seq && r.sum == sum
}

// resume is where a replay has to begin: at the last batch, to prove that it
// is still the same one.
func (s *stream) resume() uint64 {
	if !s.started || s.next == 0 {
		return 0
	}
	return s.next - 1
}

// replay is one replay of missed batches into a stream.
type replay struct {
	s      *stream
	proven bool // the numbers mean what they did
}

// beginReplay says that a replay from resume() starts.
func (s *stream) beginReplay() *replay {
	if !s.started {
		s.m.restart()
	}
	s.set(residencyv1.State_REPLAYING, "replaying")
	return &replay{s: s, proven: !s.started || s.next == 0}
}

// offer takes one replayed batch. After [errOtherHistory] the stream is empty
// and the caller replays again.
func (r *replay) offer(msg kvevents.Message, b *kvevents.Batch) error {
	s, sum := r.s, maphash.Bytes(r.s.seed, msg.Payload)
	if !r.proven {
		if msg.Seq != s.next-1 || !s.knows(msg.Seq, sum) {
			s.newEngine("engine_restarted")
			return errOtherHistory
		}
		r.proven = true
		return nil
	}
	if !s.started {
		s.begin(msg.Seq)
		s.set(residencyv1.State_REPLAYING, "replaying")
	}
	if msg.Seq != s.next {
		s.restart("replay_hole")
		s.begin(msg.Seq)
	}
	s.take(msg.Seq, sum, b)
	return nil
}

// end says that the replay is over; err is why it broke off. It returns
// errOtherHistory if the engine did not have the batch that was to prove
// continuity: then the stream is empty and the caller replays again.
func (r *replay) end(err error) error {
	s := r.s
	switch {
	case errors.Is(err, errOtherHistory):
		return err
	case err != nil:
		s.restart("replay_failed")
		s.set(residencyv1.State_LIVE_PARTIAL, "replay_failed")
		return nil
	case !r.proven:
		s.newEngine("engine_restarted")
		return errOtherHistory
	case !s.started:
		// The engine has published nothing yet.
		s.begin(0)
	}
	s.settle("replay_incomplete")
	return nil
}
