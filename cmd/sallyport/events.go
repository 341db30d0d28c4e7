package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

func eventsCommand() *cobra.Command {
	cmd := commandGroup("events", "Look at the KV-cache events of an engine")
	cmd.AddCommand(eventsTailCommand(), eventsDecodeCommand())
	return cmd
}

func eventsDecodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "decode",
		Short: "Decode event batches, one in hex per line of standard input",
		Long: "Decode prints a JSON object for each line: what the batch says, and how many of its events\n" +
			"were left out and why; or {\"error\":...}. Token ids and salts are never printed.\n" +
			"It exits 1 if a line could not be decoded.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bad, err := decodeLines(cmd.InOrStdin(), cmd.OutOrStdout())
			switch {
			case err != nil:
				return err
			case bad:
				return &exitError{code: exitBad}
			}
			return nil
		},
	}
}

// batchJSON is a batch as it is printed:
//
//	{"ts":…,"rank":…,"events":[…],"skipped":{reason:n}}
type batchJSON struct {
	TS      float64        `json:"ts"`
	Rank    *int           `json:"rank"`
	Events  []eventJSON    `json:"events"`
	Skipped map[string]int `json:"skipped"`
}

// eventJSON is an event as it is printed. What its type does not have is null,
// 0 or empty.
type eventJSON struct {
	Type      string   `json:"type"`   // stored, removed or cleared
	Hashes    []string `json:"hashes"` // an integer in decimal, a digest in hex
	Parent    *string  `json:"parent"` // null at the beginning of a prompt
	Tokens    int      `json:"tokens"` // how many
	BlockSize int      `json:"block_size"`
	Medium    *string  `json:"medium"`
	Adapter   *string  `json:"adapter"`
	Salted    bool     `json:"salted"` // the event tells a salt
	Group     *int     `json:"group"`
}

var eventNames = map[kvevents.EventType]string{
	kvevents.Stored: "stored", kvevents.Removed: "removed", kvevents.Cleared: "cleared",
}

var errTime = errors.New("decode event batch: its time is not a number")

// describe leaves out everything that a prompt could be read from.
func describe(b *kvevents.Batch) (batchJSON, error) {
	if math.IsNaN(b.TS) || math.IsInf(b.TS, 0) {
		return batchJSON{}, errTime
	}
	out := batchJSON{TS: b.TS, Rank: unlessNone(b.Rank), Events: make([]eventJSON, len(b.Events)), Skipped: make(map[string]int)}
	for i := range b.Events {
		out.Events[i] = describeEvent(&b.Events[i])
	}
	for _, s := range b.Skipped {
		out.Skipped[s.Reason.String()] += s.N
	}
	return out, nil
}

func describeEvent(ev *kvevents.Event) eventJSON {
	e := eventJSON{
		Type: eventNames[ev.Type], Hashes: make([]string, len(ev.Hashes)),
		Tokens: len(ev.Tokens), BlockSize: ev.BlockSize,
		Medium: unlessEmpty(ev.Medium), Adapter: unlessEmpty(ev.Adapter),
		Salted: ev.Salt != "", Group: unlessNone(ev.Group),
	}
	for i, h := range ev.Hashes {
		e.Hashes[i] = h.String()
	}
	if !ev.Parent.IsZero() {
		e.Parent = unlessEmpty(ev.Parent.String())
	}
	return e
}

func unlessNone(n int) *int {
	if n == kvevents.None {
		return nil
	}
	return &n
}

func unlessEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// decodeLines answers each line of in with one line. bad is set if one of them
// was an error.
func decodeLines(in io.Reader, w io.Writer) (bad bool, err error) {
	out := bufio.NewWriter(w)
	lines := bufio.NewReaderSize(in, 64<<10)
	var d kvevents.Decoder
	for {
		line, err := readLine(lines, 2*kvevents.MaxFrame)
		if errors.Is(err, io.EOF) {
			return bad, out.Flush()
		}
		var answer any
		if err == nil || errors.Is(err, errLongLine) {
			answer, err = decodeLine(&d, line, err)
		}
		if err != nil {
			return bad, fmt.Errorf("read payloads: %w", err)
		}
		if _, isError := answer.(decodeError); isError {
			bad = true
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return bad, fmt.Errorf("print batch: %w", err)
		}
		if lines.Buffered() == 0 { // whoever asks line by line is waiting
			if err := out.Flush(); err != nil {
				return bad, fmt.Errorf("print batch: %w", err)
			}
		}
	}
}

// decodeError is the answer to a line that holds no batch.
type decodeError struct {
	Error string `json:"error"`
}

func decodeLine(d *kvevents.Decoder, line []byte, long error) (any, error) {
	if long != nil {
		return decodeError{long.Error()}, nil
	}
	payload := make([]byte, hex.DecodedLen(len(line)))
	if _, err := hex.Decode(payload, line); err != nil {
		return decodeError{"line is not hex"}, nil
	}
	b, err := d.Decode(payload)
	if err != nil {
		return decodeError{err.Error()}, nil
	}
	answer, err := describe(b)
	if err != nil {
		return decodeError{err.Error()}, nil
	}
	return answer, nil
}

var errLongLine = errors.New("line is longer than the largest frame")

// readLine reads a line, without its end, of at most limit bytes; a longer one
// is read to its end and is errLongLine.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > limit+2; !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (!errors.Is(err, io.EOF) || len(line) == 0 && !long):
			return nil, err
		case long:
			return nil, errLongLine
		}
		for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n-- {
			line = line[:n-1]
		}
		return line, nil
	}
}
