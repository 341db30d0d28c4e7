package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// dialogue is a conversation as a client keeps it.
type dialogue struct {
	as       string // name of the token
	messages []map[string]string
	limit    int    // most tokens of an answer; 0: the engine's choice
	last     []byte // the body sent last
	holder   string // replica that answered first
}

func newDialogue(as, system string) *dialogue {
	d := &dialogue{as: as}
	if system != "" {
		d.messages = append(d.messages, map[string]string{"role": "system", "content": system})
	}
	return d
}

func (d *dialogue) ask(text string) *dialogue {
	d.messages = append(d.messages, map[string]string{"role": "user", "content": text})
	return d
}

func (d *dialogue) answer(text string) {
	d.messages = append(d.messages, map[string]string{"role": "assistant", "content": text})
}

// body is the request for the next turn.
func (d *dialogue) body() []byte {
	v := map[string]any{"model": demoModel, "messages": d.messages}
	if d.limit > 0 {
		v["max_tokens"] = d.limit
	}
	d.last, _ = json.Marshal(v) // strings and numbers always encode
	return d.last
}

// reply is what a client reads of an answer.
type reply struct {
	text string // content of the answer
	tool string // function that it calls
	code string // of an error body
	raw  string
}

// send makes one request as the holder of a named token and returns what the
// client sees and what the log says of it. Like the SDKs it tries again after a
// 503: on a machine that is short of time the log may miss its deadline, and
// then the gateway forwards nothing.
func (w *demoWorld) send(ctx context.Context, as string, body []byte) (step demoStep, answer reply, err error) {
	for wait := 50 * time.Millisecond; wait < time.Second; wait *= 2 {
		if step, answer, err = w.sendOnce(ctx, as, body); err != nil || val(step.Status) != http.StatusServiceUnavailable {
			break
		}
		time.Sleep(wait)
	}
	return step, answer, err
}

func (w *demoWorld) sendOnce(ctx context.Context, as string, body []byte) (demoStep, reply, error) {
	step := demoStep{Identity: &as}
	token, ok := w.tokens[as]
	if !ok {
		token = forge(w.tokens["acme-user"])
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return step, reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := w.client.Do(req)
	if err != nil {
		return step, reply{}, err
	}
	raw, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return step, reply{}, err
	}
	step.Status = &resp.StatusCode
	answer, err := read(raw)
	if err != nil {
		return step, answer, err
	}
	id := resp.Header.Get("Sallyport-Decision-Id")
	if id == "" {
		no := false
		step.Allow, step.Reason = &no, &answer.code
		return step, answer, nil
	}
	step.DecisionID = &id
	records, err := w.recordsOf(ctx, id, resp.StatusCode == http.StatusOK)
	if err != nil {
		return step, answer, err
	}
	return step, answer, step.fill(records)
}

func read(raw []byte) (reply, error) {
	var v struct {
		Choices []struct {
			Message struct {
				Content   string `json:"content"`
				ToolCalls []struct {
					Function struct {
						Name string `json:"name"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"message"`
		} `json:"choices"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return reply{raw: string(raw)}, fmt.Errorf("answer: %w", err)
	}
	r := reply{code: v.Error.Code, raw: string(raw)}
	if len(v.Choices) > 0 {
		m := v.Choices[0].Message
		r.text = m.Content
		if len(m.ToolCalls) > 0 {
			r.tool = m.ToolCalls[0].Function.Name
		}
	}
	return r, nil
}

// forge spoils the signature of a token.
func forge(token string) string {
	b := []byte(token)
	at := len(b) - 20
	if b[at] == 'A' {
		b[at] = 'B'
	} else {
		b[at] = 'A'
	}
	return string(b)
}

// recordsOf reads the records of one decision from the log on disk. The outcome
// comes a moment after the answer.
func (w *demoWorld) recordsOf(ctx context.Context, id string, outcome bool) (records []*audit.Record, err error) {
	err = waitFor(ctx, demoWait, "the records of "+id, func() bool {
		records = nil
		entries, err := tlog.Find(w.logDir, id, 0)
		if err != nil {
			return false
		}
		ok := !outcome
		for _, e := range entries {
			r, err := audit.Decode(e.Leaf)
			if err != nil {
				return false
			}
			records = append(records, r)
			ok = ok || r.Kind == audit.KindOutcome && r.Outcome.Status == audit.StatusOK
		}
		return ok && len(records) > 0
	})
	return records, err
}

// settled waits until the gateway has heard of the blocks that a step stored:
// until its index of that replica has been at rest for a few flushes of a relay.
func (w *demoWorld) settled(ctx context.Context, s demoStep) error {
	const rest = 60 * time.Millisecond
	if s.Replica == nil || s.Prompt == nil {
		return nil
	}
	blocks, since := -1, time.Now()
	return waitFor(ctx, demoWait, "cache events", func() bool {
		for _, r := range w.gateway.fleet.Replicas() {
			if r.ID == *s.Replica && r.Blocks != blocks {
				blocks, since = r.Blocks, time.Now()
			}
		}
		return blocks >= 0 && time.Since(since) >= rest
	})
}

func clientTrusting(caFile string) (*http.Client, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", caFile)
	}
	return &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true},
	}, nil
}
