// Package soak runs a prefill and a decode node, with a NATS server beside them,
// under a steady load of rooms with faults, and holds what they use against what
// they used before: memory, goroutines, descriptors, state. Nothing may grow that
// is not bounded, and at the end nothing is held.
package soak
