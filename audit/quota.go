package audit

import (
	"sync"
	"time"
)

// Quotas bound how many bytes each tenant may put into the log, so that none can
// fill it for the others. A tenant has a bucket that holds an hour's worth and
// fills as time passes; what is owed, such as an outcome, may overdraw it. The
// nil value bounds nothing.
type Quotas struct {
	perHour int64
	now     func() time.Time

	mu      sync.Mutex
	tenants map[string]*bucket
}

type bucket struct {
	left int64 // bytes, negative if overdrawn
	at   time.Time
}

// maxTenants bounds the table. Who finds no room in it shares a bucket.
const maxTenants = 1 << 14

// NewQuotas returns quotas of so many bytes per hour and tenant, or nil if that
// is not positive.
func NewQuotas(perHour int64) *Quotas {
	if perHour <= 0 {
		return nil
	}
	return &Quotas{perHour: perHour, now: time.Now, tenants: make(map[string]*bucket)}
}

// Admit says whether a tenant may have another decision recorded, and if not,
// how long it has to wait.
func (q *Quotas) Admit(tenant string) (wait time.Duration, ok bool) {
	if q == nil {
		return 0, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.bucket(tenant)
	if b.left > 0 {
		return 0, true
	}
	return time.Duration(float64(1-b.left) / float64(q.perHour) * float64(time.Hour)), false
}

// Spend takes what a record of a tenant took.
func (q *Quotas) Spend(tenant string, bytes int) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.bucket(tenant)
	b.left = max(b.left-int64(bytes), -q.perHour)
}

// bucket returns a tenant's bucket as it is by now.
func (q *Quotas) bucket(tenant string) *bucket {
	b := q.tenants[tenant]
	if b == nil && len(q.tenants) >= maxTenants {
		tenant = "" // no tenant's name
		b = q.tenants[tenant]
	}
	now := q.now()
	if b == nil {
		b = &bucket{left: q.perHour, at: now}
		q.tenants[tenant] = b
	}
	if passed := now.Sub(b.at); passed > 0 {
		b.left = min(b.left+int64(passed.Seconds()*float64(q.perHour)/3600), q.perHour)
		b.at = now
	}
	return b
}
