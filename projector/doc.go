// Package projector is the pure core of pdlog: the room machine of a decode or
// prefill node, as a fold over its event log.
//
// A Machine owns all protocol state of one node. Step takes one command (an
// engine call, a wire message, an RDMA completion, the passing of time) and
// returns the events to append and the effects that follow from them; Apply
// folds one event, and is the only thing that changes State. So the state of
// a node is a pure function of its log: a restarted daemon, pdreplay and the
// simulator fold the same events into the same state.
//
// The package does no I/O, reads no clock, starts no goroutine and draws no
// random number: time comes in with each command. It never panics on any
// input. A Machine is not safe for concurrent use; one goroutine owns it.
//
// What the caller owes:
//
//  1. Append the events of each Step, in order, before the next Step's.
//  2. Do an effect only when the log is durable up to Effect.After.
//  3. Bring the outcome of effects that have one back as a command.
//  4. Call Step(Tick) when NextDeadline has passed.
//  5. After a start: Apply every event of the log in order, then Step(Start).
package projector
