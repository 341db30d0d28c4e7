package lab

import "slices"

// measure is what runs of one strategy came to.
type measure struct {
	ttft        []int64 // ns, of every call
	prompt      int64   // tokens
	hit         int64
	output      int64
	span        int64 // ns, from the first arrival to the last end
	imbalance   float64
	runs        int
	refusals    int
	failed      int
	preemptions int
}

// simulate is one run.
func simulate(s setup, c choice) (*measure, error) {
	w, err := newWorld(s, c.make)
	if err != nil {
		return nil, err
	}
	if err := w.run(); err != nil {
		return nil, err
	}
	return w.measure(), nil
}

func (w *world) measure() *measure {
	m := &measure{runs: 1, span: w.last - w.calls[0].arrived}
	for _, c := range w.calls {
		m.ttft = append(m.ttft, c.first-c.arrived)
		m.prompt += int64(c.req.Prompt)
		m.output += int64(c.job.made)
		m.hit += int64(c.job.hit)
		m.refusals += c.refusals
		if c.failed {
			m.failed++
		}
	}
	most, all := int64(0), int64(0)
	for _, x := range w.replicas {
		most = max(most, x.engine.computed)
		all += x.engine.computed
		m.preemptions += x.engine.preemptions
	}
	m.imbalance = share(float64(most)*float64(len(w.replicas)), float64(all))
	return m
}

// add pools the runs of other seeds.
func (m *measure) add(o *measure) {
	m.ttft = append(m.ttft, o.ttft...)
	m.prompt += o.prompt
	m.hit += o.hit
	m.output += o.output
	m.span += o.span
	m.imbalance = (m.imbalance*float64(m.runs) + o.imbalance*float64(o.runs)) / float64(m.runs+o.runs)
	m.runs += o.runs
	m.refusals += o.refusals
	m.failed += o.failed
	m.preemptions += o.preemptions
}

// quantile is the TTFT, in ms, that a share q of the calls stayed within.
func (m *measure) quantile(q float64) float64 {
	if len(m.ttft) == 0 {
		return 0
	}
	slices.Sort(m.ttft)
	i := max(int(q*float64(len(m.ttft))+0.999999)-1, 0)
	return float64(m.ttft[i]/1000) / 1000
}

func (m *measure) hitShare() float64 { return share(float64(m.hit), float64(m.prompt)) }

func (m *measure) throughput() float64 {
	return share(float64(m.prompt+m.output), float64(m.span)/1e9)
}
