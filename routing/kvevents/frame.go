package kvevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Limits on what a peer may send.
const (
	MaxFrame   = 16 << 20 // bytes in one message, all its parts together
	MaxParts   = 16       // parts of one message
	maxCommand = 64 << 10 // bytes in one command
)

// Frame flags (ZMTP 3.1, "Framing").
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
)

var (
	errFrameFlags = errors.New("zmtp: frame with reserved or contradictory flags")
	errFrameSize  = errors.New("zmtp: frame is larger than the limit")
	errPartCount  = errors.New("zmtp: message has more parts than the limit")
)

// A frame is one unit of ZMTP traffic:
//
//	flags(1) size(1 or 8, big-endian) body(size)
type frame struct {
	flags byte
	body  []byte
}

func (f frame) more() bool    { return f.flags&flagMore != 0 }
func (f frame) command() bool { return f.flags&flagCommand != 0 }

// readFrame reads one frame with a body of at most limit bytes, or maxCommand
// if it is a command. The body is fresh memory.
func readFrame(r *bufio.Reader, limit int) (frame, error) {
	flags, err := r.ReadByte()
	if err != nil {
		return frame{}, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&(flagMore|flagCommand) == flagMore|flagCommand {
		return frame{}, errFrameFlags
	}
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	size, err := readSize(r, flags&flagLong != 0)
	if err != nil {
		return frame{}, unexpected(err)
	}
	if size > uint64(limit) {
		return frame{}, fmt.Errorf("%w: %d > %d", errFrameSize, size, limit)
	}
	body, err := readBody(r, int(size))
	if err != nil {
		return frame{}, unexpected(err)
	}
	return frame{flags, body}, nil
}

func readSize(r *bufio.Reader, long bool) (uint64, error) {
	if !long {
		n, err := r.ReadByte()
		return uint64(n), err
	}
	var b [8]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b[:]), nil
}

// readBody reads n bytes. A length costs its sender nothing, so memory is at
// most twice what has already arrived, and 64 KiB to begin with.
func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, min(n, 64<<10))
	for have := 0; ; {
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			return nil, err
		}
		if have = len(body); have == n {
			return body, nil
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, body)
		body = grown
	}
}

// unexpected is for an end of input inside a frame.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// appendMessage appends a whole message in wire form, or fails if a peer such
// as we are would refuse it.
func appendMessage(dst []byte, parts [][]byte) ([]byte, error) {
	if len(parts) == 0 || len(parts) > MaxParts {
		return dst, fmt.Errorf("%w: %d parts", errPartCount, len(parts))
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size > MaxFrame {
		return dst, fmt.Errorf("%w: %d > %d", errFrameSize, size, MaxFrame)
	}
	for i, p := range parts {
		var flags byte
		if i < len(parts)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, p)
	}
	return dst, nil
}

// A command frame's body is name-size(1) name data.
func appendCommand(dst []byte, name string, data []byte) []byte {
	body := append([]byte{byte(len(name))}, name...)
	return appendFrame(dst, flagCommand, append(body, data...))
}

func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) || body[0] == 0 {
		return "", nil, errors.New("zmtp: command without a name")
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}
