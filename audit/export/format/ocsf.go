package format

import (
	"encoding/hex"
	"encoding/json"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// OCSF, https://schema.ocsf.io: class API Activity (6003), with the profiles
// ai_operation, record_integrity and security_control. What has no attribute
// there is under unmapped.sallyport; see appendDetails.
const (
	ocsfVersion  = "1.9.0"
	ocsfClass    = 6003
	ocsfCategory = 6
)

type ocsf struct {
	ActivityID    int               `json:"activity_id"`
	ActivityName  string            `json:"activity_name"`
	CategoryUID   int               `json:"category_uid"`
	CategoryName  string            `json:"category_name"`
	ClassUID      int               `json:"class_uid"`
	ClassName     string            `json:"class_name"`
	TypeUID       int               `json:"type_uid"`
	TypeName      string            `json:"type_name"`
	SeverityID    int               `json:"severity_id"`
	Severity      string            `json:"severity"`
	Time          int64             `json:"time"` // ms
	Message       string            `json:"message"`
	StatusID      int               `json:"status_id"`
	Status        string            `json:"status"`
	StatusCode    string            `json:"status_code,omitempty"`
	ActionID      int               `json:"action_id"`
	Action        string            `json:"action"`
	DispositionID int               `json:"disposition_id"`
	Disposition   string            `json:"disposition"`
	IsAlert       bool              `json:"is_alert"`
	Metadata      ocsfMetadata      `json:"metadata"`
	Actor         ocsfActor         `json:"actor"`
	API           ocsfAPI           `json:"api"`
	SrcEndpoint   ocsfEndpoint      `json:"src_endpoint"`
	DstEndpoint   *ocsfEndpoint     `json:"dst_endpoint,omitempty"`
	Policy        *ocsfPolicy       `json:"policy,omitempty"`
	AIModel       *ocsfModel        `json:"ai_model,omitempty"`
	AIAgent       *ocsfAgent        `json:"ai_agent,omitempty"`
	MessageCtx    *ocsfMessage      `json:"message_context,omitempty"`
	Attestations  []ocsfAttestation `json:"attestation_list,omitempty"`
	RawData       string            `json:"raw_data,omitempty"`
	RawSize       int               `json:"raw_data_size,omitempty"`
	RawHash       *ocsfFingerprint  `json:"raw_data_hash,omitempty"`
	Unmapped      ocsfUnmapped      `json:"unmapped"`
}

type ocsfUnmapped struct {
	Sallyport json.RawMessage `json:"sallyport"`
}

type ocsfMetadata struct {
	Version        string      `json:"version"`
	Product        ocsfProduct `json:"product"`
	Profiles       []string    `json:"profiles"`
	UID            string      `json:"uid"`
	CorrelationUID string      `json:"correlation_uid,omitempty"`
	EventCode      string      `json:"event_code"`
	LogName        string      `json:"log_name"`
	LogProvider    string      `json:"log_provider"`
	LogVersion     string      `json:"log_version"`
	LoggedTime     int64       `json:"logged_time"`
	Sequence       uint64      `json:"sequence"`
	TenantUID      string      `json:"tenant_uid,omitempty"`
	IsTruncated    bool        `json:"is_truncated,omitempty"`
	UntruncatedLen int         `json:"untruncated_size,omitempty"`
}

type ocsfProduct struct {
	Name       string `json:"name"`
	VendorName string `json:"vendor_name"`
	Version    string `json:"version,omitempty"`
}

type ocsfEntity struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

type ocsfActor struct {
	AppName        string              `json:"app_name,omitempty"`
	AppUID         string              `json:"app_uid,omitempty"`
	InvokedBy      string              `json:"invoked_by,omitempty"`
	User           *ocsfUser           `json:"user,omitempty"`
	Session        *ocsfSession        `json:"session,omitempty"`
	Authorizations []ocsfAuthorization `json:"authorizations,omitempty"`
}

type ocsfUser struct {
	UID           string      `json:"uid"`
	Type          string      `json:"type"`
	TypeID        int         `json:"type_id"`
	CredentialUID string      `json:"credential_uid,omitempty"`
	Org           *ocsfEntity `json:"org,omitempty"`
}

type ocsfSession struct {
	Issuer        string `json:"issuer,omitempty"`
	CredentialUID string `json:"credential_uid,omitempty"`
	IsRemote      bool   `json:"is_remote"`
}

type ocsfAuthorization struct {
	Decision string      `json:"decision"`
	Policy   *ocsfPolicy `json:"policy,omitempty"`
}

type ocsfPolicy struct {
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Version   string `json:"version,omitempty"`
	IsApplied bool   `json:"is_applied"`
}

type ocsfAPI struct {
	Operation string        `json:"operation"`
	Service   ocsfEntity    `json:"service"`
	Request   ocsfRequest   `json:"request"`
	Response  *ocsfResponse `json:"response,omitempty"`
}

type ocsfRequest struct {
	UID string `json:"uid"`
}

type ocsfResponse struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

type ocsfEndpoint struct {
	Name    string `json:"name,omitempty"`
	UID     string `json:"uid,omitempty"`
	SvcName string `json:"svc_name,omitempty"`
}

type ocsfModel struct {
	Provider string `json:"ai_provider"`
	Name     string `json:"name"`
}

type ocsfAgent struct {
	Name   string     `json:"name"`
	UID    string     `json:"uid"`
	TypeID int        `json:"type_id"`
	Model  *ocsfModel `json:"ai_model,omitempty"`
}

type ocsfMessage struct {
	UID              string     `json:"uid"`
	Service          ocsfEntity `json:"service"`
	PromptTokens     int        `json:"prompt_tokens,omitempty"`
	CompletionTokens int        `json:"completion_tokens,omitempty"`
	TotalTokens      int        `json:"total_tokens,omitempty"`
}

type ocsfAttestation struct {
	AuthorityUID string          `json:"authority_uid"`
	ChainUID     string          `json:"chain_uid"`
	Fingerprint  ocsfFingerprint `json:"fingerprint"`
	PrevEvent    *ocsfPrevious   `json:"prev_event,omitempty"`
}

type ocsfPrevious struct {
	UID         string          `json:"uid"`
	Fingerprint ocsfFingerprint `json:"fingerprint"`
}

type ocsfFingerprint struct {
	AlgorithmID     int    `json:"algorithm_id"`
	Algorithm       string `json:"algorithm"`
	EncodingID      int    `json:"encoding_id"`
	Encoding        string `json:"encoding"`
	SerializationID int    `json:"serialization_id"`
	Serialization   string `json:"serialization"`
	Value           string `json:"value"`
}

// leafFingerprint is an RFC 6962 leaf hash: SHA-256 over a zero byte and the
// exact bytes of the record.
func leafFingerprint(h tlog.Hash) ocsfFingerprint {
	return ocsfFingerprint{
		AlgorithmID: 3, Algorithm: "SHA-256", EncodingID: 1, Encoding: "Hex",
		SerializationID: 99, Serialization: "RFC 6962 leaf", Value: hex.EncodeToString(h[:]),
	}
}

var (
	ocsfSeverities = [...]string{"Unknown", "Informational", "Low", "Medium", "High"}
	ocsfActivities = map[int]string{1: "Create", 2: "Read", 3: "Update", 4: "Delete"}
	ocsfUserTypes  = map[string]int{"human": 1, "workload": 4, "agent": 4}
)

func ocsfEvent(e *Event, c cut) ([]byte, error) {
	r := e.Record
	details, err := appendDetails(make([]byte, 0, 2048), e, c)
	if err != nil {
		return nil, err
	}
	id, name := ocsfActivity(r)
	o := ocsf{
		ActivityID: id, ActivityName: name,
		SeverityID: e.Severity(), Time: r.Time.Wall / 1000,
		Message: e.summary(), StatusCode: r.Reason,
		Metadata: ocsfMetadata{
			UID: e.UID(), CorrelationUID: r.ID, EventCode: string(r.Kind), LogName: r.Log.Origin, LogVersion: strconv.Itoa(r.V),
			LoggedTime: r.Time.Wall / 1000, Sequence: e.Index, Product: ocsfProduct{Version: e.build()},
		},
		API:      ocsfAPI{Operation: "sallyport." + string(r.Kind), Request: ocsfRequest{UID: r.ID}},
		Unmapped: ocsfUnmapped{details},
	}
	o.judge(e.verdict(), r)
	o.actors(e)
	o.places(e)
	attestation := ocsfAttestation{AuthorityUID: r.Log.Origin, ChainUID: r.Log.Origin, Fingerprint: leafFingerprint(e.Hash)}
	if p := e.Previous; p != nil {
		attestation.PrevEvent = &ocsfPrevious{UID: r.Log.Origin + "/" + strconv.FormatUint(p.Index, 10), Fingerprint: leafFingerprint(p.Hash)}
	}
	o.Attestations = []ocsfAttestation{attestation}
	if c > whole {
		o.Metadata.IsTruncated, o.Metadata.UntruncatedLen = true, len(e.Leaf)
	}
	if e.Raw && c < bare {
		fingerprint := leafFingerprint(e.Hash)
		o.RawSize, o.RawHash = len(e.Leaf), &fingerprint
		if c < withoutLeaf {
			o.RawData = string(e.Leaf)
		}
	}
	return o.write(), nil
}

// ocsfActivity is what was done, of create, read, update, delete and other.
func ocsfActivity(r *audit.Record) (int, string) {
	id := 99
	switch {
	case r.Kind == audit.KindAccess, r.Request != nil && r.Request.Operation == "models.list":
		id = 2
	case r.Kind == audit.KindDecision:
		id = 1
	case r.Kind == audit.KindPolicy, r.Kind == audit.KindKeyRotation, r.Kind == audit.KindAdmin:
		id = 3
	case r.Kind == audit.KindPrune:
		id = 4
	}
	if name := ocsfActivities[id]; name != "" {
		return id, name
	}
	return id, string(r.Kind)
}

// judge fills in how it ended and what was done about it.
func (o *ocsf) judge(v verdict, r *audit.Record) {
	o.StatusID, o.Status = 1, "Success"
	o.ActionID, o.Action, o.DispositionID, o.Disposition = 3, "Observed", 17, "Logged"
	if v.failed {
		o.StatusID, o.Status = 2, "Failure"
	}
	switch {
	case v.allowed:
		o.ActionID, o.Action, o.DispositionID, o.Disposition = 1, "Allowed", 1, "Allowed"
	case v.denied:
		o.ActionID, o.Action, o.DispositionID, o.Disposition = 2, "Denied", 2, "Blocked"
	case r.Kind == audit.KindOutcome && r.Status == audit.StatusNotForwarded:
		o.ActionID, o.Action, o.DispositionID, o.Disposition = 2, "Denied", 27, "Error"
	}
	o.IsAlert = o.SeverityID >= 3
}

// actors fills in who, by whom and with which model.
func (o *ocsf) actors(e *Event) {
	r := e.Record
	if r.Gateway != nil {
		o.Actor.AppUID = r.Gateway.SPIFFE
	}
	o.Actor.AppName = "sallyport"
	if r.Policy != nil {
		o.Policy = &ocsfPolicy{Name: "sallyport", UID: r.Policy.Digest, Version: r.Policy.Revision, IsApplied: true}
	}
	if r.Request != nil {
		o.API.Operation = r.Request.Operation
		if r.Request.Model != "" {
			o.AIModel = &ocsfModel{Provider: "sallyport", Name: r.Request.Model}
		}
		if n := r.Request.PromptTokens; n > 0 {
			o.MessageCtx = &ocsfMessage{UID: r.ID, PromptTokens: n, TotalTokens: n}
		}
	}
	if u := r.Outcome; u != nil && u.PromptTokens+u.CompletionTokens > 0 {
		o.MessageCtx = &ocsfMessage{
			UID: r.ID, PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
			TotalTokens: u.PromptTokens + u.CompletionTokens,
		}
	}
	if o.MessageCtx != nil {
		o.MessageCtx.Service.Name = "sallyport"
	}
	caller := r.Caller
	if caller == nil {
		return
	}
	o.Metadata.TenantUID = caller.Tenant
	o.Actor.User = &ocsfUser{
		UID: caller.Ref, Type: caller.Kind, TypeID: ocsfUserTypes[caller.Kind], CredentialUID: caller.CredFP,
		Org: &ocsfEntity{UID: caller.Tenant},
	}
	o.Actor.Session = &ocsfSession{Issuer: caller.Issuer, CredentialUID: caller.CredFP, IsRemote: true}
	if n := len(caller.Chain); n > 0 {
		o.Actor.InvokedBy = caller.Chain[n-1].Subject
	}
	if v := e.verdict(); r.Policy != nil && (v.allowed || v.denied) {
		o.Actor.Authorizations = []ocsfAuthorization{{Decision: o.Action, Policy: o.Policy}}
	}
	if caller.Kind == "agent" {
		o.AIAgent, o.AIModel = &ocsfAgent{Name: caller.Ref, UID: caller.Ref, TypeID: 0, Model: o.AIModel}, nil
	}
}

// places fills in from where to where, and what was answered.
func (o *ocsf) places(e *Event) {
	r := e.Record
	o.SrcEndpoint = ocsfEndpoint{Name: "sallyport", UID: o.Actor.AppUID}
	if r.Caller != nil {
		// The log does not keep addresses: a caller is who it proved to be.
		o.SrcEndpoint = ocsfEndpoint{UID: r.Caller.Workload, Name: r.Caller.Ref, SvcName: r.Caller.Registration}
	}
	id, pool := e.replica()
	if id != "" || pool != "" {
		o.DstEndpoint = &ocsfEndpoint{UID: id, SvcName: pool}
	}
	o.API.Service = ocsfEntity{Name: "sallyport", UID: o.Actor.AppUID}
	http := r.HTTP
	if r.Outcome != nil {
		http = r.Outcome.HTTP
	}
	if http != 0 {
		o.API.Response = &ocsfResponse{Code: http}
		if o.StatusID == 2 {
			o.API.Response.Error = r.Reason
		}
	}
}

// write fills in what is the same for every event.
func (o *ocsf) write() []byte {
	o.CategoryUID, o.CategoryName, o.ClassUID, o.ClassName = ocsfCategory, "Application Activity", ocsfClass, "API Activity"
	o.TypeUID, o.TypeName = ocsfClass*100+o.ActivityID, "API Activity: "+o.ActivityName
	if o.ActivityID == 99 {
		o.TypeName = "API Activity: Other"
	}
	o.Severity = ocsfSeverities[o.SeverityID]
	m := &o.Metadata
	m.Version, m.LogProvider, m.Profiles = ocsfVersion, "sallyport", []string{"ai_operation", "record_integrity", "security_control"}
	m.Product.Name, m.Product.VendorName = "Sallyport", "Sallyport"
	return o.append(make([]byte, 0, 4096))
}

func ocsfAnchor(a *Anchor) ([]byte, error) {
	ms := a.Time.UnixMilli()
	o := ocsf{
		ActivityID: 99, ActivityName: "anchor", SeverityID: 1, Time: ms, Message: "anchor of an exported batch",
		StatusID: 1, Status: "Success", ActionID: 3, Action: "Observed", DispositionID: 17, Disposition: "Logged",
		Metadata: ocsfMetadata{
			UID: a.UID(), EventCode: "anchor", LogName: a.Origin, LogVersion: strconv.Itoa(audit.Version),
			LoggedTime: ms, Sequence: a.Next,
		},
		Actor:       ocsfActor{AppName: "sallyport"},
		API:         ocsfAPI{Operation: "sallyport.anchor", Request: ocsfRequest{UID: a.UID()}, Service: ocsfEntity{Name: "sallyport"}},
		SrcEndpoint: ocsfEndpoint{Name: "sallyport"},
		Unmapped:    ocsfUnmapped{appendAnchor(nil, a)},
	}
	return o.write(), nil
}
