package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Faults is what goes wrong during a run. The zero value is nothing.
type Faults struct {
	EventLoss   float64 // share of event batches that do not arrive
	ReplicaLoss bool    // a replica is lost after a third of the run, and back after a sixth
	ModelRoll   bool    // replica after replica is drained and restarted, from a third of the run on
}

// ParseFaults reads a list such as "event-loss=0.01,replica-loss,model-roll".
func ParseFaults(s string) (Faults, error) {
	var f Faults
	for item := range strings.SplitSeq(s, ",") {
		name, value, valued := strings.Cut(strings.TrimSpace(item), "=")
		switch {
		case name == "" && !valued:
		case name == "replica-loss" && !valued:
			f.ReplicaLoss = true
		case name == "model-roll" && !valued:
			f.ModelRoll = true
		case name == "event-loss" && valued:
			p, err := strconv.ParseFloat(value, 64)
			if err != nil || !(p >= 0 && p < 1) {
				return Faults{}, fmt.Errorf("fault %q: want a share from 0 to below 1", item)
			}
			f.EventLoss = p
		default:
			return Faults{}, fmt.Errorf("fault %q: want event-loss=SHARE, replica-loss or model-roll", item)
		}
	}
	return f, nil
}

// With is f and g together.
func (f Faults) With(g Faults) Faults {
	return Faults{max(f.EventLoss, g.EventLoss), f.ReplicaLoss || g.ReplicaLoss, f.ModelRoll || g.ModelRoll}
}

// errAlone says that there is nobody to take over.
var errAlone = errors.New("losing or rolling a replica needs another")

func (f Faults) check(replicas int) error {
	if replicas < 2 && (f.ReplicaLoss || f.ModelRoll) {
		return errAlone
	}
	return nil
}

// plan schedules the faults of a run whose requests come within span.
func (w *world) plan(span int64) {
	if w.faults.ReplicaLoss {
		w.at(span/3, func() { w.lose(0) })
		w.at(span/2, func() { w.replicas[0].out = false })
	}
	if w.faults.ModelRoll {
		w.at(span/3, func() { w.roll(0, max(span/50, ms)) })
	}
}

// lose takes a replica away with everything on it. What has had no token yet is
// placed anew; a stream that has begun ends.
func (w *world) lose(r int) {
	x := w.replicas[r]
	x.out = true
	jobs := x.engine.fail()
	for _, l := range x.coming {
		jobs = append(jobs, l.job)
	}
	x.coming = nil
	x.wake++
	w.restarted(r)
	clear(x.work)
	for _, j := range jobs {
		c := w.byJob[j]
		w.at(w.now+detection, func() { w.cutOff(c, j) })
	}
}

// restarted makes gateways forget what an engine held that is now empty.
func (w *world) restarted(r int) {
	x := w.replicas[r]
	x.lost, x.hole = nil, false
	if w.view != nil {
		w.at(w.now+eventLag, func() { w.view.streams[r].Clear() })
	}
}

// cutOff is a caller whose replica is gone.
func (w *world) cutOff(c *call, j *job) {
	if c.over || c.job != j {
		return
	}
	if c.first > 0 {
		c.failed = true
		w.finish(c)
		return
	}
	w.strategy.end(w, c)
	delete(w.byJob, j)
	w.place(c)
}

// roll drains a replica, restarts it empty, and goes on to the next.
func (w *world) roll(r int, restart int64) {
	if r == len(w.replicas) {
		return
	}
	x := w.replicas[r]
	x.out = true
	if x.engine.busy || len(x.coming) > 0 {
		w.at(w.now+100*ms, func() { w.roll(r, restart) })
		return
	}
	x.engine.fail()
	x.wake++
	w.restarted(r)
	w.at(w.now+restart, func() {
		x.out = false
		w.roll(r+1, restart)
	})
}

// String is the list that ParseFaults reads.
func (f Faults) String() string {
	var all []string
	if f.EventLoss > 0 {
		all = append(all, "event-loss="+strconv.FormatFloat(f.EventLoss, 'g', -1, 64))
	}
	if f.ReplicaLoss {
		all = append(all, "replica-loss")
	}
	if f.ModelRoll {
		all = append(all, "model-roll")
	}
	return strings.Join(all, ",")
}
