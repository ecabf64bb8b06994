// Package fleetlog writes logs of a fleet that never was: any number of nodes,
// rooms and events from a seed, as fast as the log takes them. It is for tests
// and benchmarks of what reads logs; no daemon imports it.
//
// The histories are clean (every invariant of events.md holds) but for the
// incidents that are asked for: a room that is released by timeout while one of
// its writes is on its way, pages that go to the next room, and the write that
// lands there. Fleet.Incidents is the truth about them, kept apart from the
// logs.
package fleetlog
