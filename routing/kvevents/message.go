package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A Message is one batch as published: its topic, its number in the
// publisher's sequence, and the encoded batch for [Decoder.Decode].
type Message struct {
	Topic   string
	Seq     uint64
	Payload []byte
}

const seqSize = 8

// ParseMessage reads the three parts of a published message. The payload is
// not copied.
func ParseMessage(parts [][]byte) (Message, error) {
	if len(parts) != 3 {
		return Message{}, fmt.Errorf("event message of %d parts, want topic, sequence and payload", len(parts))
	}
	if len(parts[1]) != seqSize {
		return Message{}, fmt.Errorf("event sequence number of %d bytes, want %d", len(parts[1]), seqSize)
	}
	if len(parts[2]) == 0 {
		return Message{}, errors.New("event message without payload")
	}
	return Message{string(parts[0]), binary.BigEndian.Uint64(parts[1]), parts[2]}, nil
}

func (m Message) parts() [][]byte {
	return [][]byte{[]byte(m.Topic), binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload}
}
