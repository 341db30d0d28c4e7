package gateway

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing"
)

// ErrNotRecorded says that a record does not hold all that a placement rested
// on, so that it cannot be made again.
var ErrNotRecorded = errors.New("not all that the placement rested on is recorded")

// Recompute makes the placement of a recorded decision again, from what the
// record holds. It is the inverse of recordOf. The error wraps [ErrNotRecorded]
// where that is not enough.
func Recompute(rec *audit.Record) (routing.Placement, error) {
	p := rec.Placement
	switch {
	case p == nil || rec.Request == nil:
		return routing.Placement{}, fmt.Errorf("%w: there was none", ErrNotRecorded)
	case p.Basis == string(routing.Affinity):
		return routing.Placement{}, fmt.Errorf("%w: it followed from the digest of the conversation's beginning, which is never recorded", ErrNotRecorded)
	}
	q, err := recordedQuery(rec)
	if err != nil {
		return routing.Placement{}, err
	}
	var s routing.Snapshot
	for i := range p.Candidates {
		s.Candidates = append(s.Candidates, recordedCandidate(p, &p.Candidates[i]))
	}
	if p.Omitted == 0 && eligible(p) == len(p.Candidates) {
		return routing.Place(q, s)
	}
	again, err := routing.Again(q, s, p.Others, p.Usual)
	if errors.Is(err, routing.ErrNotAll) {
		err = fmt.Errorf("%w: %d of %d candidates are: %w", ErrNotRecorded, len(p.Candidates), eligible(p), err)
	}
	return again, err
}

// eligible is how many candidates a placement chose from.
func eligible(p *audit.Placement) int {
	n := p.Considered
	for _, count := range p.Excluded {
		n -= count
	}
	return n
}

func recordedQuery(rec *audit.Record) (routing.Query, error) {
	in, err := policy.ParseInput(rec.Input)
	if err != nil {
		return routing.Query{}, err
	}
	var d policy.Decision
	if err := json.Unmarshal(rec.Decision, &d); err != nil {
		return routing.Query{}, fmt.Errorf("recorded decision: %w", err)
	}
	return routing.Query{
		Strategy: routing.Strategy(rec.Placement.Strategy), PromptTokens: rec.Request.PromptTokens,
		TokensExact: exact(rec.Request.PromptBasis), MaxOutput: leastOf(in.Request.MaxTokens, d.Limits.MaxOutputTokens),
		Seed: rec.Placement.Seed, Region: d.Prefer.Region, Warm: d.Prefer.Warm,
	}, nil
}

func recordedCandidate(p *audit.Placement, c *audit.Candidate) routing.Candidate {
	return routing.Candidate{
		ID: c.Replica, Pool: p.Pool, Region: c.Region, Stream: streamOf(c.Stream), BlockSize: c.BlockSize,
		Depth: c.Depth, Overlay: c.Overlay, Lower: c.Lower, Confidence: c.Confidence,
		WaitingTokens: c.Waiting, PrefillPS: c.PrefillPS, LowerPS: c.LowerPS, DecodeNS: c.DecodeNS,
		KVFree: c.KVFree, KVTotal: c.KVTotal, Running: c.Running, Waiting: c.WaitingRequests, Load: c.Load,
	}
}

func streamOf(name string) routing.Stream {
	for s := routing.StreamUnknown; s <= routing.StreamLive; s++ {
		if s.String() == name {
			return s
		}
	}
	return routing.StreamUnknown
}

// Seed is what decides between candidates that cost the same or nearly so. It
// follows from the decision's id, so that the choice can be made again; and the
// id is random, so that no caller can choose its replica.
func Seed(id string, attempt int) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:8]) + uint64(attempt)
}
