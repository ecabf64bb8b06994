// Package events is the leaf of pdlog: the protobuf schema of every event, its
// envelope, the hybrid logical clock, the record codec and the JSON form.
//
// It imports the standard library's pure part and protobuf, nothing else: no
// I/O, no wall clock, no goroutine. Everything above it may call it from
// anywhere; values are plain data and belong to their holder.
package events
