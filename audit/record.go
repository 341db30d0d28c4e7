// Package audit describes what is written down about a request: the Record,
// its exact encoding, and the contract of the log that takes it.
//
// Start at [Record]; [Appender] is what the request path calls. The log itself
// is package tlog.
//
// # Encoding
//
// A record is one JSON object whose fields appear in the order of the Record
// struct. The bytes that [Encode] returns are the leaf: they are stored, hashed
// and exported exactly as they are, never re-encoded. The encoder and its inverse
// are written out in encode.go and decode.go, a line for each field; a new field
// needs its line in both.
//
// # What is not in a record
//
// No prompt, completion or tool-argument text, no token ids, no raw block
// hashes, no MAC of a detector match. Records are plain data, so a change to a
// domain type elsewhere cannot change what is on disk.
package audit

import (
	"context"
	"encoding/json"
	"errors"
)

// Version is the value of the "v" field of every record of this format.
const Version = 1

// Kind says what a record is about.
type Kind string

// The kinds of record.
const (
	KindDecision      Kind = "decision"
	KindOutcome       Kind = "outcome"
	KindAdmin         Kind = "admin"
	KindPolicy        Kind = "policy"
	KindBoot          Kind = "boot"
	KindHeartbeat     Kind = "heartbeat"
	KindGap           Kind = "gap"
	KindKeyRotation   Kind = "key_rotation"
	KindSeal          Kind = "seal"
	KindPrune         Kind = "prune"
	KindAccess        Kind = "access"
	KindDenialSummary Kind = "denial_summary"
	KindExport        Kind = "export"
	KindFleet         Kind = "fleet"
)

// Kinds are all kinds of record.
var Kinds = []Kind{
	KindDecision, KindOutcome, KindAdmin, KindPolicy, KindBoot, KindHeartbeat, KindGap, KindKeyRotation,
	KindSeal, KindPrune, KindAccess, KindDenialSummary, KindExport, KindFleet,
}

// The status of a decision.
const (
	StatusAllowed = "allowed"
	StatusDenied  = "denied"
)

// The status of an outcome.
const (
	StatusOK           = "ok"
	StatusRefused      = "refused"   // by the engine, or by a check that ended what had begun
	StatusError        = "error"     // the replica's, or ours
	StatusCancelled    = "cancelled" // by the caller
	StatusNotForwarded = "not_forwarded"
	StatusUnknownCrash = "unknown_crash" // written at the next start
)

// Durability is how far a decision must have travelled before the request may.
type Durability string

// The durability modes. The zero value means strict.
const (
	Strict  Durability = "strict"   // fsynced and signed before the first prompt byte leaves
	Strict2 Durability = "strict-2" // the same, in two directories
	Bounded Durability = "bounded"  // at most N records and T ms unsynced, then strict
)

// Appender is the log as the request path sees it.
//
// Append MUST NOT return nil before the record is as durable as its Durability
// asks, and MUST return an error if it cannot say so by the deadline of ctx.
// After an error the record may or may not be in the log: the caller MUST NOT
// act on it, and the log owes it a not_forwarded outcome. Append fills the
// fields Log, Salt and Time itself. Implementations are safe for concurrent use.
type Appender interface {
	Append(ctx context.Context, r *Record) (Position, error)
}

// Position is where a record stands: its index in the tree, from 0.
type Position struct {
	Index uint64
	Bytes int // of its leaf
}

// Errors that a caller acts on.
var (
	// ErrUnavailable says that the log cannot take the record in time or at
	// all. Nothing may be forwarded.
	ErrUnavailable = errors.New("audit log unavailable")
	// ErrTooLarge says that no log can take the record: a leaf has less than
	// 64 KiB. It comes with ErrUnavailable.
	ErrTooLarge = errors.New("record too large")
)

