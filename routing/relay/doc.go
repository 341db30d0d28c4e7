// Package relay is the sidecar beside one inference engine: the only way to it
// from the network, and the one that knows what is in its KV cache.
//
// Start at [New] and [Relay.Run]. One listener speaks TLS 1.3 to the gateways
// that are named in the configuration and to nobody else. On it, by ALPN:
//
//   - HTTP/1.1 carries inference. A request needs a ticket (package ticket)
//     that says what is true of it; see forward.go, which is read top to bottom.
//   - HTTP/2 carries the residency service; see watch.go.
//
// # Cache isolation
//
// The relay derives the engine's cache_salt from the ticket's cache domain, and
// no other process ever holds it (salt.go). That the engine honours the salt is
// not believed but tried out, for each route, whenever the engine has started
// (probe.go). A route for which it could not be shown is refused, or serves
// the one domain that the configuration names.
//
// # The mirror
//
// The engine tells of each block that it stores or evicts. The mirror
// (mirror.go) is a forest (forest.go) of those blocks by engine hash; stream.go
// decides from sequence numbers whether the mirror can be believed; hub.go tells
// subscribers what changed (flush.go), every [flushEvery] at most. All are without
// sockets. Where anything is in doubt the mirror says less than the engine holds,
// never more.
//
// The mirror counts copies, since vLLM stores a block again that it already
// holds and evicts the copies one by one. An engine that announces reused blocks
// ("full" cache reports) would be counted wrong, unless the configuration says
// that it does ([Events.FullReports]): the fields that ask for it are never
// forwarded by a gateway, and a mirror that comes to hold more than the engine's
// capacity is emptied.
package relay
