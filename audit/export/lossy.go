package export

import "time"

// mark is a batch that a lossy sink was sent.
type mark struct {
	before place
	at     time.Time
	bytes  int
}

// What a lossy sink was sent is sent again after a failure, as far back as
// this. It bounds what a connection and a receiver can hold that is not safe
// yet.
const (
	replayBytes = 16 << 20
	replayTime  = 10 * time.Minute
)

// remember notes a batch that was sent.
func (f *follower) remember(b *batch) {
	if !f.kind.Lossy {
		return
	}
	size := 0
	for _, m := range b.Messages {
		size += len(m.Body)
	}
	f.trail = append(f.trail, mark{before: b.before, at: f.now(), bytes: size})
	f.forget(1)
}

// forget drops what was sent too long ago to be lost now, but for the last few
// batches.
func (f *follower) forget(keep int) {
	total, from := 0, len(f.trail)
	for from > 0 {
		m := f.trail[from-1]
		total += m.bytes
		if len(f.trail)-from >= keep && (total > replayBytes || f.now().Sub(m.at) > replayTime) {
			break
		}
		from--
	}
	f.trail = f.trail[from:]
	f.cursor.Replay = nil
	if len(f.trail) > 0 {
		f.cursor.Replay = &f.trail[0].before
	}
}

// rewind takes a lossy sink's cursor back to what may have been lost.
func (f *follower) rewind() {
	if !f.kind.Lossy {
		return
	}
	if len(f.trail) > 0 {
		f.forget(0)
	}
	f.replaying = max(f.replaying, f.cursor.Next)
	if f.cursor.Replay == nil {
		return
	}
	f.cursor.place, f.trail = *f.cursor.Replay, nil
	f.publish()
}
