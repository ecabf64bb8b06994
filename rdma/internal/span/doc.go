// Package span is what providers share about runs of bytes: the ranges of a
// grant, the spans of a notif, and the checksums of what landed under a lease.
package span
