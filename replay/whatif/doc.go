// Package whatif replays the recorded inputs of decode nodes through the same
// decider that ran there (projector), under another release policy or another
// ack timeout, and says what would have been different: which rooms would have
// been released on what, how long their pages would have been held, and which
// corruptions would not have happened.
//
// The inputs are read back out of the log: an event that a command led to tells
// the command. What the machine concludes by itself (timeouts, fences,
// releases) is left to it. A fence that the recorded run did not try succeeds
// exactly if the recorded fence kind of the pair (PublishStarted.fence) says
// that the provider could prove it (cli.md).
//
// Where the other run still holds a page that the recorded one gave away, the
// next room gets other free pages of the pool, as its engine would have; if there
// are none, the room is counted as one that could not have been placed.
package whatif
