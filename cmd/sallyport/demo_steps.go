package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// briefing is a system prompt long enough to be worth caching.
func briefing(topic string, paragraphs int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "You assist the staff of a bank with questions about %s.\n", topic)
	for i := range paragraphs {
		fmt.Fprintf(&b, "Rule %d on %s: answer from the handbook, name the section you used, and hand over to a colleague "+
			"when a customer disputes amount number %d or asks for advice that needs a licence.\n", i+1, topic, (i+3)*17)
	}
	return b.String()
}

// turn sends the dialogue's next turn and waits until its blocks are known to
// the gateway.
func (t *tour) turn(ctx context.Context, d *dialogue, text string) (demoStep, error) {
	d.ask(text)
	step, answer, err := t.world.send(ctx, d.as, d.body())
	if err != nil {
		return step, err
	}
	d.answer(answer.text)
	return step, t.world.settled(ctx, step)
}

func (t *tour) coldChat(ctx context.Context) (demoStep, error) {
	t.chat = newDialogue("acme-user", briefing("card payments", 14))
	s, err := t.turn(ctx, t.chat, "A customer does not recognise a payment. What do I do first?")
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK && val(s.Allow), "status %d", val(s.Status))
	c.that(val(s.Pool) == "general", "pool %q", val(s.Pool))
	c.that(val(s.Basis) == "load", "basis %q, want load", val(s.Basis))
	c.that(val(s.Predicted) == 0 && s.Cached != nil && *s.Cached == 0, "predicted %d, cached %d, want none", val(s.Predicted), val(s.Cached))
	t.chat.holder = val(s.Replica)
	return s, c.err()
}

func (t *tour) warmChat(ctx context.Context) (demoStep, error) {
	s, err := t.turn(ctx, t.chat, "And which form do I need for that?")
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(val(s.Replica) == t.chat.holder, "replica %s, want %s", val(s.Replica), t.chat.holder)
	c.that(val(s.Basis) == "kv_events", "basis %q, want kv_events", val(s.Basis))
	c.that(val(s.Predicted) > 0 && val(s.Predicted) == val(s.Cached), "predicted %d, cached %d, want the same and more than none", val(s.Predicted), val(s.Cached))
	return s, c.err()
}

func (t *tour) otherTenant(ctx context.Context) (demoStep, error) {
	s, _, err := t.world.send(ctx, "globex-user", t.chat.last)
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(val(s.Tenant) == "globex", "tenant %q", val(s.Tenant))
	c.that(val(s.Predicted) == 0 && s.Cached != nil && *s.Cached == 0, "predicted %d, cached %d, want none", val(s.Predicted), val(s.Cached))
	return s, errors.Join(c.err(), t.world.settled(ctx, s))
}

func (t *tour) agentToolCall(ctx context.Context) (demoStep, error) {
	s, answer, err := t.world.send(ctx, "acme-agent", []byte(`{"model":"small","messages":[{"role":"user","content":"What is the balance of account 17?"}],`+
		`"tools":[{"type":"function","function":{"name":"lookup","description":"Look up an account","parameters":{"type":"object","properties":{"account":{"type":"integer"}},"required":["account"]}}}]}`))
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(val(s.Class) == "agent_tool_call", "class %q", val(s.Class))
	c.that(val(s.Pool) == "agents", "pool %q", val(s.Pool))
	c.that(answer.tool == "lookup", "called %q, want lookup", answer.tool)
	return s, c.err()
}

func (t *tour) ragPHI(ctx context.Context) (demoStep, error) {
	s, _, err := t.world.send(ctx, "acme-rag", []byte(`{"model":"small","messages":[{"role":"user","content":"When was the last visit?"}],`+
		`"documents":[{"title":"Discharge letter","text":"Patient seen on 3 March. Medical record number: MRN 48213377. Follow-up in two weeks."}]}`))
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(val(s.Class) == "rag", "class %q", val(s.Class))
	c.that(val(s.Label) == "restricted", "label %q", val(s.Label))
	c.that(val(s.Pool) == "restricted", "pool %q", val(s.Pool))
	return s, c.err()
}

func (t *tour) denied(ctx context.Context) (demoStep, error) {
	s, answer, err := t.world.send(ctx, "initech-user", newDialogue("initech-user", "").ask("Hello?").body())
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusForbidden && !val(s.Allow), "status %d", val(s.Status))
	c.that(answer.code == "policy_denied", "error code %q", answer.code)
	c.that(val(s.Reason) != "" && !strings.Contains(answer.raw, val(s.Reason)), "reason %q must be in the record and not in the answer", val(s.Reason))
	return s, c.err()
}

func (t *tour) badToken(ctx context.Context) (demoStep, error) {
	s, answer, err := t.world.send(ctx, "forged", newDialogue("forged", "").ask("Hello?").body())
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusUnauthorized, "status %d", val(s.Status))
	c.that(answer.code == "bad_credential", "error code %q", answer.code)
	c.that(s.DecisionID == nil, "a decision id for nobody")
	return s, c.err()
}

