package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// printer shows the tour: to a person as a table, to a program as one JSON
// object a line.
type printer struct {
	w    io.Writer
	json *json.Encoder // nil: a person reads
}

func newPrinter(w io.Writer, asJSON bool) *printer {
	p := &printer{w: w}
	if asJSON {
		p.json = json.NewEncoder(w)
		p.json.SetEscapeHTML(false)
	}
	return p
}

const demoRow = "%-25s %-13s %-16s %-13s %-6s %-13s %-11s %9s %6s  %s\n"

func (p *printer) begin(w *demoWorld) {
	if p.json != nil {
		return
	}
	fmt.Fprintf(p.w, "Six engines with a relay each, in the pools general, agents and restricted; one impostor; one gateway.\n"+
		"Identities come from a development SPIFFE authority, tokens from a development issuer. Everything is in %s.\n\n", w.dir)
	fmt.Fprintf(p.w, demoRow, "STEP", "WHO", "CLASS", "LABEL", "STATUS", "REPLICA", "BASIS", "PREDICTED", "CACHED", "REASON")
}

// step prints one step; says is what it shows, for a person.
func (p *printer) step(s demoStep, says string) error {
	if p.json != nil {
		return p.json.Encode(s)
	}
	_, err := fmt.Fprintf(p.w, demoRow+"    %s\n", s.Step, dash(s.Identity), dash(s.Class), dash(s.Label), number(s.Status),
		shortReplica(s.Replica), dash(s.Basis), number(s.Predicted), number(s.Cached), dash(s.Reason), says)
	return err
}

func (p *printer) summary(s demoSummary) error {
	if p.json != nil {
		return p.json.Encode(s)
	}
	verdict := "verifies against the key that was pinned when it was made"
	if !s.LogVerified {
		verdict = "DOES NOT VERIFY"
	}
	_, err := fmt.Fprintf(p.w, "\n%d steps, all as expected. The log has %d records and %s.\n", s.Steps, s.Records, verdict)
	return err
}

func dash(s *string) string {
	if s == nil || *s == "" {
		return "-"
	}
	return *s
}

func number(n *int) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// shortReplica is the part of a replica's SPIFFE ID that differs.
func shortReplica(id *string) string {
	_, rest, ok := strings.Cut(dash(id), "/pool/")
	if !ok {
		return dash(id)
	}
	return rest
}
