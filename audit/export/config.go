package export

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// SinkConfig configures one sink: what goes there, how it is written, and where
// it is.
type SinkConfig struct {
	Name   string `yaml:"name"`   // also of its cursor: a sink that is renamed begins anew
	Format string `yaml:"format"` // record, ocsf, ecs or cef; empty: record
	Raw    bool   `yaml:"raw"`    // also hold the exact record, where the format has a place for it
	Limit  int    `yaml:"limit"`  // longest message in bytes; 0: as the kind of sink has it
	Only   Filter `yaml:"only"`
	Except Filter `yaml:"except"`

	To sink.Config `yaml:"to"`
}

// nameForm keeps names fit for files, metrics and messages.
var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// Check returns every problem, each as "field: what is wrong".
func (c *SinkConfig) Check(production bool) error {
	var errs []error
	if !nameForm.MatchString(c.Name) {
		errs = append(errs, fmt.Errorf("name: want 1 to 32 of a-z, 0-9, _ and -, got %q", c.Name))
	}
	if _, err := format.Find(c.Format); err != nil {
		errs = append(errs, fmt.Errorf("format: %w", err))
	}
	if c.Limit != 0 && c.Limit < leastLimit {
		errs = append(errs, fmt.Errorf("limit: want at least %d", leastLimit))
	}
	errs = append(errs, c.Only.check("only"), c.Except.check("except"))
	if err := c.To.Check(production); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// leastLimit has room for what is left of an event when all that can be left
// out has been.
const leastLimit = 4096

// Paths are the fields that name files.
func (c *SinkConfig) Paths() []*string { return c.To.Paths() }
