package kvevents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
)

// Limits on what a subscriber may ask of a publisher.
const (
	maxPrefix        = 1 << 10 // bytes in one subscription
	maxSubscriptions = 256     // of one subscriber
	maxSubscribers   = 256     // of one publisher
)

// A Publisher is a PUB socket: each message goes to the subscribers that asked
// for its topic. It never waits for them; one that falls behind by more than
// the high-water mark misses messages, and sees that in the sequence. One that
// accepts nothing for [Options.Write] is disconnected.
type Publisher struct {
	hwm     int
	opts    Options
	l       *Listener // nil if it only connects
	dropped atomic.Uint64
	wg      sync.WaitGroup

	mu     sync.Mutex
	closed bool                     // guarded by mu
	subs   map[*subscriber]struct{} // guarded by mu
}

// PublisherConfig describes a Publisher.
type PublisherConfig struct {
	Listen  string // endpoint to bind, or "" to only [Publisher.Connect]
	HWM     int    // messages queued for each subscriber; 0 is 1000, as in libzmq
	Options Options
}

// NewPublisher binds the endpoint, if there is one, and serves subscribers
// until Close.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	p := &Publisher{hwm: cfg.HWM, opts: cfg.Options, subs: make(map[*subscriber]struct{})}
	if p.hwm <= 0 {
		p.hwm = 1000
	}
	if cfg.Listen == "" {
		return p, nil
	}
	l, err := Listen(cfg.Listen, PUB, cfg.Options)
	if err != nil {
		return nil, err
	}
	p.l = l
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is the endpoint as bound, or "".
func (p *Publisher) Addr() string {
	if p.l == nil {
		return ""
	}
	return p.l.Addr()
}

// Dropped counts the messages that subscribers missed at the high-water mark.
func (p *Publisher) Dropped() uint64 { return p.dropped.Load() }

// Connect serves the bound subscriber at the endpoint until it is lost or ctx
// ends, and then returns why. The caller decides whether to connect again.
func (p *Publisher) Connect(ctx context.Context, endpoint string) error {
	c, err := Dial(ctx, endpoint, PUB, p.opts)
	if err != nil {
		return err
	}
	interrupt := context.AfterFunc(ctx, func() { _ = c.Close() }) // serveSubscriber reports the end
	err = p.serveSubscriber(c)
	if !interrupt() {
		return context.Cause(ctx)
	}
	return err
}

func (p *Publisher) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() {
			// Subscribers come and go; a publisher has no one to tell.
			_ = p.serveSubscriber(c)
		})
	}
}

// Subscribers counts the connections that have asked for a topic so far. What is
// published before a subscription has come is not sent to it.
func (p *Publisher) Subscribers() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		if len(s.prefixes) > 0 {
			n++
		}
	}
	return n
}

// Publish offers a message to every subscriber of its topic.
func (p *Publisher) Publish(topic string, seq uint64, payload []byte) error {
	wire, err := appendMessage(nil, Message{topic, seq, payload}.parts())
	if err != nil {
		return fmt.Errorf("publish %d: %w", seq, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("publish %d: %w", seq, net.ErrClosed)
	}
	for s := range p.subs {
		if !s.wants(topic) {
			continue
		}
		select {
		case s.queue <- wire:
		default:
			p.dropped.Add(1)
		}
	}
	return nil
}

// Close drops what is queued, disconnects the subscribers and ends every
// goroutine.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	var err error
	for s := range p.subs {
		err = errors.Join(err, ignoreClosed(s.c.Close()))
	}
	p.mu.Unlock()
	if p.l != nil {
		err = errors.Join(err, p.l.Close())
	}
	p.wg.Wait()
	return err
}

// A subscriber is one connected peer of a Publisher.
type subscriber struct {
	c        *Conn
	queue    chan []byte    // whole messages in wire form
	prefixes map[string]int // guarded by Publisher.mu; how often each is subscribed
}

func (s *subscriber) wants(topic string) bool {
	for prefix := range s.prefixes {
		if strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// serveSubscriber reads subscriptions until the connection ends, while another
// goroutine writes what is queued.
func (p *Publisher) serveSubscriber(c *Conn) error {
	s := &subscriber{c: c, queue: make(chan []byte, p.hwm), prefixes: make(map[string]int)}
	if err := p.admit(s); err != nil {
		return errors.Join(err, c.Close())
	}
	var writer sync.WaitGroup
	writer.Go(s.drain)
	err := p.readSubscriptions(s)
	p.mu.Lock()
	delete(p.subs, s)
	p.mu.Unlock()
	err = errors.Join(err, ignoreClosed(c.Close()))
	writer.Wait()
	return err
}

func (p *Publisher) admit(s *subscriber) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	if len(p.subs) == maxSubscribers {
		return fmt.Errorf("publisher has %d subscribers already", maxSubscribers)
	}
	p.subs[s] = struct{}{}
	return nil
}

func (p *Publisher) readSubscriptions(s *subscriber) error {
	for {
		parts, err := s.c.Recv()
		if err != nil {
			return err
		}
		if err := p.subscription(s, parts[0]); err != nil {
			return err
		}
	}
}

// subscription applies 1 prefix or 0 prefix; other messages of a subscriber
// mean nothing to a PUB socket.
func (p *Publisher) subscription(s *subscriber, msg []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(msg) == 0 || len(msg) > 1+maxPrefix:
		return nil
	case bytes.HasPrefix(msg, []byte{1}):
		s.prefixes[string(msg[1:])]++
		if len(s.prefixes) > maxSubscriptions {
			return fmt.Errorf("subscriber at %s has more than %d subscriptions", s.c.Endpoint(), maxSubscriptions)
		}
	case bytes.HasPrefix(msg, []byte{0}):
		prefix := string(msg[1:])
		if s.prefixes[prefix]--; s.prefixes[prefix] <= 0 {
			delete(s.prefixes, prefix)
		}
	}
	return nil
}

func (s *subscriber) drain() {
	for {
		select {
		case wire := <-s.queue:
			if s.c.write(wire) != nil {
				return // the reader sees the connection end
			}
		case <-s.c.stop:
			return
		}
	}
}
