package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// The ways in which an evaluation fails. Each one denies.
var (
	// ErrUndefined: no rule gave an answer.
	ErrUndefined = errors.New("policy answered nothing")
	// ErrEvaluation: a built-in failed, rules conflicted, or evaluation broke.
	ErrEvaluation = errors.New("policy evaluation failed")
	// ErrTimeout: no answer within the deadline, or the caller left.
	ErrTimeout = errors.New("policy evaluation timed out")
	// ErrMalformed: the question or the answer is not of the agreed shape.
	ErrMalformed = errors.New("policy answer malformed")
)

// Evaluation is what the record keeps of a decision. It is filled in as far as
// evaluation came, also on error.
type Evaluation struct {
	InputJSON    []byte        // the exact question
	DecisionJSON []byte        // the exact answer of Rego, before Clamps; nil where it gave none
	Rules        []string      // ids of the labelled rules that fired
	Clamps       []string      // what code narrowed in the answer, and why
	ShadowDiff   string        // how the shadow policy would have differed; empty: not at all
	Elapsed      time.Duration // of the active policy alone
}

// Decide asks whether the request may run. The model in the input is its name,
// not an alias ([Snapshot.Model]). An error is one of ErrUndefined,
// ErrEvaluation, ErrTimeout and ErrMalformed, and comes with a Decision that
// denies.
func (s *Snapshot) Decide(ctx context.Context, in Input) (Decision, Evaluation, error) {
	start := time.Now()
	q, err := newQuestion(in)
	if err != nil {
		return denied(err), Evaluation{Elapsed: time.Since(start)}, err
	}
	d, ev, err := s.answer(ctx, q, s.timeout)
	ev.Elapsed = time.Since(start)
	ev.ShadowDiff = s.shadowDiff(ctx, q, d, err)
	return d, ev, err
}

// answer evaluates, decodes and clamps.
func (s *Snapshot) answer(ctx context.Context, q question, timeout time.Duration) (Decision, Evaluation, error) {
	ev := Evaluation{InputJSON: q.json}
	value, rules, err := s.eval(ctx, q, timeout)
	ev.Rules = rules
	if err != nil {
		return denied(err), ev, err
	}
	if ev.DecisionJSON, err = json.Marshal(value); err != nil {
		err = fmt.Errorf("%w: %w", ErrMalformed, err)
		return denied(err), ev, err
	}
	d, err := s.decode(value)
	if err != nil {
		return denied(err), ev, err
	}
	d, ev.Clamps = s.clamp(q.input, d)
	return d, ev, nil
}

// eval runs the prepared query. A panic in it is an error like any other.
func (s *Snapshot) eval(ctx context.Context, q question, timeout time.Duration) (value any, rules []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			value, err = nil, fmt.Errorf("%w: panic: %v", ErrEvaluation, p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tracker := new(topdown.EvaluatedRuleTracker).WithAnnotationSet(s.compiler.GetAnnotationSet())
	rs, err := s.query.Eval(ctx, rego.EvalParsedInput(q.value), rego.EvalEvaluatedRuleTracker(tracker))
	rules = ruleIDs(tracker)
	switch {
	case ctx.Err() != nil || topdown.IsCancel(err):
		return nil, rules, fmt.Errorf("%w after %v", ErrTimeout, timeout)
	case err != nil:
		return nil, rules, fmt.Errorf("%w: %w", ErrEvaluation, err)
	case len(rs) == 0:
		return nil, rules, ErrUndefined
	case len(rs) != 1 || len(rs[0].Expressions) != 1:
		return nil, rules, fmt.Errorf("%w: %d results", ErrMalformed, len(rs))
	}
	return rs[0].Expressions[0].Value, rules, nil
}

func ruleIDs(t *topdown.EvaluatedRuleTracker) []string {
	var ids []string
	for _, labels := range t.Labels {
		if id, ok := labels["id"].(string); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// denied is the decision that goes with a failure.
func denied(err error) Decision {
	reason := "policy_error"
	switch {
	case errors.Is(err, ErrUndefined):
		reason = "policy_undefined"
	case errors.Is(err, ErrTimeout):
		reason = "policy_timeout"
	case errors.Is(err, ErrMalformed):
		reason = "policy_malformed"
	}
	return Decision{Reasons: []string{reason}}
}
