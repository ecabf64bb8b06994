package store

import (
	"fmt"

	"github.com/cockroachdb/errors"
)

var (
	// ErrLocked: another process has the log open.
	ErrLocked = errors.New("log is in use")
	// ErrInUse: a reader met the segment that a live node is writing.
	ErrInUse = errors.New("segment is held by a live node")
	// ErrPoisoned: a commit or sync failed; this process must end.
	ErrPoisoned = errors.New("log is poisoned")
	// ErrClosed: the log was closed.
	ErrClosed = errors.New("log is closed")
	// ErrHeadAhead: the head file knows a commit that the segments do not have:
	// acknowledged events were lost, or an older root is being served.
	ErrHeadAhead = errors.New("head is ahead of the log")
	// ErrHeadMismatch: head and log have another chain at the same sequence.
	ErrHeadMismatch = errors.New("head does not fit the log")
	// ErrBehind: the mirror or peers remember more of this log than it has.
	ErrBehind = errors.New("log is older than what others remember of it")
	// ErrCorrupt: a segment does not verify. The error is a *CorruptError.
	ErrCorrupt = errors.New("log is corrupt")
	// ErrWrongNode: the log belongs to another node name.
	ErrWrongNode = errors.New("log belongs to another node")
	// ErrFormat: the segment was written by a newer format.
	ErrFormat = errors.New("unknown log format")
	// ErrNotALog: the directory holds no segment.
	ErrNotALog = errors.New("no log here")
	// ErrBelow: a read from below the oldest event that is kept.
	ErrBelow = errors.New("sequence is below the oldest event kept")
	// ErrEnvelope: an appended event has another boot, incarnation or node.
	ErrEnvelope = errors.New("event envelope does not fit the log")
)

// CorruptError says where a log does not verify.
type CorruptError struct {
	File string // segment file
	Seq  uint64 // record the trouble starts at; 0 = before any record
	Err  error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("verify record %d of %s: %v", e.Seq, e.File, e.Err)
}

// Unwrap gives the cause, e.g. events.ErrChain.
func (e *CorruptError) Unwrap() error { return e.Err }

// Is makes a CorruptError an ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt } //nolint:errorlint // identity is meant

// InUseError is the ErrInUse of ReadDir.
type InUseError struct {
	File string
	Lock LockInfo
	Next uint64 // first sequence that was not read
}

// Error implements error.
func (e *InUseError) Error() string {
	how := "through the node's socket"
	if e.Lock.Socket != "" {
		how = "through its socket " + e.Lock.Socket
	}
	return fmt.Sprintf("%s is being written by %s: read it from sequence %d %s, or stop the node", e.File, e.Lock, e.Next, how)
}

// Is makes an InUseError an ErrInUse.
func (e *InUseError) Is(target error) bool { return target == ErrInUse } //nolint:errorlint // identity is meant

// poisonError is the ErrPoisoned of a log, with its cause.
type poisonError struct {
	after uint64 // last record that is durable
	cause error
}

// Error implements error.
func (e *poisonError) Error() string {
	return fmt.Sprintf("log is poisoned after record %d: %v", e.after, e.cause)
}

// Unwrap makes it an ErrPoisoned and whatever the cause is.
func (e *poisonError) Unwrap() []error { return []error{ErrPoisoned, e.cause} }
