package wire

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestProtocolsAreDocumented holds the table of routes in docs/protocols.md
// against the one that is served.
func TestProtocolsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocols.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range Operations() {
		engine := "the same"
		switch op.Engine {
		case op.Path:
		case "":
			engine = "none"
		default:
			engine = "`" + op.Engine + "`"
		}
		row := fmt.Sprintf("| `%s %s` | `%s` | %s | `%s` |", op.Method, op.Path, op.Name, engine, op.Class)
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/protocols.md lacks %s", row)
		}
	}
	for kind := range blockFields {
		if !strings.Contains(string(doc), kind) {
			t.Errorf("docs/protocols.md does not say what becomes of a %s block", kind)
		}
	}
	for finish, reason := range stopReasons {
		if finish != "function_call" && (!strings.Contains(string(doc), "`"+finish+"`") || !strings.Contains(string(doc), "`"+reason+"`")) {
			t.Errorf("docs/protocols.md does not say that %s becomes %s", finish, reason)
		}
	}
}
