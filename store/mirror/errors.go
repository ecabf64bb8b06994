package mirror

import "github.com/cockroachdb/errors"

var (
	// ErrMirrorAhead: the stream has events of this log that the log does not
	// have: acknowledged events were lost here. Publishing stops.
	ErrMirrorAhead = errors.New("mirror is ahead of the log")
	// ErrMirrorDiverged: the stream has other events than the log at the same
	// sequences, or messages that are not a mirror's. Publishing stops.
	ErrMirrorDiverged = errors.New("mirror and log differ")
	// ErrURL: not nats://host:port[/cluster].
	ErrURL = errors.New("not a mirror url")

	// errConflict: somebody else's message came first; read back and go on.
	errConflict = errors.New("another message came first")
	// errDuplicate: the server took the message for one it had lately.
	errDuplicate = errors.New("message id was seen lately")
)

// final errors end Run; all others are tried again.
func final(err error) bool {
	return errors.Is(err, ErrMirrorAhead) || errors.Is(err, ErrMirrorDiverged)
}
