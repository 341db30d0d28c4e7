package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

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

// clientGone reports whether there is nobody to tell.
func (f *Fault) clientGone() bool { return f.Status == statusClientGone }

// sayWhen puts into an answer's headers when it is worth asking again, of a
// refusal that may be another by then. A wait of 0 is one that nobody knows.
func (f *Fault) sayWhen(h http.Header, wait time.Duration) {
	if f.Status == http.StatusTooManyRequests || f.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", seconds(wait))
	}
}

// unforeseen reports whether the table has no row for it: a bug of ours.
func (f *Fault) unforeseen() bool { return f.Code == codeInternal }

// statusClientGone is what records and metrics say of a request whose client
// did not wait, as other proxies do; nobody is sent it.
const statusClientGone = 499

const codeInternal = "internal"

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
	errActor            = errors.New("an actor may not act here")
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
	errPanic            = errors.New("panic")
	errLimited          = errors.New("every replica has too many requests")
	errOverdue          = errors.New("request took longer than it may")
	errStopping         = errors.New("gateway is stopping")
	errTooOften         = errors.New("caller asks too often")
	errKnocking         = errors.New("too many from there that are nobody")
	errLogQuota         = errors.New("tenant has spent its share of the log")
	errUnrecorded       = errors.New("audit log takes no more than what is owed")
	errPolicyMoved      = errors.New("policy kept changing while the request was placed")
	errReplicaMoved     = errors.New("replica changed while the request was written down")
)

// faults is the one table from error to fault. The first row whose error is in
// the chain decides, so a more specific error stands before a more general one.
// What is not here is internal, and its text reaches nobody outside.
var faults = []struct {
	err   error
	fault Fault
}{
	{errNotFound, invalid(http.StatusNotFound, "not_found", "not_found", "No such route.")},
	{errMethodNotAllowed, invalid(http.StatusMethodNotAllowed, "method_not_allowed", "method_not_allowed", "This route does not take that method.")},

	{identity.ErrNoCredential, unproven("no_credential", "no_credential", "No credential was given.")},
	{identity.ErrAmbiguous, unproven("bad_credential", "ambiguous_credential", "The credentials given cannot be used together.")},
	{identity.ErrUnavailable, notReady("credential_uncheckable", "The credential cannot be checked now.")},
	{identity.ErrTooMany, limited("proof_quota", "The credential is used too often.")},
	{identity.ErrNonce, unproven("use_dpop_nonce", "dpop_nonce", "The DPoP proof needs the nonce in the DPoP-Nonce header.")},
	{identity.ErrProof, unproven("bad_credential", "dpop_proof", "The credential was not accepted.")},
	{identity.ErrBadCredential, unproven("bad_credential", "bad_credential", "The credential was not accepted.")},
	{errNotRegistered, denied("not_registered")},
	{errActor, denied("actor_not_registered")},
	{errExpired, unproven("bad_credential", "credential_expired", "The credential has expired.")},

	{errTooLarge, invalid(http.StatusRequestEntityTooLarge, "too_large", "too_large", "The request body is too large.")},
	{errUnreadable, bad("unreadable_body", "The request body could not be read to its end.")},
	{errTooLong, bad(reasonTooLong, "The prompt is longer than the model's context window.").in("messages")},
	{errHeader, bad("bad_header", "A Sallyport header has a value that is not understood.")},
	{errConversation, bad("bad_conversation", "The conversation is not known; begin a new one.")},
	{errUnclassified, forbidden("unclassified", "unclassified", "The request holds something that could not be classified.")},

	{policy.ErrUndefined, denied("policy_undefined")},
	{policy.ErrTimeout, denied("policy_timeout")},
	{policy.ErrMalformed, denied("policy_malformed")},
	{policy.ErrEvaluation, denied("policy_error")},
	{errDenied, denied("policy_denied")},
	{errTool, denied("tool_not_allowed")},
	{errInspection, denied("inspection_unavailable")},
	{errWithdrawn, forbidden("policy_denied", "reauthorize_denied", "This request is no longer permitted.")},

	{errClientGone, gone()},
	{errOverdue, server(http.StatusGatewayTimeout, "upstream_timeout", "total_timeout", "The request took too long.")},
	{errStopping, notReady("stopping", "The gateway is stopping.")},
	{errUnrecorded, unavailable("audit_unavailable", "audit_unavailable", "The request can be recorded no further.")},
	{audit.ErrTooLarge, bad("record_too_large", "The request has more to be recorded than the log has room for.")},
	{audit.ErrUnavailable, unavailable("audit_unavailable", "audit_unavailable", "The request could not be recorded, so it was not forwarded.")},
	{errInflight, notReady("inflight_bytes", "The gateway has too much in hand.")},
	{errPolicyMoved, notReady("policy_moved", "The gateway is being reconfigured.")},
	{errReplicaMoved, notReady("replica_moved", "The gateway is being reconfigured.")},
	{errLimited, limited("rate_limited", "The model servers have too many requests.")},
	{errTooOften, limited("caller_rate", "Too many requests.")},
	{errKnocking, limited("source_rate", "Too many requests.")},
	{errLogQuota, limited("log_quota", "Your organisation has too many requests.")},
	{errEngineBusy, unavailable("no_replica", "engine_busy", "No model server can take the request now.")},
	{routing.ErrNoReplica, unavailable("no_replica", "no_replica", "No model server can take the request now.")},

	{errEngineRefused, bad("engine_refused", "The model server did not accept the request's parameters.")},
	{upstream.ErrIdentity, server(http.StatusBadGateway, "replica_identity", "replica_identity", "A model server could not be authenticated.")},
	{upstream.ErrTimeout, server(http.StatusGatewayTimeout, "upstream_timeout", "upstream_timeout", "The model server did not answer in time.")},
	{upstream.ErrConnect, broken("upstream_unreachable")},
	{upstream.ErrUnreachable, broken("upstream_unreachable")},
	{errAnswer, broken("upstream_malformed")},
	{errEngineFailed, broken("upstream_error")},

	// Last: any of the above may wrap the cancellation that it came of.
	{context.Canceled, gone()},
}

