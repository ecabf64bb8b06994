// Package invariants re-checks the rules of events.md from the events alone.
//
// A Checker is fed the events of any number of nodes in causal order and
// collects what breaks I1 to I9 and I11. It shares no code with the room
// machine, so that a fault there does not hide itself. I10 (mirror against
// log) is a comparison of two logs and I12 (no room delays another) a matter
// of time under load: neither can be seen in one history.
//
// A view may be partial: only some nodes' logs, or a log whose beginning was
// dropped by retention. What such a view cannot decide is not reported; a
// history without a fault gives no violation.
//
// The package is pure: no I/O, no clock, no goroutine. A Checker is not safe
// for concurrent use. Its memory is bounded by the rooms that are live plus a
// fixed number of ended ones (maxEnded).
package invariants
