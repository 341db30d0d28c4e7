package relay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/splice"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

const (
	maxBody      = 16 << 20         // of a request, in bytes
	readTimeout  = 30 * time.Second // for a request's body
	writeTimeout = 30 * time.Second // for one write to a gateway that does not read
)

// refusal is an answer that is not the engine's. Its code is stable and goes to
// the log; cause only goes to the log.
type refusal struct {
	status int
	code   string
	cause  error
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return r.code + ": " + r.cause.Error()
	}
	return r.code
}

// forwarded is what is known of a request on its way.
type forwarded struct {
	peer   string
	route  route
	ticket ticket.Verified
	body   []byte // as received
	sent   []byte // as sent to the engine
	info   *info
	work   *work
}

// forward carries one request from a gateway to the engine. The order of its
// steps is its argument: nothing reaches the engine that has not passed all of
// them.
func (r *Relay) forward(w http.ResponseWriter, req *http.Request) {
	f := new(forwarded)
	if err := r.admit(w, req, f); err != nil {
		r.refuse(w, f, err)
		return
	}
	defer r.load.end(f.work)
	r.exchange(w, req, f)
}

// admit is every step before the engine.
func (r *Relay) admit(w http.ResponseWriter, req *http.Request, f *forwarded) error {
	for _, step := range []func(http.ResponseWriter, *http.Request, *forwarded) error{
		r.findRoute,
		r.findPeer,
		r.readBody,
		r.checkTicket,
		r.checkBody,
		r.checkIsolation,
		r.countOnce,
		r.writeDown,
		r.salt,
	} {
		if err := step(w, req, f); err != nil {
			return err
		}
	}
	return nil
}

// findRoute compares the bytes of the request line: no cleaning, no query, no
// encoded slash, no absolute form.
func (r *Relay) findRoute(_ http.ResponseWriter, req *http.Request, f *forwarded) error {
	f.route = route(req.Method + " " + req.RequestURI)
	if !f.route.known() {
		f.route = ""
		return &refusal{status: http.StatusNotFound, code: "not_found"}
	}
	return nil
}

// findPeer takes the identity that the handshake proved. A connection that
// outlives the SVID it was made with no longer proves anything.
func (r *Relay) findPeer(w http.ResponseWriter, req *http.Request, f *forwarded) error {
	if req.TLS == nil {
		return &refusal{status: http.StatusForbidden, code: "no_svid"}
	}
	id, err := workload.PeerID(*req.TLS)
	if err != nil {
		return &refusal{status: http.StatusForbidden, code: "no_svid", cause: err}
	}
	f.peer = id.String()
	svid := req.TLS.PeerCertificates[0]
	left := time.Until(svid.NotAfter)
	if left < min(time.Minute, svid.NotAfter.Sub(svid.NotBefore)/5) {
		w.Header().Set("Connection", "close") // the gateway dials again, with its new one
	}
	if left <= 0 {
		return &refusal{status: http.StatusForbidden, code: "svid_expired"}
	}
	return nil
}

// readBody reads the whole body: it is hashed before anything is believed. A
// request without a ticket is not worth reading.
func (r *Relay) readBody(w http.ResponseWriter, req *http.Request, f *forwarded) error {
	if len(req.Header.Values(ticket.Header)) != 1 {
		return refusedTicket(ticket.ErrMissing)
	}
	// Fails only for a connection that is already broken, which the read shows.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &refusal{status: http.StatusRequestEntityTooLarge, code: "too_large"}
	case err != nil:
		return &refusal{status: http.StatusBadRequest, code: "unreadable_body", cause: err}
	}
	f.body = body
	return nil
}

// checkTicket verifies everything about the ticket but that it is new.
func (r *Relay) checkTicket(_ http.ResponseWriter, req *http.Request, f *forwarded) error {
	t, err := r.register.verifier.Verify(req.Header.Get(ticket.Header), ticket.Expect{
		Peer: f.peer, Audience: r.id, Pool: r.cfg.Pool, Op: string(f.route), Epoch: r.epoch,
		Body: sha256.Sum256(f.body), Now: time.Now(),
	})
	if err != nil {
		return refusedTicket(err)
	}
	f.ticket = t
	if t.Rank >= r.cfg.Engine.ranks() || t.Rank > 0 && !r.cfg.Engine.addressable() {
		return &refusal{status: http.StatusForbidden, code: "wrong_rank"}
	}
	return nil
}

