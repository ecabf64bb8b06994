// Package geometry says who writes where: which prefill ranks a decode rank
// deals with (wire.md 4.3), and which bytes of its memory each chunk writes
// (wire.md 5).
//
// It is arithmetic alone: no sockets, no memory is touched, the same input
// gives the same answer. Every sum is checked, since the numbers come from
// peers: an address is never computed from an index outside its buffer, and
// nothing wraps around. Addresses, lengths and offsets are in bytes, page and
// item numbers count from 0, ranges are half open.
package geometry
