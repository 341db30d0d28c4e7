// Package kvevents reads and writes the KV-cache events of inference engines:
// which prompt blocks an engine holds, told over ZeroMQ as MessagePack.
//
// To follow an engine, [Dial] its event endpoint as [SUB] (or [Listen] and
// [Listener.Accept], where the engine connects to us), [Conn.Subscribe], then
// [Conn.Recv], [ParseMessage] and [Decoder.Decode] in a loop. To fill a gap,
// [Replay]. To speak as an engine does, use [Publisher], [ReplayServer] and
// [AppendBatch].
//
// # Transport
//
// This is ZMTP 3.0 and 3.1 with the NULL mechanism over tcp:// and ipc://,
// written here because a mirror of a cache must know about every lost
// connection: events missed while a library quietly reconnected are a wrong
// mirror. A [Conn] is one connection. When it is lost, Recv returns an error
// once and for all, and the caller decides when to dial again and what the
// loss means.
//
// The protocol neither encrypts nor authenticates, and carries prompts in the
// form of token ids. Use it on loopback or a Unix socket only.
//
// # Events
//
// A message has three frames: topic, sequence number (8 bytes, big-endian,
// starting at 0 with the publisher), and a batch:
//
//	[ts, [event, ...], data_parallel_rank]
//
// A batch or an event may be an array or a map, by the engine's version; see
// vllm.go and sglang.go. An event that is unknown or broken is skipped and
// counted in [Batch.Skipped], and [Batch.UnderCredits] says whether a mirror of
// the cache may go on without it; a batch whose framing is broken is an error.
//
// # Limits
//
// Peers are not trusted with memory: a frame or message is at most [MaxFrame]
// bytes in [MaxParts] parts, and memory is committed as bytes arrive, not as
// lengths are claimed. Nothing here recurses over input.
package kvevents
