// Package audit follows the mirror of a fleet with the invariant checker and
// reports violations as they happen.
//
// One consumer reads the logs. Events of different nodes arrive in the order in
// which their mirrors publish; they wait up to Settle for a cause that another
// node's mirror has still to publish, and in at most Window events of memory. A
// mirror that is behind by more makes its events late, not lost: findings that
// need both nodes may then be missed until pdreplay verify reads the logs whole.
// Things that never come (an ACK that is owed, pages never released) are reported
// once the logs have gone on for a minute without them.
//
// Auditors of a group share the nodes by leases in a JetStream key-value bucket,
// PDLOG_AUDITORS (group.go). A claim also says up to which event a node was
// judged and reported, and from which message a successor has to read so that
// rooms that are open are judged whole: what it finds up to the mark is not
// reported again. The mark is written right behind a report; an auditor that dies
// between the two has its report repeated by its successor. Nothing is left out.
// Beside its own nodes an auditor reads the logs of the nodes that they write to,
// because a late write is seen from both ends; findings about those are their own
// auditor's. So the judging is shared fully, the reading as far as nodes do not
// all write to all.
//
// Memory is bounded by the rooms that are open, 4096 ended ones a node, and
// Window. Follow owns one goroutine, which ends before it returns.
package audit
