package kvindex

import (
	"runtime"
	"sync"
	"testing"
)

func TestTheLockKeepsWritersAlone(t *testing.T) {
	var l fairLock
	var all sync.WaitGroup
	a, b := 0, 0
	for range 4 {
		all.Go(func() {
			for range 3000 {
				l.Lock()
				a++
				b++
				l.Unlock()
			}
		})
		all.Go(func() {
			for range 3000 {
				l.RLock()
				if a != b {
					t.Errorf("read %d and %d", a, b)
				}
				l.RUnlock()
			}
		})
	}
	all.Wait()
	if a != 12_000 {
		t.Errorf("%d writes are left of 12000", a)
	}
}

func TestReadersAndWritersTakeTurns(t *testing.T) {
	var l fairLock
	l.RLock()
	wrote := make(chan struct{})
	go func() {
		l.Lock()
		close(wrote)
		l.Unlock()
	}()
	for l.in.Load()&writerHere == 0 { // until the writer waits
		runtime.Gosched()
	}
	read := make(chan struct{})
	go func() {
		l.RLock()
		select {
		case <-wrote:
		default:
			t.Error("a reader came in before the writer that was there first")
		}
		l.RUnlock()
		close(read)
	}()
	for l.in.Load() < 2*oneReader { // until the reader waits
		runtime.Gosched()
	}
	l.RUnlock()
	<-read
}
