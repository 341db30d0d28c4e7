package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// RELPConfig is a receiver of syslog messages over RELP, the Reliable Event
// Logging Protocol, over TLS: each message is acknowledged.
type RELPConfig struct {
	Address string    `yaml:"address"`
	TLS     TLSConfig `yaml:"tls"`
	Window  int       `yaml:"window"` // messages on their way; 0: 128
}

var relpKind = Kind{
	Name: "relp", Batch: 2 << 20, Wait: 100 * time.Millisecond, Limit: syslogLimit,
	has:   func(c *Config) bool { return c.RELP != nil },
	paths: func(c *Config) []*string { return c.RELP.TLS.paths() },
	check: func(c *Config, p *problems) {
		p.address("address", c.RELP.Address)
		c.RELP.TLS.check(p)
		if c.RELP.Window < 0 || c.RELP.Window > 10_000 {
			p.add("window", "want at most 10000, got %d", c.RELP.Window)
		}
	},
	open: func(_ context.Context, c *Config, o Options) (Sink, error) {
		r := &relp{config: *c.RELP, origin: o.Origin}
		if r.config.Window == 0 {
			r.config.Window = 128
		}
		return r, nil
	},
}

// relp is a client of RELP. A frame is
//
//	TXNR SP COMMAND SP LENGTH [SP DATA] LF
//
// and each that we send is answered by one of the same number:
//
//	TXNR SP rsp SP LENGTH SP CODE [SP TEXT] [LF MORE] LF
type relp struct {
	config RELPConfig
	origin string
	conn   *relpConn // nil: to be opened
}

// Send keeps up to a window of messages on their way, and returns when all have
// been answered, or how many of the first ones were when something failed.
func (r *relp) Send(ctx context.Context, b *Batch) (int, error) {
	if r.conn == nil {
		conn, err := openRELP(ctx, &r.config)
		if err != nil {
			return 0, fmt.Errorf("relp: %w", err)
		}
		r.conn = conn
	}
	taken, err := r.conn.send(ctx, r.origin, b.Messages, r.config.Window)
	if err != nil {
		r.conn.abandon()
		r.conn = nil
		var refused *Refused
		if !errors.As(err, &refused) {
			err = fmt.Errorf("relp: %w", err)
		}
	}
	return taken, err
}

func (r *relp) Close() error {
	if r.conn == nil {
		return nil
	}
	r.conn.close()
	r.conn = nil
	return nil
}

// relpConn is one session.
type relpConn struct {
	conn    *tls.Conn
	out     *bufio.Writer
	head    []byte // of the frame that is written
	next    int    // transaction number
	answers chan relpAnswer
	over    chan struct{} // closed when the reader has ended
	stop    chan struct{} // ends the reader
}

// relpAnswer is an answer, or why there are no more.
type relpAnswer struct {
	txnr int
	code int
	text string
	err  error
}

const (
	lastTxnr   = 999_999_999 // then it begins at 1 again
	maxRELP    = 128 << 10   // of an answer; a receiver has nothing longer to say
	maxAnswers = 128         // that have come and were not looked at
	relpOffers = "relp_version=0\nrelp_software=sallyport\ncommands=syslog"
)

// openRELP connects and agrees on what the session can do.
func openRELP(ctx context.Context, config *RELPConfig) (*relpConn, error) {
	conn, err := config.TLS.dial(ctx, config.Address)
	if err != nil {
		return nil, err
	}
	c := &relpConn{
		conn: conn, out: bufio.NewWriterSize(conn, 32<<10), next: 1,
		answers: make(chan relpAnswer, maxAnswers), over: make(chan struct{}), stop: make(chan struct{}),
	}
	go c.read()
	txnr, err := c.command("open", []byte(relpOffers))
	if err == nil {
		err = c.opened(ctx, txnr)
	}
	if err != nil {
		c.abandon()
		return nil, fmt.Errorf("open session: %w", err)
	}
	return c, nil
}

func (c *relpConn) opened(ctx context.Context, txnr int) error {
	a, err := c.answer(ctx)
	switch {
	case err != nil:
		return err
	case a.txnr != txnr || a.code != 200:
		return fmt.Errorf("refused: %d %s", a.code, a.text)
	case !strings.Contains(a.text, "syslog"):
		return errors.New("the receiver takes no syslog messages")
	}
	return nil
}

// command writes a frame and returns its number.
func (c *relpConn) command(name string, data []byte) (int, error) {
	txnr := c.next
	if c.next++; c.next > lastTxnr {
		c.next = 1
	}
	head := append(strconv.AppendInt(c.head[:0], int64(txnr), 10), ' ')
	head = append(append(head, name...), ' ')
	head = strconv.AppendInt(head, int64(len(data)), 10)
	if len(data) > 0 {
		head = append(head, ' ')
	}
	c.head = head
	_, err1 := c.out.Write(head)
	_, err2 := c.out.Write(data)
	return txnr, errors.Join(err1, err2, c.out.WriteByte('\n'))
}

