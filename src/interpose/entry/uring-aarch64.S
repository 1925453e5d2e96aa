/* SPDX-License-Identifier: MIT
 *
 * syscall(2) of the C library, but for the one that makes an io_uring: see uring-x86_64.S.
 */
#include <asm/unistd.h>

#define ERRORS 4095 /* -4095 and above */

	.text
	.p2align 4
	.globl	syscall
	.type	syscall, %function
syscall:
	.cfi_startproc
	hint	#34 /* bti c */
	cmp	x0, #__NR_io_uring_setup
	b.eq	2f
0:	mov	x8, x0
	mov	x0, x1
	mov	x1, x2
	mov	x2, x3
	mov	x3, x4
	mov	x4, x5
	mov	x5, x6
	svc	#0
	cmn	x0, #ERRORS
	b.hs	1f
	ret
1:	neg	w0, w0
	/* The error in w0. */
3:	hint	#25 /* paciasp */
	.cfi_remember_state
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	str	w0, [sp, #16]
	bl	__errno_location
	ldr	w9, [sp, #16]
	str	w9, [x0]
	mov	x0, #-1
	ldp	x29, x30, [sp], #32
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	hint	#29 /* autiasp */
	.cfi_negate_ra_state
	ret
	.cfi_restore_state
2:	hint	#25
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	bl	uring_refused
	mov	w9, w0
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	hint	#29
	.cfi_negate_ra_state
	cbz	w9, 0b
	mov	w0, w9
	b	3b
	.cfi_endproc
	.size	syscall, . - syscall

	.section .note.GNU-stack, "", %progbits

	.section .note.gnu.property, "a"
	.p2align 3
	.word	4, 16, 5
	.asciz	"GNU"
	.word	0xc0000000, 4, 3, 0
