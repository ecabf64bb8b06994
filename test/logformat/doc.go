// Package logformat holds a log reader in Python, written from
// docs/log-format.md, and the test that it reads what the Go reader reads.
package logformat
