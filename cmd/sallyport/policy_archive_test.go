package main

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/test/await"
)

// TestALogThatPrunesItselfDropsPoliciesToo prunes a log while it serves: what no
// record names any more goes, but for what is active or has just come into use.
func TestALogThatPrunesItselfDropsPoliciesToo(t *testing.T) {
	cfg := tlog.Config{Dir: t.TempDir(), Key: tlogtest.Key(t, tlogtest.Origin), Boot: audit.Gateway{SPIFFE: "spiffe://" + tlogtest.Origin}, SegmentBytes: 256 << 10}
	log, err := tlog.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	digest := func(i int) string { return fmt.Sprintf("%064x", i) }
	for i := range 60 {
		if _, err := log.Append(t.Context(), &audit.Record{
			Kind: audit.KindDecision, ID: audit.NewID(), Status: audit.StatusDenied, Detail: strings.Repeat("x", 30<<10),
			Policy: &audit.Policy{Revision: "7", Digest: digest(i / 30)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}

	data, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	bundle := t.TempDir()
	if err := policy.Write(bundle, []fs.FS{policies.FS, data}); err != nil {
		t.Fatal(err)
	}
	engine, err := policy.Load(t.Context(), policy.Config{Bundle: bundle, Archive: policyArchive(cfg.Dir)})
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * settling)
	path := func(digest string) string { return filepath.Join(policyArchive(cfg.Dir), digest+".tar.gz") }
	const named, unnamed, used = 1, 0, 2
	for _, i := range []int{named, unnamed, used} {
		if err := os.WriteFile(path(digest(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	active := engine.Activation().Digest
	for _, d := range []string{digest(named), digest(unnamed), active} {
		if err := os.Chtimes(path(d), long, long); err != nil {
			t.Fatal(err)
		}
	}

	a := newArchivist()
	cfg.Retention, cfg.Pruned = time.Nanosecond, a.wake
	tlogtest.Open(t, cfg)
	go a.run(t.Context(), cfg.Dir, engine, slog.New(slog.DiscardHandler))
	there := func(digest string) bool {
		_, err := os.Stat(path(digest))
		return err == nil
	}
	await.That(t, "the policy of records that are gone to go", func() bool { return !there(digest(unnamed)) })
	for what, d := range map[string]string{"a record names": digest(named), "has just come into use": digest(used), "is active": active} {
		if !there(d) {
			t.Errorf("the policy that %s is gone", what)
		}
	}

	// One that comes into use again counts as new.
	if _, err := policy.Load(t.Context(), policy.Config{Bundle: bundle, Archive: policyArchive(cfg.Dir)}); err != nil {
		t.Fatal(err)
	}
	if err := prunePolicies(cfg.Dir, nil, settling); err != nil || !there(active) {
		t.Errorf("the policy that came into use again is gone: %v", err)
	}
}
