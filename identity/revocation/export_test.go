package revocation

import "context"

// Look reads the source once, as Run does every second.
func (r *Register) Look(ctx context.Context) error { return r.look(ctx) }