// The kinds of fault in the table.

func invalid(status int, code, reason, message string) Fault {
	return Fault{Status: status, Type: typeInvalid, Code: code, Reason: reason, Message: message}
}

func bad(reason, message string) Fault {
	return invalid(http.StatusBadRequest, "invalid_request", reason, message)
}

func gone() Fault {
	return invalid(statusClientGone, "client_gone", "client_gone", "The client closed the request.")
}

func unproven(code, reason, message string) Fault {
	return Fault{Status: http.StatusUnauthorized, Type: typeAuthentication, Code: code, Reason: reason, Message: message}
}

func forbidden(code, reason, message string) Fault {
	return Fault{Status: http.StatusForbidden, Type: typePermission, Code: code, Reason: reason, Message: message}
}

// denied looks the same whatever the reason, which is for the record.
func denied(reason string) Fault {
	return forbidden("policy_denied", reason, "This request is not permitted.")
}

func limited(reason, message string) Fault {
	return Fault{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: "rate_limited", Reason: reason, Message: message}
}

func server(status int, code, reason, message string) Fault {
	return Fault{Status: status, Type: typeServer, Code: code, Reason: reason, Message: message}
}

func unavailable(code, reason, message string) Fault {
	return server(http.StatusServiceUnavailable, code, reason, message)
}

func notReady(reason, message string) Fault { return unavailable("not_ready", reason, message) }

func broken(reason string) Fault {
	return server(http.StatusBadGateway, "upstream_error", reason, "The model server failed.")
}

func internal() Fault {
	return server(http.StatusInternalServerError, codeInternal, "internal", "Internal error.")
}

// in names the field to blame.
func (f Fault) in(param string) Fault {
	f.Param = param
	return f
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
	found := tabled(err)
	found.Err = err
	return &found
}

func tabled(err error) Fault {
	var we *wire.Error
	if errors.As(err, &we) {
		if status, ok := wireStatus[we.Code]; ok {
			return invalid(status, string(we.Code), string(we.Code), we.Message).in(we.Param)
		}
	}
	for _, row := range faults {
		if errors.Is(err, row.err) {
			return row.fault
		}
	}
	return internal()
}
