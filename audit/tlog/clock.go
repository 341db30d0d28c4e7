package tlog

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// clockSlack is how far the times of a log and of a witness may be apart before
// it is said that one of them is wrong. A checkpoint can be some seconds older
// than its cosignature.
const clockSlack = time.Minute

// Cosigned is when a witness says that it cosigned. Nothing is decided by it: what
// a witness is asked for is that it remembers, and it does so by tree size.
type Cosigned struct {
	Witness string `json:"witness"`
	Unix    int64  `json:"unix"` // seconds; a clock may say anything
	// Off is by how many seconds that is before the last record was written that
	// the checkpoint covers (negative), or after the next one, or after now: then
	// a clock is wrong, the witness's or the log's. 0 within a minute.
	Off int64 `json:"off_s,omitempty"`
}

// cosignedAt is the time in a cosignature that has been verified, as it stands in
// its line: the first thing after the key's hash, whatever the algorithm.
func cosignedAt(line string) int64 {
	const hash, seconds = 4, 8
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
	if err != nil || len(raw) < hash+seconds {
		return 0 // it would not have been verified
	}
	return int64(min(binary.BigEndian.Uint64(raw[hash:]), math.MaxInt64))
}

// ahead is by how much a clock that shows a time in seconds is ahead of ours.
func ahead(unix int64, now time.Time) time.Duration {
	d := float64(unix) - float64(now.UnixNano())/1e9
	return time.Duration(min(max(d, -math.MaxInt32), math.MaxInt32) * float64(time.Second))
}

// cosignTimes holds the times of a checkpoint's cosignatures against those that
// the log's own batches bear.
type cosignTimes struct {
	size uint64 // of the checkpoint
	by   []Cosigned

	from, until int64 // when the last batch in it and the next one were written, µs since the Unix epoch
}

// of takes the cosignatures of a checkpoint by these witnesses.
func (c *cosignTimes) of(text []byte, size uint64, ws []*witness) {
	c.size = size
	for _, w := range ws {
		if n, err := note.Open(text, note.VerifierList(w.key)); err == nil {
			c.by = append(c.by, Cosigned{Witness: w.key.name, Unix: cosignedAt(n.Sigs[0].Base64)})
		}
	}
}

// see takes the time of a batch that ends with a tree of that size.
func (c *cosignTimes) see(size uint64, wall int64) {
	if size <= c.size {
		c.from = wall
	} else if c.until == 0 {
		c.until = wall
	}
}

// judge says which of them cannot be.
func (c *cosignTimes) judge(now time.Time) []Cosigned {
	until := now
	if c.until != 0 {
		until = time.UnixMicro(c.until)
	}
	for i := range c.by {
		at := &c.by[i]
		if d := ahead(at.Unix, time.UnixMicro(c.from)); c.from != 0 && d < -clockSlack {
			at.Off = int64(d / time.Second)
		} else if d := ahead(at.Unix, until); d > clockSlack {
			at.Off = int64(d / time.Second)
		}
	}
	return c.by
}

// String says what is wrong, or nothing.
func (c Cosigned) String() string {
	off := time.Duration(c.Off) * time.Second
	switch {
	case off < 0:
		return "witness " + c.Witness + " says that it cosigned " + (-off).String() + " before what it cosigned was written: its clock or the log's is wrong"
	case off > 0:
		return "witness " + c.Witness + " says that it cosigned at " + strconv.FormatInt(c.Unix, 10) + ", " + off.String() + " too late: its clock or the log's is wrong"
	}
	return ""
}