// Record is one leaf of the log. Which groups are set depends on Kind.
type Record struct {
	V    int    `json:"v"`
	Kind Kind   `json:"kind"`
	ID   string `json:"id"` // decision id, UUIDv7; for other kinds an id of its own
	// Parent is the decision that this one is a part of: that of a prompt sent to
	// an engine to be counted names the request's.
	Parent string `json:"parent,omitempty"`
	Log    LogRef `json:"log"`
	Salt   string `json:"salt"` // 16 random bytes, base64url, so that a published leaf hash cannot be guessed
	Time   Time   `json:"time"`

	Gateway   *Gateway        `json:"gateway,omitempty"`
	Caller    *Caller         `json:"caller,omitempty"`
	Policy    *Policy         `json:"policy,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`    // the exact policy input
	Decision  json.RawMessage `json:"decision,omitempty"` // the exact answer; null where policy was not reached
	Class     *Class          `json:"class,omitempty"`
	Label     *Label          `json:"label,omitempty"`
	Request   *Request        `json:"request,omitempty"`
	Placement *Placement      `json:"placement,omitempty"`

	Attempt    int        `json:"attempt,omitempty"` // 1 for the first
	Durability Durability `json:"durability,omitempty"`
	Reason     string     `json:"reason,omitempty"` // stable code: why refused, why another attempt
	Status     string     `json:"status,omitempty"` // of a decision or an outcome
	HTTP       int        `json:"http,omitempty"`   // status sent to the caller
	Detail     string     `json:"detail,omitempty"` // short operator-facing cause; never text of a prompt or a peer's answer

	Outcome *Outcome        `json:"outcome,omitempty"`
	Denials []DenialCount   `json:"denials,omitempty"`
	Event   json.RawMessage `json:"event,omitempty"` // body of the administrative kinds (policy, boot, fleet, seal, …)
}

// LogRef places a record in its log.
type LogRef struct {
	Origin string `json:"origin"`
	Seq    uint64 `json:"seq"`  // index in the tree
	Boot   string `json:"boot"` // random per process start
}

// Time is wall clock and monotonic time of the append.
type Time struct {
	Wall   int64 `json:"wall"`    // µs since the Unix epoch
	MonoNS int64 `json:"mono_ns"` // ns since process start
}

// Gateway says which process decided.
type Gateway struct {
	SPIFFE string `json:"spiffe"`
	Build  string `json:"build"`
	Config string `json:"config"` // SHA-256 of the configuration file, hex
}

// Caller says who asked.
type Caller struct {
	Mode         string  `json:"mode"` // clear or pseudonym
	Ref          string  `json:"ref"`  // subject, or its pseudonym
	Tenant       string  `json:"tenant"`
	Kind         string  `json:"kind"`
	Method       string  `json:"method"`
	Issuer       string  `json:"issuer,omitempty"`
	CredFP       string  `json:"cred_fp,omitempty"` // hex, of the credential's public part
	Workload     string  `json:"workload,omitempty"`
	Registration string  `json:"registration,omitempty"`
	Chain        []Actor `json:"chain,omitempty"`
}

// Actor is one link of a delegation chain: first on whose behalf all is done,
// last who acts now.
type Actor struct {
	Type         string `json:"type"`
	Subject      string `json:"subject"` // of the first, as in Ref
	Registration string `json:"registration,omitempty"`
}

// Policy says which policy answered, and how.
type Policy struct {
	Revision   string   `json:"revision"`
	Digest     string   `json:"digest"`
	Rules      []string `json:"rules,omitempty"`
	EvalUS     int64    `json:"eval_us"`
	Clamps     []string `json:"clamps,omitempty"` // what code narrowed in the answer
	ShadowDiff string   `json:"shadow_diff,omitempty"`
}

// Class is what the request was taken for.
type Class struct {
	Name     string   `json:"name"`
	Facts    []string `json:"facts,omitempty"`
	Mismatch bool     `json:"mismatch,omitempty"`
	Table    string   `json:"table"`
}

// Label is how sensitive the request was taken to be.
type Label struct {
	Level      string        `json:"level"`
	Rank       int           `json:"rank"`
	Categories []string      `json:"categories,omitempty"`
	Sources    []LabelSource `json:"sources,omitempty"`
}

// LabelSource is one contribution to a label.
type LabelSource struct {
	Source string `json:"source"`
	Level  string `json:"level"`
	Detail string `json:"detail,omitempty"`
}

