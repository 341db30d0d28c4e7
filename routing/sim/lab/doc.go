// Package lab is the placement lab: it replays a trace of requests against a
// simulated fleet under several placement strategies and says how much of the
// prompts each found cached and how long callers waited.
//
// Start at [Run]. The parts: trace (what is asked), engine (one replica, one
// step at a time), world (the discrete events of a fleet), a file for each
// family of strategies, tune (the rivals at their best) and report.
//
// # What is real
//
// The strategy kv places with [routing.Place] on a [kvindex.Index] that is fed
// as a relay's Watch feeds it, and keeps the accounts of package ledger about
// replicas, as package fleet does. The index follows the engines with a lag, loses
// batches where told to, and each gateway knows only its own dispatches and
// what relays acknowledge.
//
// # What is not our formula
//
// The engine is a model of a scheduler: continuous batching, chunked prefill
// within a budget of tokens, attention that grows with context, preemption when
// memory runs out, and an LRU of physical blocks that are not deduplicated. It
// takes the steps of package sim's scheduler, to the nanosecond (a test compares
// them), but knows blocks by number instead of hashing tokens and passes over runs
// of steps that only decode: thousands of requests take a second.
//
// Everything is integers and seeded generators: a run with the same arguments
// gives the same bytes.
package lab
