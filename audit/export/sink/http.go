package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// answer is what an HTTP receiver said.
type answer struct {
	status int
	body   []byte
	header http.Header
}

// post sends a body and reads the answer whole, so that the connection can be
// used again. Redirects are not followed: they would take credentials elsewhere.
func post(ctx context.Context, client *http.Client, url string, header http.Header, body []byte) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return a, fmt.Errorf("make request: %w", err)
	}
	req.Header = header
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	a.status, a.header = resp.StatusCode, resp.Header
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return a, errors.Join(err, resp.Body.Close())
}

func newClient(c *TLSConfig) *http.Client {
	return &http.Client{
		Transport:     c.transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// problem is the error of an answer that is not 200. Statuses that say that
// the request itself is at fault refuse it; wrong credentials and addresses
// are for the operator to mend, and are tried again.
func (a *answer) problem() error {
	err := fmt.Errorf("status %d: %.200q", a.status, a.body)
	switch a.status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &Refused{At: -1, Reason: err.Error()}
	}
	if wait, ok := a.retryAfter(time.Now()); ok {
		return &Busy{After: wait, Err: err}
	}
	return err
}

// retryAfter reads the header of that name: seconds, or a date.
func (a *answer) retryAfter(now time.Time) (time.Duration, bool) {
	v := a.header.Get("Retry-After")
	if v == "" {
		return 0, false
	}
	if n, err := strconv.Atoi(v); err == nil && n >= 0 {
		return time.Duration(min(n, 86_400)) * time.Second, true
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	return max(at.Sub(now), 0), true
}
