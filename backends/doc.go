// Package backends is the wire: SGLang's control messages in the dialects of
// its three KV transfer backends, and pdlog's extension frame.
//
// A dialect (backends/mooncake, backends/nixl, backends/mori) turns a ZeroMQ
// message, a list of frames, into one typed Message and back. What the three
// share lives here once: the message types, the primitive forms of numbers,
// addresses and lists, the unguarded messages (ABORT, ABORT_ACK, staging,
// AUX_DATA, BOOTSTRAP), the extension frame and the JSON form of
// `pdnode wire decode`. The layouts are wire.md sections 1 and 9; which bytes
// are good, bad or foreign is the conformance contract.
//
// # What it promises
//
// Decode is total: every list of byte strings yields a Message, a *Malformed
// or *Foreign one if need be, without panic, and allocates no more than a
// small multiple of the input's size (never by a count found in the input). A
// decoded message keeps no reference to the frames it was read from. Encode
// writes the newest form that SGLang reads, or returns an error and no frame.
//
// # Use
//
// Dialects register themselves; import backends/all for its effect, then ask
// Lookup. Everything here is stateless and may be called from any goroutine;
// the registry has a lock of its own, taken by nothing else. No I/O, no clock.
package backends
