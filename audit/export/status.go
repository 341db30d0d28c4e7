package export

import "time"

// Status is how a sink is doing. The counts are of this process.
type Status struct {
	Sink   string
	Kind   string // of sink
	Format string

	Next     uint64        // index of the first record that it has not taken
	Lag      uint64        // records that it has not taken, or does not want
	LagBytes uint64        // of them, estimated from the size of those that were read
	LagTime  time.Duration // age of the first record that it has not taken

	Sent      uint64 // records taken
	SentBytes uint64 // as they were written, anchors and repetitions too
	Replayed  uint64 // records sent again because they may have been lost
	Errors    uint64 // deliveries that failed
	Dead      uint64 // records refused for good
	Lost      uint64 // records pruned before the sink had them

	Failing   bool // the last delivery failed
	LastError string
}

func (f *follower) status() Status {
	head := f.cfg.Head()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.st
	if head > s.Next {
		s.Lag = head - s.Next
	}
	if f.n > 0 {
		s.LagBytes = s.Lag * (f.all / f.n)
	}
	if !f.due.IsZero() {
		s.LagTime = max(f.now().Sub(f.due), 0)
	}
	return s
}

func (f *follower) count(change func(s *Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.st)
}

// publish shows where the cursor is.
func (f *follower) publish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.st.Next = f.cursor.Next
}

// reading notes what has been read and is not taken yet.
func (f *follower) reading(b *batch, i item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.all = f.n+1, f.all+uint64(i.bytes)
	if f.due.IsZero() && b.records > 0 {
		f.due = b.first
	}
}

// delivered notes that nothing that was read is left to be taken.
func (f *follower) delivered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due = time.Time{}
}

// Status returns the state of every sink, in the order of the configuration.
func (x *Exporter) Status() []Status {
	all := make([]Status, len(x.followers))
	for i, f := range x.followers {
		all[i] = f.status()
	}
	return all
}
