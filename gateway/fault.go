package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing"
)

// Fault is a refusal as its three audiences see it: the HTTP status, the error
// type and code that an SDK switches on, and the reason in the audit record.
// Message is for the caller and says no more than the caller may know; Err is
// for the record and the operator.
type Fault struct {
	Status  int
	Type    string
	Code    string
	Message string
	Param   string // the field to blame, where there is one
	Reason  string
	Err     error
}

// Error returns the reason and its cause, for logs.
func (f *Fault) Error() string {
	if f.Err == nil {
		return f.Reason
	}
	return f.Reason + ": " + f.Err.Error()
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// The error types that OpenAI's SDKs know.
const (
	typeAuthentication = "authentication_error"
	typePermission     = "permission_error"
	typeInvalid        = "invalid_request_error"
	typeRateLimit      = "rate_limit_error"
	typeServer         = "server_error"
)

// Errors of the pipeline itself.
var (
	errNotFound         = errors.New("no such route")
	errMethodNotAllowed = errors.New("no such method on this route")
	errTooLarge         = errors.New("body too large")
	errUnclassified     = errors.New("request could not be classified")
	errDenied           = errors.New("policy denied")
	errUnreadable       = errors.New("body cannot be read")
	errInflight         = errors.New("too many bytes in flight")
	errTooLong          = errors.New("prompt longer than the model's window")
	errNotRegistered    = errors.New("caller has no registration")
	errTool             = errors.New("tool not allowed")
	errInspection       = errors.New("policy asks for an inspection that does not exist here")
	errHeader           = errors.New("header not understood")
	errClientGone       = errors.New("client gone")
	errExpired          = errors.New("credential expired during the request")
	errWithdrawn        = errors.New("permission withdrawn during the request")
	errEngineRefused    = errors.New("engine refused the request")
	errEngineBusy       = errors.New("engine has no room")
	errEngineFailed     = errors.New("engine failed")
	errAnswer           = errors.New("engine's answer is not well formed")
	errNotReady         = errors.New("not ready")
	errPanic            = errors.New("panic")
	errLimited          = errors.New("every replica has too many requests")
	errOverdue          = errors.New("request took longer than it may")
	errStopping         = errors.New("gateway is stopping")
	errPolicyMoved      = errors.New("policy kept changing while the request was placed")
)

// faults is the one table from error to fault. The first row whose error is in
// the chain decides, so a more specific error stands before a more general one.
// What is not here is internal, and its text reaches nobody outside.
var faults = []struct {
	err   error
	fault Fault
}{
	{errNotFound, Fault{Status: http.StatusNotFound, Type: typeInvalid, Code: "not_found", Message: "No such route.", Reason: "not_found"}},
	{errMethodNotAllowed, Fault{Status: http.StatusMethodNotAllowed, Type: typeInvalid, Code: "method_not_allowed", Message: "This route does not take that method.", Reason: "method_not_allowed"}},

	{identity.ErrNoCredential, Fault{Status: http.StatusUnauthorized, Type: typeAuthentication, Code: "no_credential", Message: "No credential was given.", Reason: "no_credential"}},
	{identity.ErrAmbiguous, Fault{Status: http.StatusUnauthorized, Type: typeAuthentication, Code: "bad_credential", Message: "The credentials given cannot be used together.", Reason: "ambiguous_credential"}},
	{identity.ErrUnavailable, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "not_ready", Message: "The credential cannot be checked now.", Reason: "credential_uncheckable"}},
	{identity.ErrBadCredential, Fault{Status: http.StatusUnauthorized, Type: typeAuthentication, Code: "bad_credential", Message: "The credential was not accepted.", Reason: "bad_credential"}},
	{errNotRegistered, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "not_registered"}},
	{errExpired, Fault{Status: http.StatusUnauthorized, Type: typeAuthentication, Code: "bad_credential", Message: "The credential has expired.", Reason: "credential_expired"}},

	{errTooLarge, Fault{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "too_large", Message: "The request body is too large.", Reason: "too_large"}},
	{errUnreadable, Fault{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Message: "The request body could not be read to its end.", Reason: "unreadable_body"}},
	{errTooLong, Fault{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Message: "The prompt is longer than the model's context window.", Param: "messages", Reason: reasonTooLong}},
	{errHeader, Fault{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Message: "A Sallyport header has a value that is not understood.", Reason: "bad_header"}},
	{errConversation, Fault{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Message: "The conversation is not known; begin a new one.", Reason: "bad_conversation"}},
	{errUnclassified, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "unclassified", Message: "The request holds something that could not be classified.", Reason: "unclassified"}},

	{policy.ErrUndefined, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "policy_undefined"}},
	{policy.ErrTimeout, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "policy_timeout"}},
	{policy.ErrMalformed, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "policy_malformed"}},
	{policy.ErrEvaluation, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "policy_error"}},
	{errDenied, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "policy_denied"}},
	{errTool, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "tool_not_allowed"}},
	{errInspection, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is not permitted.", Reason: "inspection_unavailable"}},
	{errWithdrawn, Fault{Status: http.StatusForbidden, Type: typePermission, Code: "policy_denied", Message: "This request is no longer permitted.", Reason: "reauthorize_denied"}},

	{errClientGone, Fault{Status: 499, Type: typeInvalid, Code: "client_gone", Message: "The client closed the request.", Reason: "client_gone"}},
	{errOverdue, Fault{Status: http.StatusGatewayTimeout, Type: typeServer, Code: "upstream_timeout", Message: "The request took too long.", Reason: "total_timeout"}},
	{errStopping, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "not_ready", Message: "The gateway is stopping.", Reason: "stopping"}},
	{audit.ErrTooLarge, Fault{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Message: "The request has more to be recorded than the log has room for.", Reason: "record_too_large"}},
	{audit.ErrUnavailable, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "audit_unavailable", Message: "The request could not be recorded, so it was not forwarded.", Reason: "audit_unavailable"}},
	{errNotReady, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "not_ready", Message: "The gateway is not ready.", Reason: "not_ready"}},
	{errInflight, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "not_ready", Message: "The gateway has too much in hand.", Reason: "inflight_bytes"}},
	{errPolicyMoved, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "not_ready", Message: "The gateway is being reconfigured.", Reason: "policy_moved"}},
	{errLimited, Fault{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: "rate_limited", Message: "The model servers have too many requests.", Reason: "rate_limited"}},
	{errEngineBusy, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "no_replica", Message: "No model server can take the request now.", Reason: "engine_busy"}},
	{routing.ErrNoReplica, Fault{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "no_replica", Message: "No model server can take the request now.", Reason: "no_replica"}},

	{errEngineRefused, Fault{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Message: "The model server did not accept the request's parameters.", Reason: "engine_refused"}},
	{upstream.ErrIdentity, Fault{Status: http.StatusBadGateway, Type: typeServer, Code: "replica_identity", Message: "A model server could not be authenticated.", Reason: "replica_identity"}},
	{upstream.ErrTimeout, Fault{Status: http.StatusGatewayTimeout, Type: typeServer, Code: "upstream_timeout", Message: "The model server did not answer in time.", Reason: "upstream_timeout"}},
	{upstream.ErrConnect, Fault{Status: http.StatusBadGateway, Type: typeServer, Code: "upstream_error", Message: "The model server failed.", Reason: "upstream_unreachable"}},
	{upstream.ErrUnreachable, Fault{Status: http.StatusBadGateway, Type: typeServer, Code: "upstream_error", Message: "The model server failed.", Reason: "upstream_unreachable"}},
	{errAnswer, Fault{Status: http.StatusBadGateway, Type: typeServer, Code: "upstream_error", Message: "The model server failed.", Reason: "upstream_malformed"}},
	{errEngineFailed, Fault{Status: http.StatusBadGateway, Type: typeServer, Code: "upstream_error", Message: "The model server failed.", Reason: "upstream_error"}},

	// Last: the deadline of whatever ran may be wrapped by any of the above.
	{context.Canceled, Fault{Status: 499, Type: typeInvalid, Code: "client_gone", Message: "The client closed the request.", Reason: "client_gone"}},
}

// wireStatus gives the status of a refusal by the decoder, whose code is the
// caller's code.
var wireStatus = map[wire.Code]int{
	wire.MalformedJSON:        http.StatusBadRequest,
	wire.UnsupportedField:     http.StatusBadRequest,
	wire.InvalidRequest:       http.StatusBadRequest,
	wire.TooLarge:             http.StatusRequestEntityTooLarge,
	wire.UnsupportedMediaType: http.StatusUnsupportedMediaType,
	wire.UnsupportedEncoding:  http.StatusUnsupportedMediaType,
}

// faultOf finds err in the table.
func faultOf(err error) *Fault {
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	var we *wire.Error
	if errors.As(err, &we) {
		if status, ok := wireStatus[we.Code]; ok {
			return &Fault{Status: status, Type: typeInvalid, Code: string(we.Code), Message: we.Message, Param: we.Param, Reason: string(we.Code), Err: err}
		}
	}
	for _, row := range faults {
		if errors.Is(err, row.err) {
			f := row.fault
			f.Err = err
			return &f
		}
	}
	return &Fault{Status: http.StatusInternalServerError, Type: typeServer, Code: "internal", Message: "Internal error.", Reason: "internal", Err: err}
}
