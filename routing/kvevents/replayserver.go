package kvevents

import (
	"encoding/binary"
	"errors"
	"sync"
)

// A ReplayServer is the ROUTER socket on which an engine answers for the
// batches it published. It keeps the last of them in a ring.
type ReplayServer struct {
	topicFrame bool
	l          *Listener
	wg         sync.WaitGroup

	mu     sync.Mutex
	closed bool               // guarded by mu
	ring   []Message          // guarded by mu; grows to its capacity, then wraps
	oldest int                // guarded by mu; index of the oldest in a full ring
	conns  map[*Conn]struct{} // guarded by mu
}

// ReplayConfig describes a ReplayServer.
type ReplayConfig struct {
	Listen     string // endpoint to bind
	Buffer     int    // batches kept; 0 is 10,000, as in vLLM
	TopicFrame bool   // answer in the form of vLLM since #45177
	Options    Options
}

// NewReplayServer binds the endpoint and answers until Close.
func NewReplayServer(cfg ReplayConfig) (*ReplayServer, error) {
	if cfg.Buffer <= 0 {
		cfg.Buffer = 10_000
	}
	l, err := Listen(cfg.Listen, ROUTER, cfg.Options)
	if err != nil {
		return nil, err
	}
	s := &ReplayServer{
		topicFrame: cfg.TopicFrame,
		l:          l,
		ring:       make([]Message, 0, cfg.Buffer),
		conns:      make(map[*Conn]struct{}),
	}
	s.wg.Go(s.accept)
	return s, nil
}

// Addr is the endpoint as bound.
func (s *ReplayServer) Addr() string { return s.l.Addr() }

// Append remembers a published message, forgetting the oldest if the ring is
// full. The payload must not change afterwards.
func (s *ReplayServer) Append(m Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring) < cap(s.ring) {
		s.ring = append(s.ring, m)
		return
	}
	s.ring[s.oldest] = m
	s.oldest = (s.oldest + 1) % len(s.ring)
}

// since copies what is kept from a sequence number on.
func (s *ReplayServer) since(from uint64) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept []Message
	for i := range s.ring {
		if m := s.ring[(s.oldest+i)%len(s.ring)]; m.Seq >= from {
			kept = append(kept, m)
		}
	}
	return kept
}

// Close ends every connection and goroutine.
func (s *ReplayServer) Close() error {
	s.mu.Lock()
	s.closed = true
	var err error
	for c := range s.conns {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	s.mu.Unlock()
	err = errors.Join(err, s.l.Close())
	s.wg.Wait()
	return err
}

func (s *ReplayServer) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return // closed
		}
		if s.admit(c) {
			s.wg.Go(func() { s.serve(c) })
		} else {
			_ = c.Close() // never used
		}
	}
}

func (s *ReplayServer) admit(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) == maxSubscribers {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

// serve answers one peer until it goes. A request that is not "" seq is
// ignored, as vLLM does.
func (s *ReplayServer) serve(c *Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close() // there is no one left to tell
	}()
	for {
		parts, err := c.Recv()
		if err != nil {
			return
		}
		if len(parts) != 2 || len(parts[0]) != 0 || len(parts[1]) != seqSize {
			continue
		}
		if s.answer(c, binary.BigEndian.Uint64(parts[1])) != nil {
			return
		}
	}
}

func (s *ReplayServer) answer(c *Conn, from uint64) error {
	for _, m := range s.since(from) {
		if err := c.Send(s.form(m.parts())); err != nil {
			return err
		}
	}
	return c.Send(s.form([][]byte{nil, endOfReplay, nil}))
}

// form puts topic, seq and payload behind the empty delimiter.
func (s *ReplayServer) form(parts [][]byte) [][]byte {
	if !s.topicFrame {
		parts = parts[1:]
	}
	return append([][]byte{nil}, parts...)
}
