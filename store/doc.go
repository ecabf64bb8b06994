// Package store is a node's event log: an append-only, gapless, checked
// sequence of events in bbolt segment files (docs/log-format.md).
//
// It promises: an event whose sequence Durable reports was synced to disk with
// everything before it; an acknowledged event is there after a crash; any
// error of a commit or sync ends the log for good in this process (ErrPoisoned)
// and nothing is acknowledged after it; a damaged log is found and named by
// file and sequence, never read as if it were whole (events.md I9), and never
// repaired in place: it is set aside and what verifies is copied
// (Options.Salvage, Recovered.LostFrom).
//
// A commit takes one sync (Options.Commit): what a power loss tears is told by
// its tip (tip.go) and taken back, what is damaged otherwise is refused.
//
// Producers that each wait for their own event are given a moment to come
// together (crowd.go). Scrub reads what is sealed again, for a disk that rots
// silently.
//
// It assumes a disk that honours fdatasync, and one caller of Append at a time
// (the node's loop). Everything else may be called from any goroutine. Append
// does no I/O; OnDurable runs on the committer and must not block. A binary
// that opens logs calls VerifyMain first.
//
// Files in the directory: LOCK (who has the log open), head (last sequence and
// chain of the last commit), one NNNNNNNNNNNNNNNNNNNN.db per segment, named by
// its first sequence, NNNNNNNNNNNNNNNNNNNN.snap (snapshots), LOSS (events were
// lost and that is not on record yet), and next.tmp, the segment prepared ahead.
//
// Goroutines: one committer, one preparer of the next segment, both ended by
// Close. Lock order: Log.retainMu and Log.snapMu are never held together and come
// first; Log.mu and Log.segMu are never held together; segment.mu is innermost.
package store
