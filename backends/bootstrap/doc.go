// Package bootstrap is the HTTP side of the wire: what a prefill answers at
// its bootstrap address, and what a decode (or a prefill rank that registers
// elsewhere) asks there.
//
// The Server answers SGLang's decodes and takes SGLang's registrations
// (wire.md 2), with the faults F31 to F34 mended and with 400 where SGLang
// answers 500. It also answers pdlog's own discovery and the question of an
// amnesiac decode (wire.md 9.2). The Client asks the same things of any
// prefill, SGLang's or ours.
//
// # What it promises
//
// No request is answered with 500, ends the server, or makes it allocate by a
// number found in the request. Integers are read from their digits and are
// exact to 63 bits (pdlog's own to 64). A bad registration changes nothing.
// What is kept is bounded: ranks by maxRanks, dp-rank entries by maxDPRanks
// and by their life of 120 s.
//
// The Client caches nothing, follows no redirect, uses no proxy and reads no
// more than a fixed number of bytes of an answer.
//
// # What it assumes
//
// The Server is served by net/http, best through Server.HTTPServer, which
// sets the limits of time that a handler cannot. The callbacks in Config may
// be called from any goroutine, several at once, and do not call back.
//
// # Goroutines and locks
//
// Neither Server nor Client starts a goroutine of its own (net/http does).
// Both may be used from any goroutine. The Server has one lock; no callback,
// no I/O and no log line happens under it. Heartbeat has no lock: it belongs
// to one goroutine.
package bootstrap
