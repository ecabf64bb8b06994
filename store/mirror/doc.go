// Package mirror copies a node's log to NATS JetStream and reads such copies.
//
// It promises: the stream holds the node's log exactly, every event once and
// in order (events.md I10), whatever restarts on either side. The stream is
// its own high-water mark: on every (re)connect and on every conflict the last
// message of the node is read back and publishing resumes behind it, each
// message naming the one it must follow; no local mark is trusted. What cannot
// be made whole (a stream ahead of the log, a hole left by retention) is
// reported and never papered over.
//
// The mirror takes part in no decision and slows none: it reads the durable log
// behind the committer, in short transactions. The log is the truth; a mirror
// that is lost is published again from the oldest event kept.
//
// Streams: PDLOG with subjects pdlog.log.<cluster>.<node>, whose messages are
// concatenated frames of package events, and PDLOG_AUDIT with
// pdlog.audit.<cluster>.<node>.<EventType>, one milestone a message, for people
// and small subscribers. Both are created on first use.
//
// Run owns two goroutines, one per stream; the audit lane follows the log
// lane. All methods of Mirror may be called from any goroutine.
package mirror
