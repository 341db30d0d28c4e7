package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
)

// register is a fleet register: every log that there should be, under the key
// that it is verified with. Auditors keep it where the fleet cannot change it.
// Paths are relative to its file.
type register struct {
	SilentAfter time.Duration  `yaml:"silent_after"` // a log without a record for longer is silent; 0: 5 minutes
	Witnesses   tlog.Witnesses `yaml:"witnesses"`    // of the gateways' logs
	Gateways    []registered   `yaml:"gateways"`
	Relays      []registered   `yaml:"relays"`
}

// registered is one log of a register.
type registered struct {
	VKey       string `yaml:"vkey"`       // its verifier key, which names its origin
	Log        string `yaml:"log"`        // directory, or an excerpt
	Checkpoint string `yaml:"checkpoint"` // file with a checkpoint of it that was kept elsewhere
	Since      string `yaml:"since"`      // when it came into service; empty: before anybody cared
	Until      string `yaml:"until"`      // when it went; empty: it has not

	// Of a relay:
	Replica string `yaml:"replica"` // SPIFFE ID
	Region  string `yaml:"region"`  // where it is

	origin       string
	since, until time.Time
}

const defaultSilence = 5 * time.Minute

// loadRegister reads a register. The error holds every problem.
func loadRegister(path string) (*register, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read fleet register: %w", err)
	}
	r := new(register)
	f, err := strictyaml.Decode(path, bytes.NewReader(text), r)
	if err != nil {
		return nil, fmt.Errorf("read fleet register: %w", err)
	}
	k := checker{f}
	if r.SilentAfter == 0 {
		r.SilentAfter = defaultSilence
	}
	if len(r.Gateways) == 0 {
		f.Problem("gateways", "required")
	}
	if err := r.Witnesses.Check(); err != nil {
		f.Problem("witnesses", "%v", err)
	}
	seen := make(map[string]bool)
	for i := range r.Gateways {
		r.Gateways[i].check(k, fmt.Sprintf("gateways[%d]", i), filepath.Dir(path), seen)
	}
	for i := range r.Relays {
		at := fmt.Sprintf("relays[%d]", i)
		r.Relays[i].check(k, at, filepath.Dir(path), seen)
		if _, err := spiffeid.FromString(r.Relays[i].Replica); err != nil {
			f.Problem(at+".replica", "%v", err)
		}
		k.required(at+".region", r.Relays[i].Region)
	}
	return r, f.Err()
}

func (e *registered) check(k checker, at, dir string, seen map[string]bool) {
	v, err := note.NewVerifier(e.VKey)
	if err != nil {
		k.f.Problem(at+".vkey", "%v", err)
	} else if e.origin = v.Name(); seen[e.origin] {
		k.f.Problem(at+".vkey", "log %s stands twice", e.origin)
	}
	seen[e.origin] = true
	for field, t := range map[string]struct {
		text string
		to   *time.Time
	}{"since": {e.Since, &e.since}, "until": {e.Until, &e.until}} {
		if *t.to, err = parseWhen(t.text, time.Time{}); err != nil {
			k.f.Problem(at+"."+field, "%v", err)
		}
	}
	resolve(dir, &e.Log, &e.Checkpoint)
}

// origins says which logs of gateways there should be.
func (r *register) origins() map[string]bool {
	out := make(map[string]bool)
	for _, g := range r.Gateways {
		out[g.origin] = true
	}
	return out
}

// regions says where each replica is.
func (r *register) regions() map[string]string {
	out := make(map[string]string)
	for _, e := range r.Relays {
		out[e.Replica] = e.Region
	}
	return out
}
