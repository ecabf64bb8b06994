// Package picture draws what logs tell: a timeline with a lane per decode node
// and prefill rank, an incident report that links every sentence to its events,
// and a trace for Perfetto.
//
// A page is one HTML file that needs nothing else: no network, no other file.
// It is readable with up to Detailed events; above that the lanes show how much
// went on at a time, and only the rooms of an incident are drawn one by one.
package picture
