// Command logcheck verifies the segments of an audit log with nothing of
// Sallyport's own code: it is written from the comment of package audit/tlog
// alone, and its tests hold `sallyport audit verify` against it.
//
//	go run ./test/oracle/logcheck DIR VERIFIER-KEY-FILE
//
// It exits with 0 if every frame, root and signature is right, 1 if not, and 2 if
// it cannot tell: it knows one key, and neither pruned nor poisoned segments.
package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: logcheck DIR VERIFIER-KEY-FILE")
		os.Exit(2)
	}
	key, err := os.ReadFile(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	size, root, err := check(os.Args[1], strings.TrimSpace(string(key)))
	switch {
	case errors.Is(err, errUnknown):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case err != nil:
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("%d records, root %x\n", size, root)
}

// errUnknown says that this program does not know how to judge a log.
var errUnknown = errors.New("cannot tell")

// The kinds of frame, and how long what all begin with is.
const (
	record, trailer, header, seal = 1, 2, 3, 4

	head = 4 + 4 + 8 + sha256.Size
)

// frame is one frame of a segment, as it stands there.
type frame struct {
	at   int // in the segment
	kind byte
	raw  []byte
}

func (f frame) sequence() uint64 { return binary.LittleEndian.Uint64(f.raw[8:]) }
func (f frame) chain() []byte    { return f.raw[16:head] }
func (f frame) payload() []byte  { return f.raw[head:] }

func (f frame) sum() uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(f.raw[:4], t), t, f.raw[8:])
}

// follows is the chain that the frame has if it stands after another.
func (f frame) follows(before []byte) []byte {
	b := bytes.Clone(f.raw)
	copy(b[4:8], make([]byte, 4))
	copy(b[16:head], before)
	if f.kind == record {
		b = append(b[:head], rfc6962.DefaultHasher.HashLeaf(f.payload())...)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// frames takes a segment apart, up to the zeros at its end.
func frames(segment []byte) (out []frame, err error) {
	for at := 0; at < len(segment); {
		rest := segment[at:]
		if len(bytes.Trim(rest, "\x00")) == 0 {
			break
		}
		if len(rest) < head {
			return out, fmt.Errorf("byte %d: no frame", at)
		}
		word := binary.LittleEndian.Uint32(rest)
		n := head + int(word&0xffffff)
		if len(rest) < n {
			return out, fmt.Errorf("byte %d: a frame that is cut short", at)
		}
		out = append(out, frame{at, byte(word >> 24), rest[:n]})
		at += n
	}
	return out, nil
}

// verifier is a key as logs are pinned by: NAME+HASH+base64(1 ‖ public key).
func verifier(text string) (origin string, public ed25519.PublicKey, err error) {
	parts := strings.SplitN(text, "+", 3)
	if len(parts) != 3 {
		return "", nil, fmt.Errorf("%w: no verifier key", errUnknown)
	}
	raw, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil || len(raw) != 1+ed25519.PublicKeySize || raw[0] != 1 {
		return "", nil, fmt.Errorf("%w: no Ed25519 key", errUnknown)
	}
	return parts[0], raw[1:], nil
}

// log is what has been read of one.
type log struct {
	key, origin string
	public      ed25519.PublicKey
	chain       []byte
	tree        *compact.Range
}

func (l *log) root() []byte {
	root, err := l.tree.GetRootHash(nil)
	if err != nil || l.tree.End() == 0 {
		return rfc6962.DefaultHasher.EmptyRoot()
	}
	return root
}

// check reads all segments in order.
func check(dir, vkey string) (size uint64, root []byte, err error) {
	l := &log{key: vkey, tree: (&compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}).NewEmptyRange(0)}
	if l.origin, l.public, err = verifier(vkey); err != nil {
		return 0, nil, err
	}
	first := sha256.Sum256([]byte("sallyport-tlog-v1\x00" + l.origin))
	l.chain = first[:]
	names, err := filepath.Glob(filepath.Join(dir, "wal", "[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"))
	if err != nil || len(names) == 0 {
		return 0, nil, fmt.Errorf("%w: no segments: %v", errUnknown, err)
	}
	sort.Strings(names)
	for number, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, nil, fmt.Errorf("%w: %w", errUnknown, err)
		}
		if filepath.Base(name) != fmt.Sprintf("%08d", number) {
			return 0, nil, fmt.Errorf("%w: segment %d is not there", errUnknown, number)
		}
		if err := l.segment(number, text); err != nil {
			return 0, nil, fmt.Errorf("segment %d: %w", number, err)
		}
	}
	return l.tree.End(), l.root(), nil
}

