package ticket

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"sync"
	"time"
)

// Refusal is why a ticket does not count. Errors of this package wrap one; its
// text is a stable code for log lines.
type Refusal string

// The refusals.
const (
	ErrMissing        Refusal = "no_ticket"
	ErrMalformed      Refusal = "malformed_ticket"
	ErrUnknownGateway Refusal = "unknown_gateway" // no log is registered for the peer
	ErrLog            Refusal = "wrong_log"       // names a log that is not the peer's
	ErrSignature      Refusal = "bad_signature"   // not signed by the key of that log
	ErrExpired        Refusal = "expired"
	ErrTooFarAhead    Refusal = "expires_too_late"
	ErrAudience       Refusal = "wrong_audience"
	ErrEpoch          Refusal = "wrong_epoch"
	ErrPool           Refusal = "wrong_pool"
	ErrOperation      Refusal = "wrong_operation"
	ErrBody           Refusal = "wrong_body"
	ErrReplayed       Refusal = "replayed"
	ErrReplayFull     Refusal = "replay_set_full"
)

// Error implements error.
func (r Refusal) Error() string { return "ticket refused: " + string(r) }

// Expect is what a ticket must say to count here and now. Every field is
// compared; none is optional.
type Expect struct {
	Peer     string // SPIFFE ID proven on the connection that brought the ticket
	Audience string // our own SPIFFE ID
	Pool     string
	Op       string // method and route of the request
	Epoch    string // of this process
	Body     Digest // of the bytes received
	Now      time.Time
}

// Verifier knows the logs of each gateway, and their keys. The zero Verifier
// knows none and refuses everything. It is safe for concurrent use.
type Verifier struct {
	mu   sync.RWMutex
	keys map[string]map[string]Key // by SPIFFE ID, then by log origin
}

// SetKey registers key for the gateway with the SPIFFE ID peer, in place of an
// earlier one of the same log. Gateways that share an ID have a log each.
func (v *Verifier) SetKey(peer string, key Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys == nil {
		v.keys = make(map[string]map[string]Key)
	}
	if v.keys[peer] == nil {
		v.keys[peer] = make(map[string]Key)
	}
	v.keys[peer][key.Origin] = key
}

// Key returns the key registered for a log of peer; the zero Key if there is
// none.
func (v *Verifier) Key(peer, origin string) Key {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.keys[peer][origin]
}

// knows reports whether any log is registered for peer.
func (v *Verifier) knows(peer string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.keys[peer]) > 0
}

// Verified is a ticket that was signed by the gateway it came from and says
// what was expected.
type Verified struct {
	Ticket
	Sum [sha256.Size]byte // of the payload: what a ReplaySet remembers
}

// Verify checks header against everything but replay. The error wraps a
// [Refusal].
func (v *Verifier) Verify(header string, e Expect) (Verified, error) {
	if header == "" {
		return Verified{}, ErrMissing
	}
	payload, sig, err := split(header)
	if err != nil {
		return Verified{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	t, err := parse(payload)
	if err != nil {
		return Verified{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if !v.knows(e.Peer) {
		return Verified{}, ErrUnknownGateway
	}
	key := v.Key(e.Peer, t.Log)
	if key.IsZero() {
		return Verified{}, ErrLog
	}
	if !ed25519.Verify(key.Public, append([]byte(context), payload...), sig) {
		return Verified{}, ErrSignature
	}
	if err := t.expect(e); err != nil {
		return Verified{}, err
	}
	return Verified{Ticket: t, Sum: sha256.Sum256(payload)}, nil
}

// expect compares t with what must be true here and now.
func (t *Ticket) expect(e Expect) error {
	now := e.Now.Unix()
	switch {
	case t.Exp <= now:
		return ErrExpired
	case t.Exp > now+int64(MaxAhead/time.Second):
		return ErrTooFarAhead
	case t.Audience != e.Audience:
		return ErrAudience
	case t.Epoch != e.Epoch:
		return ErrEpoch
	case t.Pool != e.Pool:
		return ErrPool
	case t.Op != e.Op:
		return ErrOperation
	case subtle.ConstantTimeCompare(t.Body[:], e.Body[:]) != 1:
		return ErrBody
	}
	return nil
}
