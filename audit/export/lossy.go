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
	total := 0
	for i := len(f.trail) - 1; i >= 0; i-- {
		total += f.trail[i].bytes
		if i < len(f.trail)-1 && (total > replayBytes || f.now().Sub(f.trail[i].at) > replayTime) {
			f.trail = append(f.trail[:0], f.trail[i+1:]...)
			break
		}
	}
	f.cursor.Replay = &f.trail[0].before
}

// rewind takes a lossy sink's cursor back to what may have been lost.
func (f *follower) rewind() {
	if !f.kind.Lossy || f.cursor.Replay == nil {
		return
	}
	f.replaying = max(f.replaying, f.cursor.Next)
	f.cursor.place, f.trail = *f.cursor.Replay, nil
	f.publish()
}