// Request describes the request without its content.
type Request struct {
	Operation    string   `json:"operation"`
	Model        string   `json:"model"`            // as asked
	Served       string   `json:"served,omitempty"` // as forwarded
	Stream       bool     `json:"stream,omitempty"`
	BodyBytes    int      `json:"body_bytes"`
	PromptTokens int      `json:"prompt_tokens"`
	PromptBasis  string   `json:"prompt_tokens_basis,omitempty"` // native_verified, native_unverified, engine or estimate
	PromptWhy    []string `json:"prompt_tokens_why,omitempty"`   // why it is not better, one reason for each step passed over
	PromptMAC    string   `json:"prompt_mac,omitempty"`          // under a tenant and month key
	Removed      []string `json:"removed,omitempty"`             // client fields that were taken out
}

// Placement says where the request was sent and why there.
type Placement struct {
	Strategy        string         `json:"strategy"`
	Basis           string         `json:"basis"`
	BasisReason     string         `json:"basis_reason,omitempty"`
	Pool            string         `json:"pool"`
	Replica         string         `json:"replica"`
	Epoch           string         `json:"epoch,omitempty"` // the replica's relay process
	Rank            int            `json:"rank,omitempty"`  // data-parallel rank of the replica
	Seed            uint64         `json:"seed"`
	PredictedCached int            `json:"predicted_cached_tokens"`
	BlockSize       int            `json:"block_size"`
	Blocks          int            `json:"blocks"`
	EventLagMS      int64          `json:"event_lag_ms"`
	ChosenBecause   string         `json:"chosen_because"`
	Others          int64          `json:"others_per_mille"` // requests that computing a prompt is taken to hold up
	Usual           int64          `json:"usual_ns"`         // wait at a replica that is not crowded
	Candidates      []Candidate    `json:"candidates,omitempty"`
	Omitted         int            `json:"omitted,omitempty"`  // dearer candidates that the record has no room for
	Excluded        map[string]int `json:"excluded,omitempty"` // reason to count
	Considered      int            `json:"considered"`
}

// Candidate is one replica as placement saw it: the inputs of its cost, all
// integers, and the cost in nanoseconds.
type Candidate struct {
	Replica         string `json:"replica"`
	Region          string `json:"region,omitempty"`
	Stream          string `json:"stream"`
	BlockSize       int    `json:"block_size"`         // tokens
	Depth           int    `json:"depth"`              // matched blocks
	Overlay         int    `json:"overlay"`            // the same, with prefixes in flight
	Lower           int    `json:"lower,omitempty"`    // the same, with blocks on slower tiers
	Confidence      int    `json:"confidence"`         // per mille
	Waiting         int64  `json:"waiting_tokens"`     // prefill tokens ahead of us
	PrefillPS       int64  `json:"prefill_ps"`         // picoseconds per token
	LowerPS         int64  `json:"lower_ps,omitempty"` // picoseconds per token loaded from a slower tier
	DecodeNS        int64  `json:"decode_ns"`          // decode interference
	KVFree          int64  `json:"kv_free_blocks"`
	KVTotal         int64  `json:"kv_total_blocks"`
	Running         int64  `json:"running"`
	WaitingRequests int64  `json:"waiting"` // requests without a first token
	Load            int64  `json:"load_tokens"`
	CostNS          int64  `json:"cost_ns"`
	PreferPenalty   int64  `json:"prefer_penalty_ns,omitempty"`
}

// Outcome says how an attempt ended.
type Outcome struct {
	Status           string    `json:"status"`
	HTTP             int       `json:"http"`
	UpstreamHTTP     int       `json:"upstream_http"`
	Replica          string    `json:"replica,omitempty"`
	Peer             string    `json:"peer,omitempty"` // SPIFFE ID seen on the connection
	TTFTMS           int64     `json:"ttft_ms"`
	DurationMS       int64     `json:"duration_ms"`
	PromptTokens     int       `json:"prompt_tokens"`
	CompletionTokens int       `json:"completion_tokens"`
	CachedTokens     *int      `json:"cached_tokens"` // null where the engine does not say
	Finish           string    `json:"finish,omitempty"`
	ErrorClass       string    `json:"error_class,omitempty"`
	Inspected        Inspected `json:"inspected"`
}

// Inspected names the inspections that ran on each direction.
type Inspected struct {
	Request  []string `json:"request"`
	Response []string `json:"response"`
}

// DenialCount counts refusals before authentication by source prefix and code.
type DenialCount struct {
	Prefix string `json:"prefix"`
	Code   string `json:"code"`
	Count  uint64 `json:"count"`
	First  int64  `json:"first"` // µs since the Unix epoch
	Last   int64  `json:"last"`
}
