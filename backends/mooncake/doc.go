// Package mooncake is the wire dialect of SGLang's Mooncake backend.
//
// It has no guard frame. Metadata (to prefill) and status (to decode) have no
// tag either: their first frame is a room number, and whatever looks like one
// is ours. Peers are known by a session id, host:rpc_port. Layouts: wire.md
// 1.2, 1.3, 1.6; shared messages: package backends.
package mooncake
