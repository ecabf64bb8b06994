// Package audit follows the mirror of a fleet with the invariant checker and
// reports violations as they happen.
//
// One consumer reads the logs of all nodes from the stream's beginning. Events of
// different nodes arrive in the order in which their mirrors publish; they wait
// up to Settle for a cause that another node's mirror has still to publish, and
// in at most Window events of memory. A mirror that is behind by more makes its
// events late, not lost: findings that need both nodes may then be missed until
// pdreplay verify reads the logs whole.
//
// Follow owns one goroutine, which ends before it returns.
package audit
