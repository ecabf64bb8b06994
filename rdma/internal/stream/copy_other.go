//go:build !amd64

package stream

func copyPages(dst, src []byte) { copy(dst, src) }