// refusedTicket keeps the details for the log.
func refusedTicket(err error) error {
	var code ticket.Refusal
	if !errors.As(err, &code) {
		code = ticket.ErrMalformed
	}
	return &refusal{status: http.StatusForbidden, code: string(code), cause: err}
}

// checkBody refuses what could make the ticket say something else than the
// body: a second salt, or another model.
func (r *Relay) checkBody(_ http.ResponseWriter, _ *http.Request, f *forwarded) error {
	has, err := splice.Has(f.body, "cache_salt")
	if err != nil {
		return &refusal{status: http.StatusBadRequest, code: "malformed_json", cause: err}
	}
	if has {
		return &refusal{status: http.StatusForbidden, code: "cache_salt_present"}
	}
	var b struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	if err := jsonv2.Unmarshal(f.body, &b); err != nil {
		return &refusal{status: http.StatusBadRequest, code: "malformed_json"} // the cause may quote the body
	}
	want := f.ticket.Model
	if f.ticket.Adapter != "" {
		want = f.ticket.Adapter // engines take an adapter's name for a model's
	}
	if b.Model != want {
		return &refusal{status: http.StatusForbidden, code: "wrong_model"}
	}
	f.work = newWork(&f.ticket.Ticket, len(f.body), b.Stream, time.Now())
	if e := &r.cfg.Engine; e.ranks() > 1 && !e.addressable() {
		f.work.counted = 0 // nobody knows which rank computes it
	}
	return nil
}

// checkIsolation refuses a route that may mix domains, but for the one domain
// that such routes are given over to.
func (r *Relay) checkIsolation(_ http.ResponseWriter, _ *http.Request, f *forwarded) error {
	f.info = r.engineInfo()
	switch {
	case f.info == nil:
		return &refusal{status: http.StatusServiceUnavailable, code: "not_ready"}
	case r.cfg.Engine.Kind == SGLang && f.ticket.Adapter != "":
		// Its events do not tell adapters apart.
		return &refusal{status: http.StatusForbidden, code: "adapter_hidden"}
	case f.info.isolated(f.route):
		return nil
	case slices.Contains(f.info.sole, f.route) && f.ticket.Domain == r.cfg.SaltDomain:
		return nil
	}
	return &refusal{status: http.StatusForbidden, code: "route_not_isolated"}
}

// countOnce lets the ticket count, once, and counts the work.
func (r *Relay) countOnce(_ http.ResponseWriter, _ *http.Request, f *forwarded) error {
	if err := r.replays.Use(f.ticket, time.Now()); err != nil {
		return refusedTicket(err)
	}
	if f.route.counts() {
		r.load.ack(f.gateway(), f.ticket.N) // the engine computes nothing
	} else {
		r.load.start(f.gateway(), f.ticket.N, f.work)
	}
	return nil
}

func (f *forwarded) gateway() gatewayLog { return gatewayLog{f.peer, f.ticket.Log} }

// writeDown appends the ticket to our own log. If that fails, nothing is
// forwarded.
func (r *Relay) writeDown(_ http.ResponseWriter, req *http.Request, f *forwarded) error {
	if err := r.access.served(req.Context(), f); err != nil {
		return &refusal{status: http.StatusServiceUnavailable, code: "audit_unavailable", cause: err}
	}
	return nil
}

// salt adds the cache salt, which leaves this process on loopback only.
func (r *Relay) salt(_ http.ResponseWriter, _ *http.Request, f *forwarded) error {
	f.sent = f.body
	if r.cfg.Engine.Kind == External || f.route.counts() {
		return nil
	}
	quoted, err := json.Marshal(r.salts.salt(f.ticket.Domain, f.ticket.Model))
	if err != nil {
		return &refusal{status: http.StatusInternalServerError, code: "internal", cause: err}
	}
	f.sent, err = splice.Apply(make([]byte, 0, len(f.body)+80), f.body, splice.Set("cache_salt", quoted))
	if err != nil {
		return &refusal{status: http.StatusBadRequest, code: "malformed_json", cause: err}
	}
	r.tickets.add(f)
	return nil
}

