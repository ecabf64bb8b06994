// Package reduce turns an incident in logs into the smallest scenario file
// (scenarios.md) that still shows it: what an operator attaches to a bug report.
//
// The rooms of the victim and of the writer are written down as statements, with
// the times, pages and fates of their writes. Then everything that the corruption
// does not need is taken away, as long as a run of the real core (package
// scenario) still meets the expectation: the same page, victim, writer and
// violated invariants.
package reduce
