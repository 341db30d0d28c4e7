package lab

import (
	"fmt"

	"github.com/sallyport-ai/sallyport/routing"
)

// Strategies are the names of the strategies there are.
func Strategies() []string {
	return []string{"kv", "approx", "prefix-hash", "sticky", "least-load", "round-robin", "llm-d", "dynamo", "oracle"}
}

// choice is a strategy with its parameters.
type choice struct {
	name   string
	params string // for people; empty where there are none
	make   func(w *world) (strategy, traits)
}

// Reports come half as often as relays send them, which is how the figures in
// docs/lab.md were found, and as often as llm-d and the inference extension scrape.
const (
	relayEvery  = 100 * ms
	scrapeEvery = 50 * ms
)

// choicesOf are the parameters to try for a strategy: what its makers
// recommend, and what lies around it.
func choicesOf(name string) ([]choice, error) {
	switch name {
	case "kv":
		return []choice{{name, "", func(w *world) (strategy, traits) {
			return newKV(w, routing.Probabilistic), traits{events: true, loss: suspend, every: relayEvery}
		}}}, nil
	case "oracle":
		return []choice{{name, "", func(w *world) (strategy, traits) { return newOracle(w), traits{} }}}, nil
	case "round-robin":
		return []choice{{name, "", func(w *world) (strategy, traits) {
			return &roundRobin{newTallies(w), make([]int, w.gateways)}, traits{}
		}}}, nil
	case "least-load":
		return leastLoads(), nil
	case "sticky":
		return hashes(name, 0), nil
	case "prefix-hash":
		return hashes(name, 256, 1024, 4096, 16384), nil
	case "approx":
		return approxes(), nil
	case "llm-d":
		return append(llmdClassics(), llmdFilters()...), nil
	case "dynamo":
		return dynamos(), nil
	}
	return nil, fmt.Errorf("strategy %q: want one of %v", name, Strategies())
}

func leastLoads() (all []choice) {
	for _, tokens := range []bool{false, true} {
		all = append(all, choice{"least-load", fmt.Sprintf("tokens=%v", tokens), func(w *world) (strategy, traits) {
			return &leastLoad{newTallies(w), tokens}, traits{}
		}})
	}
	return all
}

func hashes(name string, prefixes ...int) (all []choice) {
	for _, p := range prefixes {
		for _, bound := range []float64{1.25, 1.5, 2, 0} {
			params := fmt.Sprintf("bound=%g", bound)
			if p > 0 {
				params = fmt.Sprintf("tokens=%d %s", p, params)
			}
			all = append(all, choice{name, params, func(w *world) (strategy, traits) {
				return &hashed{newTallies(w), p, bound}, traits{}
			}})
		}
	}
	return all
}

func approxes() (all []choice) {
	const defaultBlocks = 31_250 * 16 // tokens that the LRU of a replica remembers by default
	for _, p := range []profile{{1, 1, 1}, {2, 1, 1}, {3, 2, 2}, {3, 1, 1}, {5, 1, 1}} {
		for _, real := range []bool{false, true} {
			all = append(all, choice{"approx", fmt.Sprintf("prefix:queue:kv=%g:%g:%g lru=%s", p.prefix, p.queue, p.memory, map[bool]string{false: "default", true: "capacity"}[real]), func(w *world) (strategy, traits) {
				blocks := defaultBlocks / w.trace.Block
				if real {
					blocks = w.blocks
				}
				return newApprox(w, p, blocks), traits{every: scrapeEvery}
			}})
		}
	}
	return all
}

func newLLMD(w *world, p profile, long float64, penalty int64, guess bool) *llmd {
	s := &llmd{
		tallies: newTallies(w), scraped: newScraped(w.setup.replicas), deep: make([]int, w.setup.replicas),
		profile: p, long: long, penalty: penalty, guess: guess,
	}
	if guess {
		s.routed = newRouted(w)
	}
	return s
}

func llmdClassics() (all []choice) {
	for _, p := range []profile{{1, 1, 1}, {2, 1, 1}, {3, 2, 2}, {3, 1, 1}} {
		for _, long := range []float64{0, 0.5} {
			all = append(all, choice{"llm-d", fmt.Sprintf("prefix:kv:queue=%g:%g:%g w=%g", p.prefix, p.memory, p.queue, long), func(w *world) (strategy, traits) {
				return newLLMD(w, p, long, 0, true), traits{events: true, loss: forget, every: scrapeEvery}
			}})
		}
	}
	return all
}

func llmdFilters() (all []choice) {
	for _, seconds := range []float64{0.5, 2, 18} {
		for _, guess := range []bool{false, true} {
			all = append(all, choice{"llm-d", fmt.Sprintf("affinity-filter penalty=%gs speculative=%v", seconds, guess), func(w *world) (strategy, traits) {
				return newLLMD(w, profile{}, 0, int64(seconds*1e9), guess), traits{events: true, loss: forget, every: scrapeEvery}
			}})
		}
	}
	return all
}

func dynamos() (all []choice) {
	for _, scale := range []float64{0.5, 1, 2, 4, 8} {
		for _, guess := range []bool{false, true} {
			all = append(all, choice{"dynamo", fmt.Sprintf("prefill-scale=%g predict=%v", scale, guess), func(w *world) (strategy, traits) {
				return newDynamo(w, scale, guess), traits{events: true, loss: replay}
			}})
		}
	}
	return all
}
