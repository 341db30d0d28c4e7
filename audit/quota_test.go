package audit

import (
	"fmt"
	"testing"
	"time"
)

func TestATenantThatSpentItsHourWaitsAndNobodyElseDoes(t *testing.T) {
	now := time.Now()
	q := NewQuotas(3600)
	q.now = func() time.Time { return now }
	q.Spend("acme", 3500)
	if _, ok := q.Admit("acme"); !ok {
		t.Error("refused with bytes left")
	}
	q.Spend("acme", 200) // an outcome is owed
	wait, ok := q.Admit("acme")
	if ok || wait < 100*time.Second || wait > 102*time.Second {
		t.Errorf("overdrawn by 100 bytes at one a second: wait %v, %v", wait, ok)
	}
	if _, ok := q.Admit("globex"); !ok {
		t.Error("another tenant pays for it")
	}
	now = now.Add(wait + time.Second)
	if _, ok := q.Admit("acme"); !ok {
		t.Error("refused after the wait")
	}
	now = now.Add(100 * time.Hour)
	q.Spend("acme", 3601)
	if _, ok := q.Admit("acme"); ok {
		t.Error("more than an hour's worth was saved up")
	}
}

func TestTenantsWithoutRoomShareOneBucket(t *testing.T) {
	q := NewQuotas(10)
	for i := range maxTenants + 50 {
		q.Spend(fmt.Sprint("t", i), 1)
	}
	if n := len(q.tenants); n > maxTenants+1 {
		t.Errorf("%d buckets", n)
	}
	if _, ok := q.Admit("t-new"); ok {
		t.Error("the shared bucket is not empty after fifty tenants")
	}
}

func TestNoQuotaAdmitsAll(t *testing.T) {
	q := NewQuotas(0)
	q.Spend("acme", 1<<30)
	if _, ok := q.Admit("acme"); !ok {
		t.Error("refused")
	}
}