// evicted fills the pool's caches with other prompts until the conversation's
// blocks are gone, and then continues it.
func (t *tour) evicted(ctx context.Context) (demoStep, error) {
	if err := t.world.flood(ctx, "globex-user", 2*demoReplicas*demoBlocks*demoBlockSize); err != nil {
		return demoStep{}, err
	}
	s, err := t.turn(ctx, t.chat, "Does that also hold for a payment abroad?")
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(val(s.Predicted) == 0 && s.Cached != nil && *s.Cached == 0, "predicted %d, cached %d, want none", val(s.Predicted), val(s.Cached))
	depth, known := s.depths[t.chat.holder]
	c.that(known && depth == 0, "%s is still taken to hold %d blocks", t.chat.holder, depth)
	return s, c.err()
}

func (t *tour) impostor(ctx context.Context) (demoStep, error) {
	s, err := t.turn(ctx, newDialogue("acme-user", briefing("savings", 3)), "What is the rate today?")
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(s.excluded["svid_mismatch"] == 1, "excluded %v, want one svid_mismatch", s.excluded)
	c.that(strings.HasPrefix(val(s.Replica), poolPrefix("general")), "replica %q", val(s.Replica))
	reason := "svid_mismatch"
	s.Reason = &reason // of the one that was left out; the record counts it there
	return s, c.err()
}

func (t *tour) failover(ctx context.Context) (demoStep, error) {
	d := newDialogue("acme-user", briefing("mortgages", 10))
	first, err := t.turn(ctx, d, "Who signs the offer?")
	if err != nil {
		return first, err
	}
	holder := val(first.Replica)
	if err := t.world.kill(holder); err != nil {
		return first, err
	}
	s, err := t.turn(ctx, d, "And who countersigns it?")
	if err != nil {
		return s, err
	}
	var c check
	c.that(val(s.Status) == http.StatusOK, "status %d", val(s.Status))
	c.that(val(s.Replica) != holder && strings.HasPrefix(val(s.Replica), poolPrefix("general")), "replica %q", val(s.Replica))
	c.that(val(s.Reason) == "holder_down", "reason %q, want holder_down", val(s.Reason))
	return s, c.err()
}

// tamperedLog flips one bit of one record in a copy of the log.
func (t *tour) tamperedLog(context.Context) (demoStep, error) {
	s := demoStep{}
	dir := filepath.Join(t.world.dir, "tampered")
	if err := os.CopyFS(dir, os.DirFS(t.world.logDir)); err != nil {
		return s, fmt.Errorf("copy log: %w", err)
	}
	index, err := flipOneBit(dir)
	if err != nil {
		return s, err
	}
	key, err := tlog.ReadVerifierFile(t.world.logKey)
	if err != nil {
		return s, err
	}
	report, err := tlog.Verify(dir, key, tlog.VerifyOptions{})
	if err != nil {
		return s, err
	}
	reason := fmt.Sprintf("record %d: %s", report.FirstBad, report.Code)
	s.Reason = &reason
	var c check
	c.that(!report.OK() && report.FirstBad == int64(index), "verification says record %d (%s), the bit is in record %d", report.FirstBad, report.Code, index)
	return s, c.err()
}

// flipOneBit changes a bit in the middle of the log's middle record and returns
// the record's index.
func flipOneBit(dir string) (uint64, error) {
	var entries []tlog.Entry
	for e, err := range tlog.Read(dir, 0) {
		if err != nil {
			return 0, err
		}
		entries = append(entries, tlog.Entry{Index: e.Index, Leaf: bytes.Clone(e.Leaf)})
	}
	if len(entries) == 0 {
		return 0, errors.New("the log is empty")
	}
	victim := entries[len(entries)/2]
	segments, err := filepath.Glob(filepath.Join(dir, "wal", "*"))
	if err != nil {
		return 0, err
	}
	for _, path := range segments {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		if at := bytes.Index(b, victim.Leaf); at >= 0 {
			b[at+len(victim.Leaf)/2] ^= 1
			return victim.Index, os.WriteFile(path, b, 0o600)
		}
	}
	return 0, fmt.Errorf("record %d is in no segment", victim.Index)
}

// flood sends prompts of the given length in all, each unlike the others.
func (w *demoWorld) flood(ctx context.Context, as string, tokens int) error {
	const each, atOnce = 1500, 4
	n := tokens/each + 1
	var wg sync.WaitGroup
	errs := make(chan error, n)
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			d := newDialogue(as, briefing(fmt.Sprintf("case file %d", i), each/45))
			d.limit = 4
			s, answer, err := w.send(ctx, as, d.ask("Summarise the rules.").body())
			if err == nil && val(s.Status) != http.StatusOK {
				err = fmt.Errorf("status %d: %s", val(s.Status), answer.raw)
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}
