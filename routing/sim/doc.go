// Package sim is a stand-in for an inference engine: what a gateway and a relay
// see of vLLM, without a GPU. It serves vLLM's HTTP surface, publishes its ZMQ
// KV-cache events, and has a real block cache behind a timing model, so that
// what it reports as cached is what its cache held.
//
// Start at [New] and [Engine.Run]. The parts: cache (physical blocks, their
// hashes, eviction), scheduler (continuous batching, one step at a time, with
// no clock), answer (what it says), and the HTTP server.
//
// It copies vLLM's blemishes on purpose. Blocks are not deduplicated, so that
// one hash may be stored and removed several times; events leave only with a
// step, so that an idle engine keeps them; and a route may be told to ignore
// the salt, as vLLM's does where the request has no field for it.
package sim
