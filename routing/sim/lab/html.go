package lab

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
)

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	page := struct {
		*Report
		Charts []chart
		Names  []named
	}{Report: r, Names: r.names()}
	for _, capacity := range r.capacities() {
		page.Charts = append(page.Charts,
			r.chart(fmt.Sprintf("TTFT p90, ms, capacity %g", capacity), capacity, true, func(x *Result) float64 { return x.TTFTP90 }),
			r.chart(fmt.Sprintf("Prompt tokens found cached, %%, capacity %g", capacity), capacity, false, func(x *Result) float64 { return 100 * x.HitTokensShare }),
		)
	}
	if err := pageTemplate.Execute(w, page); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// named is a strategy with its colour and parameters.
type named struct{ Name, Colour, Params string }

// colours can be told apart by most people (Okabe and Ito, and two greys).
var colours = []string{"#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800", "#666666", "#000000"}

func (r *Report) names() (all []named) {
	for _, x := range r.Results {
		if !slices.ContainsFunc(all, func(n named) bool { return n.Name == x.Strategy }) {
			all = append(all, named{x.Strategy, colours[len(all)%len(colours)], r.Tuned[x.Strategy]})
		}
	}
	return all
}

func (r *Report) capacities() (all []float64) {
	for _, x := range r.Results {
		if !slices.Contains(all, x.Capacity) {
			all = append(all, x.Capacity)
		}
	}
	return all
}

// The drawing area of a chart, in pixels.
const (
	left, right, top, bottom = 60, 470, 12, 230
)

type chart struct {
	Title string
	Lines []line
	Ticks []tick // of the value
	Loads []tick
}

type line struct {
	Colour, Name, Points string
	Dots                 []dot
}

type dot struct {
	X, Y  float64
	Value string
}

type tick struct {
	At    float64
	Label string
}

// chart draws a value over the load for each strategy.
func (r *Report) chart(title string, capacity float64, logarithmic bool, value func(*Result) float64) chart {
	var rows []*Result
	var loads, values []float64
	for i := range r.Results {
		if x := &r.Results[i]; x.Capacity == capacity {
			rows = append(rows, x)
			loads, values = append(loads, x.Load), append(values, value(x))
		}
	}
	y := linear(0, 100)
	ticks := []float64{0, 25, 50, 75, 100}
	if logarithmic {
		lo, hi := math.Pow(10, math.Floor(math.Log10(max(slices.Min(values), 0.1)))), math.Pow(10, math.Ceil(math.Log10(max(slices.Max(values), 1))))
		if hi <= lo {
			hi = 10 * lo
		}
		scale := linear(math.Log10(lo), math.Log10(hi))
		y = func(v float64) float64 { return scale(math.Log10(max(v, lo))) }
		ticks = nil
		for v := lo; v <= hi*1.01; v *= 10 {
			ticks = append(ticks, v)
		}
	}
	lo, hi := slices.Min(loads), slices.Max(loads)
	x := func(load float64) float64 {
		if hi == lo {
			return (left + right) / 2
		}
		return left + 10 + (load-lo)/(hi-lo)*(right-left-20)
	}
	c := chart{Title: title}
	for _, v := range ticks {
		c.Ticks = append(c.Ticks, tick{y(v), fmt.Sprintf("%g", v)})
	}
	slices.Sort(loads)
	for _, l := range slices.Compact(loads) {
		c.Loads = append(c.Loads, tick{x(l), fmt.Sprintf("%g", l)})
	}
	for _, n := range r.names() {
		out := line{Colour: n.Colour, Name: n.Name}
		for _, row := range rows {
			if row.Strategy == n.Name {
				d := dot{x(row.Load), y(value(row)), fmt.Sprintf("%s: %.4g", n.Name, value(row))}
				out.Dots = append(out.Dots, d)
				out.Points += fmt.Sprintf("%.1f,%.1f ", d.X, d.Y)
			}
		}
		c.Lines = append(c.Lines, out)
	}
	return c
}

// linear maps lo..hi to the chart's height, upwards.
func linear(lo, hi float64) func(float64) float64 {
	return func(v float64) float64 { return bottom - (v-lo)/(hi-lo)*(bottom-top) }
}

var pageTemplate = template.Must(template.New("lab").Funcs(template.FuncMap{
	"percent": func(x float64) string { return fmt.Sprintf("%.1f", 100*x) },
	"whole":   func(x float64) string { return fmt.Sprintf("%.0f", x) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Placement lab: {{.Trace}}</title>
<style>
body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}
h1{font-size:1.4em}h2{font-size:1em;margin:0}
.charts{display:flex;flex-wrap:wrap;gap:1.5em}
svg text{font-size:11px;fill:#555}
.key span{display:inline-block;margin-right:1.2em;white-space:nowrap}
.key i{display:inline-block;width:1em;height:3px;margin-right:.4em;vertical-align:middle}
table{border-collapse:collapse;margin-top:2em}td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}
tr.kv{background:#fff3ea}
</style></head><body>
<h1>Placement lab: {{.Trace}}</h1>
<p>{{.Requests}} requests, {{.Seeds}} seeds, {{.Replicas}} replicas, {{.Gateways}} gateways{{with .Faults.String}}, faults {{.}}{{end}}.
A cache without limits would find {{percent .Infinite}} % of the prompt tokens.
Load 1.0 is what the oracle can just carry: {{range $c, $r := .Saturation}}{{printf "%.2f" $r}} requests/s at capacity {{$c}}; {{end}}everybody gets the same absolute rates.
The oracle sees the first {{.OracleShare}} requests; <em>of oracle</em> compares hit tokens on those.</p>
<p class="key">{{range .Names}}<span><i style="background:{{.Colour}}"></i>{{.Name}}{{with .Params}} ({{.}}){{end}}</span>{{end}}</p>
<div class="charts">{{range .Charts}}<figure style="margin:0"><h2>{{.Title}}</h2>
<svg width="490" height="262" role="img" aria-label="{{.Title}}, by load">
{{range .Ticks}}<line x1="60" x2="470" y1="{{.At}}" y2="{{.At}}" stroke="#e4e4e4"/><text x="54" y="{{.At}}" dy="4" text-anchor="end">{{.Label}}</text>{{end}}
{{range .Loads}}<text x="{{.At}}" y="246" text-anchor="middle">{{.Label}}</text>{{end}}<text x="265" y="260" text-anchor="middle">load</text>
{{range .Lines}}{{$c := .Colour}}<polyline points="{{.Points}}" fill="none" stroke="{{$c}}" stroke-width="2"/>{{range .Dots}}<circle cx="{{.X}}" cy="{{.Y}}" r="3.5" fill="{{$c}}"><title>{{.Value}}</title></circle>{{end}}{{end}}
</svg></figure>{{end}}</div>
<table><tr><th>strategy</th><th>load</th><th>capacity</th><th>hit %</th><th>of oracle %</th><th>TTFT p50 ms</th><th>p90</th><th>p99</th><th>tok/s</th><th>imbalance</th></tr>
{{range .Results}}<tr class="{{.Strategy}}"><td>{{.Strategy}}</td><td>{{.Load}}</td><td>{{.Capacity}}</td><td>{{percent .HitTokensShare}}</td><td>{{percent .OracleShare}}</td><td>{{whole .TTFTP50}}</td><td>{{whole .TTFTP90}}</td><td>{{whole .TTFTP99}}</td><td>{{whole .ThroughputTokS}}</td><td>{{printf "%.2f" .Imbalance}}</td></tr>
{{end}}</table></body></html>
`))
