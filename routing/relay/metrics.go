package relay

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// metrics is what we read from an engine's Prometheus page. Over several ranks
// counts are sums and the usage is the largest.
type metrics struct {
	blockSize, numBlocks int     // 0 unknown
	running, waiting     float64 // requests
	hasWaiting           bool
	usage                float64 // share of blocks in use, 0 to 1
	asleep               bool    // an engine sleeps, and has dropped its cache
	started              float64 // Unix seconds, 0 unknown
}

// usedBlocks is how many blocks are in use, 0 if the capacity is unknown.
func (m metrics) usedBlocks() uint64 {
	return uint64(min(max(m.usage, 0), 1) * float64(m.numBlocks))
}

// metricNames are the names of each dialect.
var metricNames = map[string]func(*metrics, float64){
	"vllm:num_requests_running":  func(m *metrics, v float64) { m.running += v },
	"vllm:num_requests_waiting":  func(m *metrics, v float64) { m.waiting, m.hasWaiting = m.waiting+v, true },
	"vllm:kv_cache_usage_perc":   func(m *metrics, v float64) { m.usage = max(m.usage, v) },
	"vllm:gpu_cache_usage_perc":  func(m *metrics, v float64) { m.usage = max(m.usage, v) }, // before 0.10
	"sglang:num_running_reqs":    func(m *metrics, v float64) { m.running += v },
	"sglang:num_queue_reqs":      func(m *metrics, v float64) { m.waiting, m.hasWaiting = m.waiting+v, true },
	"sglang:token_usage":         func(m *metrics, v float64) { m.usage = max(m.usage, v) },
	"process_start_time_seconds": func(m *metrics, v float64) { m.started = v },
	"vllm:cache_config_info":     nil, // its labels count
	"sglang:cache_config_info":   nil,
}

// sleepState is vLLM's metric of whether it sleeps: 1 for the state that it is
// in, by label.
const sleepState = "vllm:engine_sleep_state"

// parseMetrics reads the text format, the few names that we need.
func parseMetrics(r io.Reader) (metrics, error) {
	var m metrics
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, labels, value, ok := cutSample(lines.Text())
		if !ok {
			continue
		}
		set, known := metricNames[name]
		switch {
		case set != nil:
			set(&m, value)
		case name == sleepState:
			m.asleep = m.asleep || strings.Contains(labels, `sleep_state="awake"`) && value == 0
		case known:
			m.config(labels)
		}
	}
	return m, lines.Err()
}

// cutSample takes `name{labels} value` apart. Labels of the metrics we read
// hold no escaped quotes or braces.
func cutSample(line string) (name, labels string, value float64, ok bool) {
	if strings.HasPrefix(line, "#") {
		return "", "", 0, false
	}
	name, rest := line, ""
	if i := strings.IndexAny(line, "{ "); i >= 0 {
		name, rest = line[:i], line[i:]
	}
	if strings.HasPrefix(rest, "{") {
		end := strings.LastIndexByte(rest, '}')
		if end < 0 {
			return "", "", 0, false
		}
		labels, rest = rest[1:end], rest[end+1:]
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", "", 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	return name, labels, value, err == nil
}

// config reads the labels of a cache_config_info metric.
func (m *metrics) config(labels string) {
	for _, pair := range strings.Split(labels, ",") {
		k, v, _ := strings.Cut(pair, "=")
		n, err := strconv.Atoi(strings.Trim(v, `"`))
		if err != nil || n < 0 {
			continue
		}
		switch strings.TrimSpace(k) {
		case "block_size", "page_size":
			m.blockSize = n
		case "num_gpu_blocks", "num_pages":
			m.numBlocks = n
		}
	}
}
