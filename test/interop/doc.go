// Package interop runs pdnode processes against peers that know nothing of this
// repository's Go code: Python programs on libzmq, written from the wire's
// description alone, that play SGLang's decode and prefill ranks in each dialect
// and version. README.md says what is exercised and what is not.
package interop
