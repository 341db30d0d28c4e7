package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	engineTimeout  = 5 * time.Second // for the relay's own small requests
	maxEngineReply = 8 << 20         // of those
)

// rankHeader is where vLLM takes the data-parallel rank from.
const rankHeader = "X-Data-Parallel-Rank"

// engine is the HTTP side of the engine.
type engine struct {
	cfg        Engine
	base       url.URL
	credential string
	transport  *http.Transport
}

// newEngine prepares to talk to the engine and nobody else: no proxy, no
// redirects, and for a Unix socket no address at all.
func newEngine(cfg Engine) (*engine, error) {
	u, err := cfg.target()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: engineTimeout}
	e := &engine{cfg: cfg, base: *u}
	e.transport = &http.Transport{
		DialContext:            dialer.DialContext,
		DisableCompression:     true,
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    512,
		IdleConnTimeout:        30 * time.Second, // uvicorn closes after 5 s by default; a closed one is noticed
		MaxResponseHeaderBytes: 64 << 10,
	}
	if u.Scheme == "unix" {
		path := u.Path
		e.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		e.base = url.URL{Scheme: "http", Host: "engine"}
	}
	if cfg.CredentialFile != "" {
		text, err := os.ReadFile(cfg.CredentialFile)
		if err != nil {
			return nil, fmt.Errorf("relay: engine credential: %w", err)
		}
		e.credential = strings.TrimSpace(string(text))
	}
	return e, nil
}

// request builds a request to the engine with the only headers it gets.
func (e *engine) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	u := e.base
	u.Path = path
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("build request to engine: %w", err)
	}
	// Without GetBody the transport cannot send a prompt twice by itself.
	req.GetBody = nil
	req.Header.Set("User-Agent", "")
	req.Header.Set("Accept-Encoding", "identity")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if e.credential != "" {
		req.Header.Set("Authorization", "Bearer "+e.credential)
	}
	return req, nil
}

// errStatus is an answer that is no success.
type errStatus int

func (e errStatus) Error() string { return fmt.Sprintf("engine answered %d", int(e)) }

// call is one of the relay's own requests; it returns a whole, small answer.
func (e *engine) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := e.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if body != nil && e.cfg.addressable() {
		req.Header.Set(rankHeader, "0") // probes look for each other's blocks
	}
	resp, err := e.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end or given up
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxEngineReply))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return reply, fmt.Errorf("%s %s: %w", method, path, errStatus(resp.StatusCode))
	}
	return reply, nil
}

// scrape reads the engine's metrics.
func (e *engine) scrape(ctx context.Context) (metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	page, err := e.call(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return metrics{}, err
	}
	m, err := parseMetrics(bytes.NewReader(page))
	if m.blockSize == 0 {
		m.blockSize = e.cfg.BlockSize
	}
	if m.numBlocks == 0 {
		m.numBlocks = e.cfg.NumBlocks
	}
	return m, err
}

// info is what the engine is. It does not change: a new one replaces it, and
// then every Watch begins again.
type info struct {
	name      string // kind and version
	models    []string
	adapters  []string
	blockSize int
	numBlocks int
	started   float64
	routes    []route // whose isolation is proven
	sole      []route // others, which serve the configured domain only
}

func (i *info) equal(o *info) bool {
	return i.name == o.name && i.blockSize == o.blockSize && i.numBlocks == o.numBlocks && i.started == o.started &&
		slices.Equal(i.models, o.models) && slices.Equal(i.adapters, o.adapters)
}

// isolated reports whether the route's salt isolation is proven.
func (i *info) isolated(r route) bool { return slices.Contains(i.routes, r) }

// describe asks the engine what it is.
func (e *engine) describe(ctx context.Context) (*info, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	out := &info{name: string(e.cfg.Kind), blockSize: e.cfg.BlockSize, numBlocks: e.cfg.NumBlocks}
	if err := e.models(ctx, out); err != nil {
		return nil, err
	}
	if e.cfg.Kind == External {
		return out, nil
	}
	m, err := e.scrape(ctx)
	if err != nil {
		return nil, err
	}
	out.blockSize, out.numBlocks, out.started = m.blockSize, m.numBlocks, m.started
	// Older engines have no such route; the version is for people.
	if reply, err := e.call(ctx, http.MethodGet, "/version", nil); err == nil {
		var v struct{ Version string }
		if json.Unmarshal(reply, &v) == nil && v.Version != "" {
			out.name += " " + v.Version
		}
	}
	return out, nil
}

// models lists base models and adapters; an adapter has a parent.
func (e *engine) models(ctx context.Context, out *info) error {
	reply, err := e.call(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return err
	}
	var list struct {
		Data []struct {
			ID     string
			Parent string
		}
	}
	if err := json.Unmarshal(reply, &list); err != nil {
		return fmt.Errorf("engine's models: %w", err)
	}
	for _, m := range list.Data {
		if m.Parent != "" {
			out.adapters = append(out.adapters, m.ID)
		} else {
			out.models = append(out.models, m.ID)
		}
	}
	if len(out.models) == 0 {
		return errors.New("engine serves no model")
	}
	return nil
}
