// Package conformance holds the vectors that fix what every wire dialect makes
// of a frame list and what it sends. Tests read them; the product does not.
//
// NAME.jsonl holds the decode vectors of dialect NAME, encode.jsonl the encode
// vectors of all. A decode vector's expectation is contained in the printed
// fields: more keys are fine, an expected null means the key is absent.
package conformance
