package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestToolsAreBoundedSoThatRecordsAre(t *testing.T) {
	body := func(n int) []byte {
		tools := make([]string, n)
		for i := range tools {
			tools[i] = fmt.Sprintf(`{"type":"function","function":{"name":"f%d"}}`, i)
		}
		return []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[` + strings.Join(tools, ",") + `]}`)
	}
	if _, err := Decode(ChatCompletions, body(128), Limits{}); err != nil {
		t.Errorf("128 tools: %v", err)
	}
	var refusal *Error
	if _, err := Decode(ChatCompletions, body(129), Limits{}); !errors.As(err, &refusal) || refusal.Code != InvalidRequest || refusal.Param != "tools" {
		t.Errorf("129 tools: %v", err)
	}
}
