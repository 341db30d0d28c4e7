package gateway

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// Why no other replica was tried, as the outcome's detail says it.
const (
	attemptsSpent = "attempts_spent"
	budgetSpent   = "retry_budget_spent"
)

// again says whether another replica may be tried after err, which came before
// any byte of an answer. A refusal of the content is not one of these: another
// replica would be asked to overrule the first. Nor is an answer that does not
// come: the replica may be at work on it.
func (x *exchange) again(err error) bool {
	var busy *busyError
	switch id := x.reservation.Replica.ID; {
	case errors.Is(err, upstream.ErrIdentity):
		x.g.cfg.Fleet.ReportFailure(id, true)
		x.exclude[id], x.reason = routing.SVIDMismatch, string(routing.SVIDMismatch)
	case errors.Is(err, upstream.ErrConnect), errors.Is(err, upstream.ErrUnreachable):
		x.g.cfg.Fleet.ReportFailure(id, false)
		x.exclude[id], x.reason = routing.HolderDown, string(routing.HolderDown)
	case errors.As(err, &busy):
		x.g.cfg.Fleet.ReportBusy(id, busy.limited, busy.wait)
		x.exclude[id], x.reason = routing.NoHeadroom, faultOf(err).Reason
	case errors.Is(err, errEngineFailed):
		x.exclude[id], x.reason = routing.Unhealthy, faultOf(err).Reason
	default:
		return false
	}
	switch {
	case x.attempt >= x.g.cfg.MaxAttempts:
		x.detail = attemptsSpent
	case !x.g.retries.take(time.Now()):
		x.detail = budgetSpent
	default:
		return true
	}
	return false
}

// nobody is the error of a request that no replica can take, with how long to
// wait before it is worth asking again.
func (x *exchange) nobody(r fleet.Request, err error) error {
	wait, limited := x.g.cfg.Fleet.Wait(r)
	x.wait = wait
	if limited {
		return fmt.Errorf("%w: %w", errLimited, err)
	}
	return err
}

// blames says whether err is the replica's fault, and not the caller's, the
// request's or ours.
func blames(err error) bool {
	for _, e := range []error{errEngineFailed, errAnswer, upstream.ErrTimeout, upstream.ErrConnect, upstream.ErrUnreachable} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// busyError is an engine that has no room, as its answer said.
type busyError struct {
	limited bool          // too many requests, not too much load
	wait    time.Duration // that it asked for; 0: it did not
}

// Error names the status.
func (e *busyError) Error() string {
	if e.limited {
		return "engine has too many requests"
	}
	return "engine has no room"
}

// Is makes it errEngineBusy.
func (e *busyError) Is(target error) bool { return target == errEngineBusy }

// retryAfter reads the header of that name: seconds or a date. 0: there is none
// that can be understood.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// seconds is d as a Retry-After value: whole seconds, at least one.
func seconds(d time.Duration) string {
	return strconv.Itoa(max(int(math.Ceil(d.Seconds())), 1))
}

const (
	retryShare  = 0.2  // of requests, that may be tried again
	retryPerSec = 10.0 // that may be tried again however few requests there are
	retryBurst  = 100.0
)

// budget bounds the attempts that are not first ones: when all replicas fail,
// retries must not multiply the load. The zero value is full.
type budget struct {
	mu    sync.Mutex
	spent float64   // of the burst
	at    time.Time // when it was last looked at
}

// earn counts a first attempt.
func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-retryShare, 0)
}

// take asks for one more attempt.
func (b *budget) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-retryPerSec*max(now.Sub(b.at), 0).Seconds(), 0)
	b.at = now
	if b.spent+1 > retryBurst {
		return false
	}
	b.spent++
	return true
}
