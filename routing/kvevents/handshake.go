package kvevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// SocketKind is the ZeroMQ socket type a connection speaks as. The zero value
// is no kind and is refused.
type SocketKind uint8

// The socket kinds that events and their replay need.
const (
	_ SocketKind = iota
	SUB
	PUB
	DEALER
	ROUTER
)

var kindNames = [...]string{SUB: "SUB", PUB: "PUB", DEALER: "DEALER", ROUTER: "ROUTER"}

// String gives the name ZMTP uses.
func (k SocketKind) String() string {
	if !k.valid() {
		return fmt.Sprintf("SocketKind(%d)", uint8(k))
	}
	return kindNames[k]
}

func (k SocketKind) valid() bool { return k > 0 && int(k) < len(kindNames) }

// talksTo reports whether ZMTP lets k talk to a peer of the named type.
func (k SocketKind) talksTo(peer string) bool {
	switch k {
	case SUB:
		return peer == "PUB" || peer == "XPUB"
	case PUB:
		return peer == "SUB" || peer == "XSUB"
	case DEALER:
		return peer == "ROUTER" || peer == "DEALER" || peer == "REP"
	case ROUTER:
		return peer == "DEALER" || peer == "ROUTER" || peer == "REQ"
	default:
		return false
	}
}

// The greeting is 64 bytes:
//
//	signature(10)=FF 00*8 7F  major(1) minor(1)  mechanism(20)  as-server(1)  filler(31)
const greetingSize = 64

func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], "NULL")
	return g
}

// parseGreeting returns the minor version of a peer that speaks ZMTP 3.
func parseGreeting(g []byte) (minor byte, err error) {
	if g[0] != 0xff || g[9]&1 == 0 {
		return 0, errors.New("zmtp: peer does not speak ZMTP")
	}
	if g[10] < 3 {
		return 0, fmt.Errorf("zmtp: peer speaks version %d, want 3", g[10])
	}
	if m := string(bytes.TrimRight(g[12:32], "\x00")); m != "NULL" {
		return 0, fmt.Errorf("zmtp: peer wants mechanism %q, want NULL", m)
	}
	if g[10] > 3 {
		return 1, nil // a later version must still accept ours
	}
	return g[11], nil
}

// A peer is what the other side said of itself.
type peer struct {
	minor byte   // of ZMTP 3
	kind  string // its Socket-Type
}

// handshake exchanges greetings and READY commands. The caller bounds its time.
func handshake(r *bufio.Reader, w io.Writer, kind SocketKind) (peer, error) {
	if _, err := w.Write(greeting()); err != nil {
		return peer{}, err
	}
	var g [greetingSize]byte
	if _, err := io.ReadFull(r, g[:]); err != nil {
		return peer{}, unexpected(err)
	}
	minor, err := parseGreeting(g[:])
	if err != nil {
		return peer{}, err
	}
	ready := appendProperty(nil, "Socket-Type", kind.String())
	if kind == DEALER || kind == ROUTER {
		ready = appendProperty(ready, "Identity", "")
	}
	if _, err := w.Write(appendCommand(nil, "READY", ready)); err != nil {
		return peer{}, err
	}
	p, err := readReady(r)
	if err != nil {
		return peer{}, err
	}
	if !kind.talksTo(p.kind) {
		return peer{}, fmt.Errorf("zmtp: %s cannot talk to peer of type %q", kind, p.kind)
	}
	p.minor = minor
	return p, nil
}

func readReady(r *bufio.Reader) (peer, error) {
	f, err := readFrame(r, maxCommand)
	if err != nil {
		return peer{}, unexpected(err)
	}
	if !f.command() {
		return peer{}, errors.New("zmtp: message before READY")
	}
	name, data, err := parseCommand(f.body)
	if err != nil {
		return peer{}, err
	}
	switch name {
	case "READY":
		return parseReady(data)
	case "ERROR":
		if len(data) > 0 {
			data = data[1:min(len(data), 1+int(data[0]))]
		}
		return peer{}, fmt.Errorf("zmtp: peer refused: %q", data)
	default:
		return peer{}, fmt.Errorf("zmtp: command %q before READY", name)
	}
}

// Metadata is a list of properties: name-size(1) name value-size(4, big-endian) value.
func appendProperty(dst []byte, name, value string) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

func parseReady(b []byte) (peer, error) {
	var p peer
	for len(b) > 0 {
		n := 1 + int(b[0])
		if len(b) < n+4 {
			return peer{}, errors.New("zmtp: truncated property in READY")
		}
		name := string(b[1:n])
		size := binary.BigEndian.Uint32(b[n:])
		b = b[n+4:]
		if uint64(size) > uint64(len(b)) {
			return peer{}, errors.New("zmtp: truncated property in READY")
		}
		value := string(b[:size])
		b = b[size:]
		if strings.EqualFold(name, "Socket-Type") {
			p.kind = value
		}
	}
	return p, nil
}
