package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/policy"
)

// policyArchive is where a log keeps the policies that its records name.
func policyArchive(logDir string) string { return filepath.Join(logDir, "policy") }

// settling is how long a policy stays in the archive though no record names it:
// the record of its activation, or of a decision by the one before it, may be to
// come.
const settling = time.Hour

// archivist takes policies out of the archive of a log that prunes itself.
type archivist struct {
	pruned chan struct{} // holds one if the log was pruned since it last looked
}

func newArchivist() *archivist { return &archivist{pruned: make(chan struct{}, 1)} }

// wake says that the log was pruned. It does not block.
func (a *archivist) wake() {
	select {
	case a.pruned <- struct{}{}:
	default: // it has been told already
	}
}

// run looks after each pruning, until ctx ends. What is active, or was when it
// looked before, stays.
func (a *archivist) run(ctx context.Context, logDir string, engine *policy.Engine, logger *slog.Logger) {
	before := engine.Activation()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.pruned:
		}
		now := engine.Activation()
		keep := map[string]bool{now.Digest: true, now.ShadowDigest: true, before.Digest: true, before.ShadowDigest: true}
		if err := prunePolicies(logDir, keep, settling); err != nil {
			logger.Error("policies that no record names any more are still there", "error", err)
		}
		before = now
	}
}

// prunePolicies removes the archived policies that no record names, but for
// those to keep and those that came into use within the time given.
func prunePolicies(logDir string, keep map[string]bool, young time.Duration) error {
	archive := policyArchive(logDir)
	entries, err := os.ReadDir(archive)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune policies: %w", err)
	}
	unnamed := make(map[string]string) // paths, by digest
	for _, e := range entries {
		digest, ok := strings.CutSuffix(e.Name(), ".tar.gz")
		if path := filepath.Join(archive, e.Name()); ok && !keep[digest] && isOlder(path, young) {
			unnamed[digest] = path
		}
	}
	if err := strikeNamed(logDir, unnamed); err != nil {
		return fmt.Errorf("prune policies: %w", err)
	}
	for _, path := range unnamed {
		if !isOlder(path, young) {
			continue // it has come into use meanwhile
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("prune policies: %w", err)
		}
	}
	return nil
}

// isOlder says whether a policy came into use longer ago.
func isOlder(path string, than time.Duration) bool {
	info, err := os.Stat(path)
	return err == nil && time.Since(info.ModTime()) >= than
}

// strikeNamed takes out what records name. It reads no further than it has to.
func strikeNamed(logDir string, unnamed map[string]string) error {
	if len(unnamed) == 0 {
		return nil
	}
	for e, err := range tlog.Read(logDir, 0) {
		if err != nil {
			return err
		}
		var r struct {
			Policy struct {
				Digest string `json:"digest"`
			} `json:"policy"`
			Event struct {
				ShadowDigest string `json:"shadow_digest"`
			} `json:"event"`
		}
		if err := jsonv2.Unmarshal(e.Leaf, &r); err != nil {
			return fmt.Errorf("record %d: %w", e.Index, err)
		}
		delete(unnamed, r.Policy.Digest)
		if delete(unnamed, r.Event.ShadowDigest); len(unnamed) == 0 {
			return nil
		}
	}
	return nil
}
