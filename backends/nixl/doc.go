// Package nixl is the wire dialect of SGLang's NIXL backend.
//
// Registration and metadata (to prefill) carry a guard frame; decode knows no
// guard, its status is tagged KV_STATUS. Peers are known by their NIXL agent
// name; the agent's metadata blob is carried opaque. Layouts: wire.md 1.2,
// 1.3, 1.6; shared messages: package backends. The notifications that travel
// inside NIXL (wire.md 1.10) are no ZeroMQ messages and not read here.
package nixl
