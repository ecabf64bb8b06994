// Package node is the shell around the pure core: a pdlog node as a process
// runs it. It owns the log, the sockets, the timers and the memory, and knows
// no protocol rule: what happens enters the decision loop as a command, what
// follows leaves it as an effect.
//
// # Goroutines
//
//	loop       owns the machine; Steps commands, appends events; never waits. Looks
//	           at the machine run in it, or under its lock while it is idle
//	outbox     does effects, in order, each when its events are durable; what
//	           waits for a slow revocation (apart) delays nothing else
//	receivers  one per local rank's PULL socket; decode frames to commands
//	senders    one per remote endpoint, each with its socket and bounded queue
//	writers    prefill: one per destination of the data plane
//	peers      decode: one per prefill node; discovery and heartbeat
//	mirror     log to NATS
//	API        the HTTP servers' own
//
// Everything that happens is submitted to the loop's bounded queue; whoever
// submits waits there when it is full, the loop never does. A queue of a dead
// peer fills and drops; it delays no other peer (events.md I12).
//
// The one law: an effect starts when the log is durable up to its After. When
// the log fails, no effect starts any more.
//
// # Locks
//
// Each type has at most one lock and calls nothing of another type while it
// holds it, but for: peerTable.mu before senders.mu (a registration goes out
// before the metadata that follows it).
//
// Start is the only way in; all methods of Node may be called from anywhere.
package node
