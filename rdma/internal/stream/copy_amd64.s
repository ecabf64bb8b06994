#include "textflag.h"

// func copyPast(dst, src *byte, n int)
//
// n is a multiple of 128 and not 0, dst is aligned to 32 bytes. A fault in here
// is a fault in a leaf without a frame, as in runtime.memmove.
TEXT ·copyPast(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	// A page ahead: the processor's own prefetching ends where a page does. What is
	// behind the source's end may be asked for too, and is not looked at.
	PREFETCHNTA 4096(SI)
	PREFETCHNTA 4160(SI)
	VMOVDQU     (SI), Y0
	VMOVDQU     32(SI), Y1
	VMOVDQU     64(SI), Y2
	VMOVDQU     96(SI), Y3
	VMOVNTDQ    Y0, (DI)
	VMOVNTDQ    Y1, 32(DI)
	VMOVNTDQ    Y2, 64(DI)
	VMOVNTDQ    Y3, 96(DI)
	ADDQ        $128, SI
	ADDQ        $128, DI
	SUBQ        $128, CX
	JNE         loop

	// The bytes are in memory before the lease's bracket is left and before
	// anyone is told of them.
	SFENCE
	VZEROUPPER
	RET
