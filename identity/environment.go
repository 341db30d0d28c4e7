package identity

import (
	"errors"
	"fmt"
)

// ErrProduction is the refusal of a development part to work in production.
var ErrProduction = errors.New("refused: a development authority has no place in production")

// RefuseProduction returns an error that wraps [ErrProduction] unless the
// environment is demo, development or test. Anything unheard of, the empty name
// too, counts as production.
func RefuseProduction(environment string) error {
	switch environment {
	case "demo", "development", "test":
		return nil
	}
	return fmt.Errorf("environment %q: %w", environment, ErrProduction)
}
