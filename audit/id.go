package audit

import "github.com/google/uuid"

// NewID returns a UUIDv7, for a record or a decision. It panics if the system
// has no random bytes.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
