package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
	"github.com/sallyport-ai/sallyport/gateway"
	"github.com/sallyport-ai/sallyport/gateway/rate"
)

type limitsConfig struct {
	BodyBytes     strictyaml.Bytes `yaml:"body_bytes"`
	InflightBytes strictyaml.Bytes `yaml:"inflight_bytes"` // of all bodies together
	HeaderBytes   strictyaml.Bytes `yaml:"header_bytes"`
	JSONDepth     int              `yaml:"json_depth"`
	Connect       time.Duration    `yaml:"connect"`     // longest time to connect to a replica
	FirstToken    time.Duration    `yaml:"first_token"` // longest wait for an answer to begin
	Idle          time.Duration    `yaml:"idle"`        // longest pause inside an answer
	Total         time.Duration    `yaml:"total"`       // longest time for a whole request
	Count         time.Duration    `yaml:"count"`       // longest time for an engine to count a prompt
	Drain         time.Duration    `yaml:"drain"`       // how long running requests have to end after a stop was asked for

	RequestsPerSecond float64      `yaml:"requests_per_second"` // of one caller; 0: any number
	Burst             int          `yaml:"burst"`               // of those, at once; 0: what comes in two seconds
	Tenants           []tenantRate `yaml:"tenants"`             // whose callers have other limits
	Unauthenticated   rateConfig   `yaml:"unauthenticated"`     // from one source prefix, of requests that nobody turns out to have made
}

type rateConfig struct {
	RequestsPerSecond float64 `yaml:"requests_per_second"`
	Burst             int     `yaml:"burst"`
}

type tenantRate struct {
	Tenant            string  `yaml:"tenant"`
	RequestsPerSecond float64 `yaml:"requests_per_second"`
	Burst             int     `yaml:"burst"`
}

func (t tenantRate) limit() rate.Limit {
	return rate.Limit{PerSecond: t.RequestsPerSecond, Burst: t.Burst}
}

// rates are the limits of requests as a gateway takes them.
func (c *limitsConfig) rates() gateway.Rates {
	r := gateway.Rates{
		Caller:  rate.Limit{PerSecond: c.RequestsPerSecond, Burst: c.Burst},
		Source:  rate.Limit{PerSecond: c.Unauthenticated.RequestsPerSecond, Burst: c.Unauthenticated.Burst},
		Tenants: make(map[string]rate.Limit, len(c.Tenants)),
	}
	for _, t := range c.Tenants {
		r.Tenants[t.Tenant] = t.limit()
	}
	return r
}

// rates reports what is wrong with limits of requests.
func (k checker) rates(c *limitsConfig) {
	report := func(at string, l rate.Limit) {
		if err := l.Check(); err != nil {
			field, what, _ := strings.Cut(err.Error(), ": ")
			k.f.Problem(at+"."+field, "%s", what)
		}
	}
	r := c.rates()
	report("limits", r.Caller)
	report("limits.unauthenticated", r.Source)
	for i, t := range c.Tenants {
		at := fmt.Sprintf("limits.tenants[%d]", i)
		k.required(at+".tenant", t.Tenant)
		if slices.ContainsFunc(c.Tenants[:i], func(before tenantRate) bool { return before.Tenant == t.Tenant }) {
			k.f.Problem(at+".tenant", "%s stands twice", t.Tenant)
		}
		report(at, t.limit())
	}
}
