package ticket

import "fmt"

// Signer signs tickets with the key of one gateway's log. It is safe for
// concurrent use where its signing function is.
type Signer struct {
	origin string
	sign   func(msg []byte) ([]byte, error)
}

// NewSigner returns a signer for the log with the given origin. sign returns
// the bare Ed25519 signature of msg; a note.Signer's Sign method does.
func NewSigner(origin string, sign func(msg []byte) ([]byte, error)) (*Signer, error) {
	if origin == "" || sign == nil {
		return nil, fmt.Errorf("ticket signer: needs a log origin and a signing function")
	}
	return &Signer{origin, sign}, nil
}

// Sign returns the header value for t. It sets the version and the log itself.
func (s *Signer) Sign(t Ticket) (string, error) {
	t.V, t.Log = Version, s.origin
	if err := t.valid(); err != nil {
		return "", fmt.Errorf("sign ticket: %w", err)
	}
	payload, err := t.payload()
	if err != nil {
		return "", fmt.Errorf("sign ticket: %w", err)
	}
	sig, err := s.sign(append([]byte(context), payload...))
	if err != nil {
		return "", fmt.Errorf("sign ticket: %w", err)
	}
	header := encoding.EncodeToString(payload) + "." + encoding.EncodeToString(sig)
	if len(header) > MaxHeader {
		return "", fmt.Errorf("sign ticket: %d bytes, at most %d", len(header), MaxHeader)
	}
	return header, nil
}
