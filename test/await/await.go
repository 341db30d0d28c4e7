// Package await waits, in tests, for what is to become so. Start at [That].
package await

import (
	"testing"
	"time"
)

// Limit is how long anything is waited for. It is no measure of how soon things
// should happen: only a test that fails takes so long, on a machine however busy.
const Limit = time.Minute

// That fails the test if ok does not become true.
func That(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	if !Within(Limit, ok) {
		tb.Fatalf("waited in vain for %s", what)
	}
}

// Within reports whether ok becomes true before d has passed.
func Within(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
