package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// answer is what a client sees.
type answer struct {
	status int
	id     string // of the decision
	code   string // of an error
	body   string
}

// whole reports whether a good answer came to its end.
func (a answer) whole(stream bool) bool {
	if a.status != http.StatusOK {
		return false
	}
	if stream {
		return bytes.HasSuffix([]byte(a.body), []byte("data: [DONE]\n\n"))
	}
	return json.Valid([]byte(a.body))
}

// chat is the body of a request.
func chat(text string, stream bool, limit int) []byte {
	return fmt.Appendf(nil, `{"model":"small","messages":[{"role":"user","content":%q}],"stream":%t,"max_tokens":%d}`, text, stream, limit)
}

// ask sends a body. An empty token sends none. The answer holds what there is
// of it even if there is an error.
func ask(ctx context.Context, client *http.Client, url, token string, body []byte) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+completions, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	raw, err := io.ReadAll(resp.Body)
	a = answer{status: resp.StatusCode, id: resp.Header.Get("Sallyport-Decision-Id"), body: string(raw)}
	if resp.StatusCode != http.StatusOK && err == nil {
		var v struct {
			Error struct {
				Code string `json:"code"`
			} `json:"error"`
		}
		err = json.Unmarshal(raw, &v)
		a.code = v.Error.Code
	}
	return a, errors.Join(err, resp.Body.Close())
}
