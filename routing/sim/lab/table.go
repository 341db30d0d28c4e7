package lab

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: %d requests, %d seeds, %d replicas, %d gateways; a cache without limits would find %.1f%% of the prompt tokens\n",
		r.Trace, r.Requests, r.Seeds, r.Replicas, r.Gateways, 100*r.Infinite)
	if err != nil {
		return err
	}
	if f := r.Faults.String(); f != "" {
		if _, err := fmt.Fprintf(w, "faults: %s\n", f); err != nil {
			return err
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	last := Result{}
	for _, x := range r.Results {
		if x.Capacity != last.Capacity || x.Load != last.Load {
			fmt.Fprintf(t, "\ncapacity %g (%d blocks a replica), load %g (%.2f requests/s)\t\t\t\t\t\t\t\t\t\n", x.Capacity, x.blocksByReplica, x.Load, x.requestsPerS)
			fmt.Fprint(t, "strategy\thit\tof oracle\tTTFT p50\tp90\tp99 ms\ttok/s\timbalance\tpreempted\trefused\t\n")
		}
		last = x
		fmt.Fprintf(t, "%s\t%.1f%%\t%.1f%%\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%d\t%d\t\n",
			x.Strategy, 100*x.HitTokensShare, 100*x.OracleShare, x.TTFTP50, x.TTFTP90, x.TTFTP99, x.ThroughputTokS, x.Imbalance, x.preemptions, x.refusals)
	}
	return t.Flush()
}