// refuse answers and writes the log line.
func (r *Relay) refuse(w http.ResponseWriter, f *forwarded, err error) {
	var ref *refusal
	if !errors.As(err, &ref) {
		ref = &refusal{status: http.StatusInternalServerError, code: "internal", cause: err}
	}
	if f.ticket.N > 0 {
		r.load.ack(f.gateway(), f.ticket.N) // a counter that never came would look like work under way
	}
	if f.work != nil {
		r.load.end(f.work)
	}
	r.counts.refused(ref.code)
	r.log.Warn("request refused", "code", ref.code, "status", ref.status, "peer", f.peer, "op", string(f.route),
		"ticket", f.ticket.ID, "attempt", f.ticket.Attempt, "cause", ref.cause)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(ref.status)
	// The gateway may have gone; then there is nobody to tell.
	_, _ = fmt.Fprintf(w, `{"error":{"message":"refused by relay","type":"relay_refused","code":%q,"param":null}}`, ref.code)
}

// buffers are what answers are copied through.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// exchange sends the request to the engine and the answer back. The request's
// context ends when the gateway goes away, and that cancels the engine's work.
func (r *Relay) exchange(w http.ResponseWriter, req *http.Request, f *forwarded) {
	pooled := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(pooled)
	buf := pooled[:]
	resp, n, err := r.ask(req.Context(), f, buf)
	if err != nil {
		if req.Context().Err() == nil {
			r.refuse(w, f, &refusal{status: http.StatusBadGateway, code: "engine_unreachable", cause: err})
		}
		return
	}
	defer func() { _ = resp.Body.Close() }() // copied to its end or given up
	h := w.Header()
	for _, name := range []string{"Content-Type", "Retry-After"} {
		if v := resp.Header.Get(name); v != "" {
			h.Set(name, v)
		}
	}
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	r.counts.served(resp.StatusCode)
	if err := r.stream(w, resp.Body, buf, n, f.work); err != nil {
		// The gateway must see that the answer is cut, not a tidy end.
		panic(http.ErrAbortHandler)
	}
}

// ask sends the request and returns once the engine answers, which begins with
// the first byte of the body: buf then holds n bytes of it. An engine that breaks
// before that has not answered, and the gateway may try another replica.
func (r *Relay) ask(ctx context.Context, f *forwarded, buf []byte) (resp *http.Response, n int, err error) {
	if resp, err = r.send(ctx, f); err != nil {
		return nil, 0, err
	}
	if resp.StatusCode < http.StatusOK {
		// Only 101 gets here. Passed on, it would take the gateway's connection
		// out of HTTP, and look like a relay that fails.
		return nil, 0, errors.Join(errStatus(resp.StatusCode), resp.Body.Close())
	}
	n, err = io.ReadAtLeast(resp.Body, buf, 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, errors.Join(fmt.Errorf("read answer: %w", err), resp.Body.Close())
	}
	return resp, n, nil
}

func (r *Relay) send(ctx context.Context, f *forwarded) (*http.Response, error) {
	out, err := r.engine.request(ctx, http.MethodPost, f.route.path(), f.sent)
	if err != nil {
		return nil, err
	}
	if r.cfg.Engine.addressable() {
		out.Header.Set(rankHeader, strconv.Itoa(f.ticket.Rank))
	}
	return r.engine.transport.RoundTrip(out)
}

// stream copies the answer, of which buf holds the first n bytes, each piece as
// soon as it is there.
func (r *Relay) stream(w http.ResponseWriter, body io.Reader, buf []byte, n int, wk *work) error {
	out := http.NewResponseController(w)
	if n > 0 {
		r.load.answer(wk)
	}
	for {
		if n > 0 {
			if err := out.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
				return err
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
		}
		var err error
		switch n, err = body.Read(buf); {
		case err == nil:
		case n > 0: // the error comes again
		case errors.Is(err, io.EOF):
			return out.SetWriteDeadline(time.Time{})
		default:
			return err
		}
	}
}
