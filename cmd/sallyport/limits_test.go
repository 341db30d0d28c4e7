package main

import (
	"testing"
	"time"
)

func TestLimitsOfRequestsChangeWithoutARestart(t *testing.T) {
	for _, c := range []struct {
		claim  string
		limits limitsConfig
		ok     bool
	}{
		{"of each caller", limitsConfig{RequestsPerSecond: 5, Burst: 10}, true},
		{"of a tenant's callers", limitsConfig{Tenants: []tenantRate{{"acme", 1, 2}}}, true},
		{"of those who are nobody", limitsConfig{Unauthenticated: rateConfig{1, 2}}, true},
		{"another limit", limitsConfig{Total: time.Minute}, false},
	} {
		if err := (gatewayConfig{}).mayBecome(gatewayConfig{Limits: c.limits}); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
	l := limitsConfig{RequestsPerSecond: 5, Burst: 10, Tenants: []tenantRate{{"acme", 1, 2}}, Unauthenticated: rateConfig{3, 4}}
	r := l.rates()
	if acme := r.Tenants["acme"]; r.Caller.PerSecond != 5 || r.Caller.Burst != 10 || acme.PerSecond != 1 || acme.Burst != 2 || r.Source.PerSecond != 3 || r.Source.Burst != 4 {
		t.Errorf("%+v became %+v", l, r)
	}
}
