package node

import (
	"errors"
	"time"

	"github.com/pdlog/pdlog/backends"
)

// transport is the control plane's socket layer: PUSH to PULL, many frames a
// message (wire.md 1.0). Each socket belongs to one goroutine at a time.
type transport interface {
	// Listen binds a receiver to a free port of host.
	Listen(host string) (receiver, error)
	// Dial makes a sender to "ip:port". It does not wait for the peer.
	Dial(address string, side dialSide) (pusher, error)
	// Close ends the layer. Every socket must be closed before.
	Close() error
}

// receiver takes messages from anybody.
type receiver interface {
	Port() int
	// Recv waits up to pollEvery; errAgain says that nothing came. key is the
	// public key that the sender has proven to hold; empty of plain sockets.
	Recv() (f backends.Frames, key string, err error)
	Close() error
}

// pusher sends to one peer, in order, as long as the connection lives.
type pusher interface {
	// Send hands a message to the transport; errAgain: the peer takes none,
	// try again.
	Send(f backends.Frames) error
	// Dropped says whether the connection has ended since Dial, or could not
	// be made. Of one that reconnects by itself it is true only when it leads to
	// a peer that has another key now.
	Dropped() bool
	// Close drops what has not left within linger.
	Close(linger time.Duration) error
}

// dialSide chooses the socket options: the two directions differ in what a
// lost connection means (wire.md 1.0, 9.1).
type dialSide uint8

const (
	toPrefill dialSide = iota + 1 // reconnects by itself
	toDecode                      // one connection; its end closes the gate
)

var errAgain = errors.New("try again")

// pollEvery bounds how long a socket's goroutine does not look at anything
// else, and so how long a close takes.
const pollEvery = 50 * time.Millisecond
