package revocation

import "context"

// Digest is the ID that the entry ought to have.
func (e *Entry) Digest() string { return e.id() }

// With is the entry with members more, as a later version may write it.
func (e Entry) With(members string) Entry {
	e.more = members
	e.ID = e.id()
	return e
}

// Look reads the source once, as Run does every second.
func (r *Register) Look(ctx context.Context) error { return r.look(ctx) }
