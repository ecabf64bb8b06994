// Package stories runs a whole demo fleet of real processes - two nodes, their
// engines, NATS servers of their own - through things that happen to fleets:
// networks that are cut, lose packets, reset or delay (network namespaces, nft, a
// proxy), nodes killed, stopped and replaced by another build, NATS servers
// killed, wiped, restored from an old copy, or missing from a cluster.
//
// One runner tells every story. After each, every page held the right bytes, all
// pages are free, `pdreplay verify` and `pdreplay diff` hold over logs and mirror.
//
// A second kind of story is of two nodes alone, on every provider: a peer that is
// partitioned, killed, stopped for 10 s or replaced in the middle of a write never
// writes a byte after its fence.
package stories
