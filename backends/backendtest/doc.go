// Package backendtest is the test suite that every wire dialect passes.
//
// A dialect's own test calls Run, and its fuzz target Fuzz. A dialect outside
// this repository, which has no conformance vectors here, calls RoundTrip and
// Total instead of Run.
package backendtest