func (l *log) segment(number int, text []byte) error {
	all, err := frames(text)
	if err != nil {
		return err
	}
	var h struct {
		V        int    `json:"v"`
		Origin   string `json:"origin"`
		Key      string `json:"key"`
		Segment  int    `json:"segment"`
		Size     uint64 `json:"size"`
		Prev     string `json:"prev"`
		Poisoned bool   `json:"poisoned"`
	}
	if len(all) == 0 || all[0].kind != header {
		return errors.New("no header")
	}
	if err := json.Unmarshal(all[0].payload(), &h); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	switch {
	case h.V != 2 || h.Poisoned || h.Key != l.key && h.Origin == l.origin:
		return fmt.Errorf("%w: a segment of format %d, poisoned %t, under %s", errUnknown, h.V, h.Poisoned, h.Key)
	case h.Origin != l.origin || h.Segment != number || h.Size != l.tree.End() || h.Prev != hex.EncodeToString(l.chain):
		return errors.New("the header says what is not so")
	}
	before := byte(header)
	for i, f := range all {
		if err := l.take(f, before, i == 0); err != nil {
			return fmt.Errorf("byte %d: %w", f.at, err)
		}
		before = f.kind
	}
	if before != trailer {
		return errors.New("it ends inside a batch")
	}
	return nil
}

// after are the kinds that may stand before one.
var after = map[byte][]byte{record: {header, record, trailer}, seal: {record}, trailer: {record, seal}}

func (l *log) take(f frame, before byte, first bool) error {
	chain := f.follows(l.chain)
	switch {
	case binary.LittleEndian.Uint32(f.raw[4:]) != f.sum():
		return errors.New("the CRC is another")
	case f.sequence() != l.tree.End():
		return fmt.Errorf("sequence %d, where %d is due", f.sequence(), l.tree.End())
	case !bytes.Equal(f.chain(), chain):
		return errors.New("it does not follow what is before it")
	case first != (f.kind == header), !first && bytes.IndexByte(after[f.kind], before) < 0:
		return fmt.Errorf("a frame of kind %d after one of kind %d", f.kind, before)
	}
	switch f.kind {
	case record:
		if err := l.tree.Append(rfc6962.DefaultHasher.HashLeaf(f.payload()), nil); err != nil {
			return fmt.Errorf("%w: %w", errUnknown, err)
		}
	case trailer:
		if err := l.signed(f.payload()); err != nil {
			return err
		}
	}
	l.chain = chain
	return nil
}

// signed checks a trailer: tree size, root, time and signature.
func (l *log) signed(p []byte) error {
	const body = 8 + sha256.Size + 8
	if len(p) != body+ed25519.SignatureSize {
		return errors.New("a trailer of another length")
	}
	message := append([]byte("sallyport-batch-v1\x00"+l.origin+"\x00"), l.chain...)
	switch {
	case binary.LittleEndian.Uint64(p) != l.tree.End():
		return errors.New("the trailer counts other records")
	case !bytes.Equal(p[8:8+sha256.Size], l.root()):
		return errors.New("the trailer's root is another")
	case !ed25519.Verify(l.public, append(message, p[:body]...), p[body:]):
		return errors.New("the trailer is not signed")
	}
	return nil
}
