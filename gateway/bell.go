package gateway

import "sync"

// bell wakes all who wait for it. The zero value is ready.
type bell struct {
	mu   sync.Mutex
	next chan struct{} // closed by the next ring; nil: nobody waits
}

// rung is closed when the bell is rung next.
func (b *bell) rung() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}
