package gateway

import (
	"net/http"
	"sync/atomic"
)

// inflight counts the bytes of the bodies that are held at this moment. Each
// request is bounded by itself; this bounds all of them together, since what a
// caller may send once it may send a thousand times.
type inflight struct{ bytes atomic.Int64 }

// take reports whether n more bytes fit under most, and counts them if so.
func (f *inflight) take(n, most int64) bool {
	if f.bytes.Add(n) > most {
		f.bytes.Add(-n)
		return false
	}
	return true
}

func (f *inflight) give(n int64) { f.bytes.Add(-n) }

// bodySize is how large the body of r may turn out: what it says of itself, or
// limit where it does not, or is compressed.
func bodySize(r *http.Request, compressed bool, limit int64) int64 {
	if r.ContentLength < 0 || compressed {
		return limit
	}
	return min(r.ContentLength, limit)
}
