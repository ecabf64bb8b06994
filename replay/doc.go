// Package replay reads event logs after the fact and answers questions about
// them: from log folders, single segment files, JSONL exports, live nodes and
// the mirror, merged in causal order.
//
// Open finds the logs behind the sources of a command line; Merge streams
// their events, never an effect before its cause, in memory that does not grow
// with the logs. The views (Rooms, Lifeline, PageHistory, Blame, Verify, Diff)
// fold that stream. Nothing here writes to a node or its log; Import makes new
// logs only.
//
// Everything may be called from any goroutine; a Log may be read several times,
// one iteration at a time.
package replay
