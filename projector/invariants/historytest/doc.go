// Package historytest writes small event histories by hand: sequences, hybrid
// clocks, chains and causes are filled in, the facts are the caller's. It is
// for tests of what reads a history; no daemon imports it.
package historytest
