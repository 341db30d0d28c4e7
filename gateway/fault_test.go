package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/wire"
)

// contract is what callers may build on: each code has one status and one type.
var contract = map[string]struct {
	status int
	typ    string
}{
	"no_credential":          {401, typeAuthentication},
	"bad_credential":         {401, typeAuthentication},
	"use_dpop_nonce":         {401, typeAuthentication},
	"not_found":              {404, typeInvalid},
	"method_not_allowed":     {405, typeInvalid},
	"malformed_json":         {400, typeInvalid},
	"unsupported_field":      {400, typeInvalid},
	"invalid_request":        {400, typeInvalid},
	"too_large":              {413, typeInvalid},
	"unsupported_media_type": {415, typeInvalid},
	"unsupported_encoding":   {415, typeInvalid},
	"policy_denied":          {403, typePermission},
	"unclassified":           {403, typePermission},
	"rate_limited":           {429, typeRateLimit},
	"no_replica":             {503, typeServer},
	"replica_identity":       {502, typeServer},
	"upstream_error":         {502, typeServer},
	"upstream_timeout":       {504, typeServer},
	"audit_unavailable":      {503, typeServer},
	"not_ready":              {503, typeServer},
	"client_gone":            {499, typeInvalid},
	"internal":               {500, typeServer},
}

// inner is text that no caller may read.
const inner = "dial 10.1.2.3:9101: /etc/sallyport/key.pem: goroutine 7"

// buried is err as it arrives: wrapped, beside another, with inner text.
func buried(err error) error {
	return fmt.Errorf("replica r0: %w", errors.Join(errors.New(inner), fmt.Errorf("%w: %s", err, inner)))
}

func TestEveryRowOfTheFaultTable(t *testing.T) {
	for i, row := range faults {
		t.Run(fmt.Sprintf("%s/%s", row.fault.Reason, row.err), func(t *testing.T) {
			f := faultOf(buried(row.err))
			if f.Reason != row.fault.Reason || f.Code != row.fault.Code {
				t.Fatalf("row %d is hidden by one above it: got %s/%s", i, f.Code, f.Reason)
			}
			if !errors.Is(f, row.err) {
				t.Error("the cause is lost to the record")
			}
			checkFault(t, f)
		})
	}
}

func TestEveryRefusalOfTheDecoderHasAFault(t *testing.T) {
	for code := range wireStatus {
		t.Run(string(code), func(t *testing.T) {
			f := faultOf(buried(&wire.Error{Code: code, Param: "messages[0].role", Message: "This field has no such value."}))
			if f.Code != string(code) || f.Param != "messages[0].role" || f.Message != "This field has no such value." {
				t.Errorf("the decoder's own words are lost: %+v", f)
			}
			checkFault(t, f)
		})
	}
}

// checkFault holds f against the contract, as the caller sees it.
func checkFault(t *testing.T, f *Fault) {
	t.Helper()
	want, ok := contract[f.Code]
	if !ok {
		t.Fatalf("code %q is not in the contract", f.Code)
	}
	if f.Status != want.status || f.Type != want.typ {
		t.Errorf("%s: status %d type %s, want %d %s", f.Code, f.Status, f.Type, want.status, want.typ)
	}
	if f.Reason == "" {
		t.Error("the record has no reason")
	}
	if !strings.HasSuffix(f.Message, ".") || strings.Contains(f.Message, "%") {
		t.Errorf("message %q is no sentence", f.Message)
	}
	w := httptest.NewRecorder()
	wire.WriteError(w, wire.OpenAI, f.Status, f.Type, f.Code, f.Message, f.Param)
	body := w.Body.String()
	for _, word := range []string{"10.1.2.3", "/etc", "goroutine", "r0", f.Err.Error(), "Rego", "OPA", "SPIFFE", "SVID", "vLLM", "relay", "pool"} {
		if strings.Contains(body, word) {
			t.Errorf("the caller reads %q in %s", word, body)
		}
	}
	var got struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != f.Status || got.Error.Code != f.Code || got.Error.Type != f.Type {
		t.Errorf("on the wire: %d %s (%v)", w.Code, body, err)
	}
	if (got.Error.Param != nil) != (f.Param != "") {
		t.Errorf("param: %s", body)
	}
}

func TestWhatIsNotInTheTableIsInternalAndSilent(t *testing.T) {
	for _, err := range []error{errors.New(inner), &wire.Error{Code: "made_up", Message: inner}, fmt.Errorf("x: %w", http.ErrBodyNotAllowed)} {
		f := faultOf(err)
		if f.Code != "internal" || f.Message != "Internal error." {
			t.Errorf("%v became %+v", err, f)
		}
		if !errors.Is(f, err) {
			t.Error("the cause is lost to the log")
		}
		checkFault(t, f)
	}
}

// A refusal for policy's own reason, or for its failure, looks the same to the
// caller: only the record tells them apart.
func TestPolicyRefusalsLookAlike(t *testing.T) {
	reasons := map[string]bool{}
	bodies := map[string]bool{}
	for _, row := range faults {
		if row.fault.Code != "policy_denied" || row.err == errWithdrawn { // which ends a stream that was permitted
			continue
		}
		reasons[row.fault.Reason] = true
		bodies[fmt.Sprint(row.fault.Status, row.fault.Type, row.fault.Message, row.fault.Param)] = true
	}
	if len(bodies) != 1 || len(reasons) < 5 {
		t.Fatalf("%d bodies for %d reasons", len(bodies), len(reasons))
	}
}
