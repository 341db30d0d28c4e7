package oidc

import (
	"context"
	"errors"
)

// The bounds of what is remembered, for tests.
const (
	MaxCached      = maxCached
	MaxCachedBytes = maxCachedBytes
)

// Forget forgets all good tokens.
func (v *Verifier) Forget() {
	for i := range v.good.shards {
		s := &v.good.shards[i]
		s.mu.Lock()
		s.fresh, s.old, s.bytes = nil, nil, 0
		s.mu.Unlock()
	}
}

// Held is how many good tokens are remembered, and about how many bytes.
func (v *Verifier) Held() (tokens, bytes int) { return v.good.held() }

// Refresh fetches the keys of every issuer now.
func (v *Verifier) Refresh(t interface{ Context() context.Context }) error {
	var errs []error
	for _, i := range v.issuers {
		errs = append(errs, i.keys.refresh(t.Context()))
	}
	return errors.Join(errs...)
}
