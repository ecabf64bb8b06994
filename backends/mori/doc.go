// Package mori is the wire dialect of SGLang's Mori backend.
//
// Registration, metadata and status carry a guard frame; ABORT, ABORT_ACK and
// AUX_DATA do not. Mori has no staging. Peers are known by their engine key;
// engines and memory are described in msgpack, of which only the leading
// elements are read, since the rest differs between versions. Layouts: wire.md
// 1.2, 1.3, 1.6; shared messages: package backends.
package mori
