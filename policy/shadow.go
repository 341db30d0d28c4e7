package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// shadowTimeout is short: the caller waits for it.
const shadowTimeout = 5 * time.Millisecond

// maxShadowDiff bounds the difference in bytes.
const maxShadowDiff = 512

// shadowDiff asks the shadow policy the same question and says how its answer
// differs. It cannot change anything, nor fail.
func (s *Snapshot) shadowDiff(ctx context.Context, q question, active Decision, activeErr error) string {
	if s.shadow == nil {
		return ""
	}
	d, _, err := s.shadow.answer(ctx, q, min(shadowTimeout, s.timeout))
	var diffs []string
	if (err == nil) != (activeErr == nil) {
		diffs = append(diffs, fmt.Sprintf("error: %v → %v", activeErr, err))
	}
	diffs = append(diffs, Diff(active, d)...)
	diff := strings.Join(diffs, "; ")
	if len(diff) > maxShadowDiff {
		diff = strings.ToValidUTF8(diff[:maxShadowDiff], "") + "…"
	}
	return diff
}

// Diff lists the fields in which b differs from a, each as "field: a → b". Of
// two denials it compares the reasons alone.
func Diff(a, b Decision) []string {
	var diffs []string
	differ := func(field string, x, y any) {
		if from, to := fmt.Sprint(x), fmt.Sprint(y); from != to {
			diffs = append(diffs, field+": "+from+" → "+to)
		}
	}
	differ("allow", a.Allow, b.Allow)
	if !a.Allow && !b.Allow {
		if !slices.Equal(a.Reasons, b.Reasons) {
			differ("reasons", a.Reasons, b.Reasons)
		}
		return diffs
	}
	differ("pools", a.Pools, b.Pools)
	differ("strategy", a.Strategy, b.Strategy)
	differ("prefer", a.Prefer, b.Prefer)
	differ("cache_domain", a.CacheDomain, b.CacheDomain)
	differ("inspect", a.Inspect, b.Inspect)
	differ("tools_allow", listOrNone(a.ToolsAllow), listOrNone(b.ToolsAllow))
	differ("max_output_tokens", limitOrNone(a.Limits.MaxOutputTokens), limitOrNone(b.Limits.MaxOutputTokens))
	differ("durability", a.Durability, b.Durability)
	differ("expose_cached_tokens", a.ExposeCachedTokens, b.ExposeCachedTokens)
	differ("reauthorize_s", a.ReauthorizeS, b.ReauthorizeS)
	return diffs
}

func listOrNone(list []string) any {
	if list == nil {
		return "any"
	}
	return list
}

func limitOrNone(n *int64) any {
	if n == nil {
		return "none"
	}
	return *n
}
