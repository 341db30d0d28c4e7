#include "textflag.h"

// Rotation by 16 bits to the left moves bytes only.
DATA rotate16<>+0(SB)/8, $0x0504030201000706
DATA rotate16<>+8(SB)/8, $0x0d0c0b0a09080f0e
DATA rotate16<>+16(SB)/8, $0x0504030201000706
DATA rotate16<>+24(SB)/8, $0x0d0c0b0a09080f0e
GLOBL rotate16<>(SB), RODATA|NOPTR, $32

DATA finish<>+0(SB)/8, $0xff
GLOBL finish<>(SB), RODATA|NOPTR, $8

// ROUND is one SipRound of four states: v0..v3 are Y0..Y3. Y8..Y11 are used,
// Y12 holds rotate16.
#define ROUND \
	VPADDQ  Y1, Y0, Y0    \
	VPADDQ  Y3, Y2, Y2    \
	VPSLLQ  $13, Y1, Y8   \
	VPSRLQ  $51, Y1, Y9   \
	VPSHUFB Y12, Y3, Y3   \
	VPOR    Y8, Y9, Y1    \
	VPXOR   Y2, Y3, Y3    \
	VPXOR   Y0, Y1, Y1    \
	VPSHUFD $0xb1, Y0, Y0 \
	VPADDQ  Y1, Y2, Y2    \
	VPADDQ  Y3, Y0, Y0    \
	VPSLLQ  $17, Y1, Y8   \
	VPSRLQ  $47, Y1, Y9   \
	VPSLLQ  $21, Y3, Y10  \
	VPSRLQ  $43, Y3, Y11  \
	VPOR    Y8, Y9, Y1    \
	VPOR    Y10, Y11, Y3  \
	VPXOR   Y2, Y1, Y1    \
	VPXOR   Y0, Y3, Y3    \
	VPSHUFD $0xb1, Y2, Y2

// ABSORB adds a word to each state.
#define ABSORB(word) \
	VPXOR word, Y3, Y3 \
	ROUND              \
	ROUND              \
	VPXOR word, Y0, Y0

// func quad(dst *[4]uint64, from *state, tokens *uint32, size int, last uint64)
TEXT ·quad(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ tokens+16(FP), R8
	MOVQ size+24(FP), CX
	MOVQ last+32(FP), R10

	LEAQ (R8)(CX*4), R9  // a block is 4*size bytes
	LEAQ (R9)(CX*4), R11
	LEAQ (R11)(CX*4), R12

	VPBROADCASTQ 0(SI), Y0
	VPBROADCASTQ 8(SI), Y1
	VPBROADCASTQ 16(SI), Y2
	VPBROADCASTQ 24(SI), Y3
	VMOVDQU      rotate16<>(SB), Y12

next:
	// Four words of each of four blocks, so transposed that each register has
	// one word of each block.
	VMOVDQU     (R8), Y4
	VMOVDQU     (R9), Y5
	VMOVDQU     (R11), Y6
	VMOVDQU     (R12), Y7
	VPUNPCKLQDQ Y5, Y4, Y8
	VPUNPCKHQDQ Y5, Y4, Y9
	VPUNPCKLQDQ Y7, Y6, Y10
	VPUNPCKHQDQ Y7, Y6, Y11
	VPERM2I128  $0x20, Y10, Y8, Y4
	VPERM2I128  $0x20, Y11, Y9, Y5
	VPERM2I128  $0x31, Y10, Y8, Y6
	VPERM2I128  $0x31, Y11, Y9, Y7
	ABSORB(Y4)
	ABSORB(Y5)
	ABSORB(Y6)
	ABSORB(Y7)
	ADDQ        $32, R8
	ADDQ        $32, R9
	ADDQ        $32, R11
	ADDQ        $32, R12
	SUBQ        $8, CX
	JNZ         next

	VMOVQ        R10, X4
	VPBROADCASTQ X4, Y4
	ABSORB(Y4)
	VPBROADCASTQ finish<>(SB), Y5
	VPXOR        Y5, Y2, Y2
	ROUND
	ROUND
	ROUND
	ROUND
	VPXOR        Y1, Y0, Y0
	VPXOR        Y3, Y2, Y2
	VPXOR        Y2, Y0, Y0
	VMOVDQU      Y0, (DI)
	VZEROUPPER
	RET
