package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// demoLog is a log of the demonstration, as its fleet register lists it.
type demoLog struct {
	dir   string // relative to the demonstration's
	vkey  string
	since time.Time
	until time.Time // zero: it is in service
}

// newLog makes the key of a log. The log itself is made by who opens it.
func (w *demoWorld) newLog(name, dir, keyFile string) (demoLog, error) {
	vkey, err := createLogKey(filepath.Join(w.dir, keyFile), demoDomain+"/"+name)
	return demoLog{dir: dir, vkey: vkey, since: time.Now()}, err
}

func (w *demoWorld) registerFile() string { return filepath.Join(w.dir, "fleet.yaml") }

// writeRegister writes the fleet register that an auditor would keep: every log
// that there is, and where each replica is.
func (w *demoWorld) writeRegister() error {
	entry := func(l demoLog) map[string]any {
		e := map[string]any{"vkey": l.vkey, "log": l.dir, "since": l.since.UTC().Format(time.RFC3339Nano)}
		if l.until.IsZero() {
			l.until = w.ended
		}
		if !l.until.IsZero() {
			e["until"] = l.until.UTC().Format(time.RFC3339Nano)
		}
		return e
	}
	var relays []any
	for _, id := range slices.Sorted(maps.Keys(w.replicas)) {
		l := w.replicas[id].log
		if l.vkey == "" {
			continue
		}
		e := entry(l)
		e["replica"], e["region"] = id, demoRegion
		relays = append(relays, e)
	}
	return writeYAML(w.registerFile(), map[string]any{"gateways": []any{entry(w.log)}, "relays": relays})
}

// audited prints what an auditor does with the logs, of the time that the tour
// took.
func (w *demoWorld) audited(out io.Writer) {
	until := w.ended
	if until.IsZero() {
		until = w.toured
	}
	span := fmt.Sprintf("--since %s --until %s", w.log.since.UTC().Format(time.RFC3339Nano), until.UTC().Format(time.RFC3339Nano))
	fmt.Fprintf(out, `
The gateway's log and the relays' logs of the tickets they served, as an auditor holds them:

  go run ./cmd/sallyport audit verify --fleet '%[1]s'
  go run ./cmd/sallyport audit residency --fleet '%[1]s' --tenant acme --label restricted --region %[2]s %[3]s
  go run ./cmd/sallyport audit query '%[4]s' --label restricted
`, w.registerFile(), demoRegion, span, w.logDir)
}
