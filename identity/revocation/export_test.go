package revocation

import "context"

// Digest is the ID that the entry ought to have.
func (e *Entry) Digest() string { return e.id() }

// Look reads the source once, as Run does every second.
func (r *Register) Look(ctx context.Context) error { return r.look(ctx) }
