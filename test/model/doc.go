// Package model holds the protocol as a Promela model (abort.pml), its mutants,
// and the check that what fleets of the real core do is a run of it. README.md
// says what is modelled and what is not.
package model
