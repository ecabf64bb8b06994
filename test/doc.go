// Package test holds the tests that span packages: scenario files, wire
// conformance vectors, end-to-end runs of real processes.
package test
