package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// SyslogConfig is a receiver of RFC 5424 messages over TLS, with octet counting
// as RFC 5425 has it. The protocol has no acknowledgements: what was written
// when a connection breaks may be lost, so it is sent again.
type SyslogConfig struct {
	Address string    `yaml:"address"`
	TLS     TLSConfig `yaml:"tls"`
}

var syslogKind = Kind{
	Name: "syslog", Lossy: true, Batch: 256 << 10, Wait: 100 * time.Millisecond, Limit: syslogLimit,
	has:   func(c *Config) bool { return c.Syslog != nil },
	paths: func(c *Config) []*string { return c.Syslog.TLS.paths() },
	check: func(c *Config, p *problems) {
		p.address("address", c.Syslog.Address)
		c.Syslog.TLS.check(p)
	},
	open: func(_ context.Context, c *Config, o Options) (Sink, error) {
		return &syslog{config: *c.Syslog, origin: o.Origin}, nil
	},
}

// syslogLimit leaves room for the header in the 8 KiB that receivers take if
// they are not told otherwise; what is longer they cut without a word.
const syslogLimit = 7600

// syslog writes to one connection.
type syslog struct {
	config SyslogConfig
	origin string

	conn *tls.Conn // nil: to be opened
	out  *bufio.Writer
	over *ending // of conn
}

// ending is when and why a connection ended, as its reader saw it.
type ending struct {
	done chan struct{} // closed when it has
	err  error         // set before
}

func (s *syslog) Send(ctx context.Context, b *Batch) (int, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	deadline, _ := ctx.Deadline()
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return 0, s.broken(err)
	}
	var frame, count []byte
	for i := range b.Messages {
		frame = appendRFC5424(frame[:0], s.origin, &b.Messages[i])
		count = append(strconv.AppendInt(count[:0], int64(len(frame)), 10), ' ')
		_, err1 := s.out.Write(count)
		_, err2 := s.out.Write(frame)
		if err := errors.Join(err1, err2); err != nil {
			return 0, s.broken(err)
		}
	}
	if err := s.out.Flush(); err != nil {
		return 0, s.broken(err)
	}
	return len(b.Messages), nil
}

// ready opens a connection if there is none, or if the one there was has ended
// meanwhile: then what was written to it last may be lost.
func (s *syslog) ready(ctx context.Context) error {
	if s.conn != nil {
		select {
		case <-s.over.done:
			return s.broken(s.over.err)
		default:
			return nil
		}
	}
	conn, err := s.config.TLS.dial(ctx, s.config.Address)
	if err != nil {
		return err
	}
	s.conn, s.out, s.over = conn, bufio.NewWriterSize(conn, 32<<10), &ending{done: make(chan struct{})}
	go s.over.watch(conn)
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-s.over.done:
		return s.broken(s.over.err)
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return s.broken(ctx.Err())
	}
}

// watch reads what a syslog receiver has to say, which is nothing but that it
// has gone.
func (e *ending) watch(conn *tls.Conn) {
	defer close(e.done)
	if _, e.err = io.Copy(io.Discard, conn); e.err == nil {
		e.err = errors.New("the receiver closed the connection")
	}
}

// Broken is closed when the connection has ended.
func (s *syslog) Broken() <-chan struct{} {
	if s.conn == nil {
		return nil
	}
	return s.over.done
}

// broken gives the connection up.
func (s *syslog) broken(err error) error {
	return errors.Join(fmt.Errorf("syslog: %w", err), s.Close())
}

func (s *syslog) Close() error {
	if s.conn == nil {
		return nil
	}
	conn := s.conn
	s.conn = nil
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = conn.Close() // it may be broken already, and nothing can be done about it
	<-s.over.done
	return nil
}
