// Package ledger keeps accounts of a replica: how fast it computes, how much of
// what it claims comes true, what was sent to it that it has not told of yet, and
// which prefixes are on their way into its cache.
//
// Start at [Work], which makes the numbers of a [routing.Candidate] out of them.
// Nothing here has a clock, a lock or a socket: whoever keeps an account gives
// the times and guards it. Package fleet keeps them about live replicas, the
// placement lab about simulated ones, and a relay the [Meter] of its engine.
package ledger
