package test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// command matches one of the commands that the demo prints, with the lines that
// a backslash continues it on.
var command = regexp.MustCompile(`(?m)(?:curl|go run) (?:.*\\\n)*.*$`)

// TestTheCommandsThatTheDemoPrintsWork runs them as a reader would.
func TestTheCommandsThatTheDemoPrintsWork(t *testing.T) {
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s, which is missing", tool)
		}
	}
	demo, _ := start(t, regexp.MustCompile(`go run \./cmd/sallyport audit query (\S+) --label restricted$`), "demo", "--dir", filepath.Join(box, "curl"))
	want := []string{`"id":"small"`, "data: [DONE]", "whole: ", "agent_tool_call", "held against each other", "HOLDS: no request of acme", "restricted"} // of each, in order
	printed := command.FindAllString(demo.output(), -1)
	if len(printed) != len(want) {
		t.Fatalf("the demo prints %d commands, want %d: %q", len(printed), len(want), printed)
	}
	for i, line := range printed {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// The binary is what `go run` would build.
		line = strings.ReplaceAll(line, "go run ./cmd/sallyport", binary(t))
		if out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput(); err != nil || !strings.Contains(string(out), want[i]) {
			t.Errorf("%s\n%v, and no %q in:\n%s", line, err, want[i], out)
		}
	}
	demo.stop(t)
}