func (c *relpConn) send(ctx context.Context, origin string, messages []Message, window int) (taken int, err error) {
	deadline, _ := ctx.Deadline()
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return 0, err
	}
	at := make(map[int]int, window) // message by its transaction number
	answered := make([]bool, len(messages))
	var frame []byte
	var refused *Refused
	for sent := 0; taken < len(messages); {
		for refused == nil && sent < len(messages) && sent-taken < window {
			frame = appendRFC5424(frame[:0], origin, &messages[sent])
			txnr, err := c.command("syslog", frame)
			if err != nil {
				return taken, err
			}
			at[txnr], sent = sent, sent+1
		}
		a, err := c.answer(ctx)
		if err != nil {
			return taken, err
		}
		i, ok := at[a.txnr]
		if !ok {
			return taken, fmt.Errorf("an answer to transaction %d, which is not open", a.txnr)
		}
		delete(at, a.txnr)
		answered[i] = a.code == 200
		if !answered[i] && (refused == nil || i < refused.At) {
			refused = &Refused{At: i, Reason: fmt.Sprintf("%d %s", a.code, a.text)}
		}
		for taken < len(messages) && answered[taken] {
			taken++
		}
		if refused != nil && taken == refused.At {
			return taken, refused
		}
	}
	return taken, nil
}

// answer waits for the next one. While there are some, what was written is not
// sent on its way: then each message would cost a system call and a TLS record.
func (c *relpConn) answer(ctx context.Context) (relpAnswer, error) {
	select {
	case a := <-c.answers:
		return a, a.err
	default:
	}
	if err := c.out.Flush(); err != nil {
		return relpAnswer{}, err
	}
	acknowledgeSoon(c.conn.NetConn())
	select {
	case a := <-c.answers:
		return a, a.err
	case <-ctx.Done():
		return relpAnswer{}, ctx.Err()
	}
}

// read passes answers on until the session ends.
func (c *relpConn) read() {
	defer close(c.over)
	in := bufio.NewReaderSize(c.conn, 32<<10)
	for {
		a, err := readRELP(in)
		if err != nil {
			a = relpAnswer{err: err}
		}
		select {
		case c.answers <- a:
		case <-c.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// readRELP reads one frame.
func readRELP(in *bufio.Reader) (a relpAnswer, err error) {
	var command string
	var length int
	if a.txnr, err = readNumber(in); err != nil {
		return a, err
	}
	if command, err = readWord(in, " "); err != nil {
		return a, err
	}
	word, err := readWord(in, " \n")
	if err != nil {
		return a, err
	}
	if length, err = strconv.Atoi(word); err != nil || length < 0 || length > maxRELP {
		return a, fmt.Errorf("a frame of %q bytes", word)
	}
	var data []byte
	if length > 0 {
		data = make([]byte, length+1) // with the line end
		if _, err := io.ReadFull(in, data); err != nil {
			return a, err
		}
		if data[length] != '\n' {
			return a, errors.New("a frame without an end")
		}
		data = data[:length]
	}
	switch command {
	case "serverclose":
		return a, errors.New("the receiver closes the session")
	case "rsp":
		code, text, _ := strings.Cut(string(data), " ")
		if a.code, err = strconv.Atoi(strings.TrimSpace(code)); err != nil {
			return a, fmt.Errorf("an answer of %.40q", data)
		}
		a.text = text
		return a, nil
	default:
		return a, fmt.Errorf("a command, %.20q, where only answers can be", command)
	}
}

// readWord reads up to one of the bytes that end it.
func readWord(in *bufio.Reader, ends string) (string, error) {
	var word []byte
	for {
		b, err := in.ReadByte()
		if err != nil {
			return "", err
		}
		if strings.IndexByte(ends, b) >= 0 {
			return string(word), nil
		}
		if word = append(word, b); len(word) > 32 {
			return "", fmt.Errorf("not a frame: %q", word)
		}
	}
}

func readNumber(in *bufio.Reader) (int, error) {
	word, err := readWord(in, " ")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(word)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("a transaction %q", word)
	}
	return n, nil
}

// close ends the session in order, so that the receiver does not complain.
func (c *relpConn) close() {
	_ = c.conn.SetDeadline(time.Now().Add(time.Second)) // a connection that takes none is broken
	if _, err := c.command("close", nil); err == nil && c.out.Flush() == nil {
		<-c.answers // or that there is none; everything else has been answered before
	}
	c.abandon()
}

// abandon drops the connection and waits for its reader.
func (c *relpConn) abandon() {
	close(c.stop)
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = c.conn.Close() // it may be broken already, and nothing can be done about it
	<-c.over
}
