// Package demo is pdlog's main job on one machine: prefill and decode nodes as
// real processes, an embedded JetStream, one engine stand-in per side, a
// request trace replayed through them, and every byte checked.
//
// Pieces, in the order a request meets them:
//
//	trace.go, generator.go   where requests come from
//	plan.go                  what happens to each of them, decided by the seed
//	pool.go                  the decode engine's page pool, last freed first used
//	pattern.go               the bytes of every page, known to both sides
//	client.go, hub.go        the engine API of a node, and what it tells
//	decode.go, prefill.go    the two stand-ins
//	link.go                  what the stand-ins say to each other
//	process.go, cluster.go   the processes, their files, their end
//	collect.go, summary.go   what the logs say happened
//
// The stand-ins speak to their nodes over the engine API alone, as a serving
// engine would. Numbers in the summary that concern rooms and pages come from
// the decode node's log, not from the stand-ins' own opinion.
//
// Run is safe to call once at a time per data directory. Children are killed by
// the kernel when their parent dies (Pdeathsig), so nothing outlives a crash.
package demo
