package stream

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

const (
	pastAlign = 32
	pastStep  = 128
)

// copyPast copies past the caches (non-temporal stores).
//
//go:noescape
func copyPast(dst, src *byte, n int)

// copyPages copies src to the start of dst. Pages that arrive are for a device
// or for much later: they need not push others out of the caches, and memory is
// not read before it is overwritten. Go's own copy does so from 1 MiB on.
func copyPages(dst, src []byte) {
	n := min(len(dst), len(src))
	if n < pastMin || !cpu.X86.HasAVX2 {
		copy(dst, src)
		return
	}
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % pastAlign) //nolint:gosec // only for its alignment
	body := (n - head) / pastStep * pastStep
	copy(dst[:head], src)
	copyPast(&dst[head], &src[head], body)
	copy(dst[head+body:n], src[head+body:n])
}
