/* SPDX-License-Identifier: MIT
 *
 * The exported trampolines for arm64: what entry-x86_64.S says of them holds here. The number of a trampoline is in w16, and
 * the function that it leads to in x17, which the procedure call standard leaves to code between caller and callee. Stores are
 * not seen in their order here: the gate's closer has each thread pass a full fence (membarrier(2)), so a call needs none
 * when it enters; when it leaves, what it wrote is to be seen before its depth is, which takes a store-release.
 */
#define ENTRY_SPARE 512 /* as in entry.h */
#define STACK_BYTES 256 /* of arguments on the stack that are handed on */
#define FRAME_BYTES 32	/* x29, x30, x19 */
#define SAVED_BYTES 208 /* x0 to x8 and q0 to q7 */

/* Targets of calls by address, and signed return addresses: hints, without effect on processors without them. */
#define LANDING hint #34 /* bti c */
#define SIGN	hint #25 /* paciasp */
#define CHECK	hint #29 /* autiasp */

	.text
	.p2align 4
	.globl	entry_first
	.hidden	entry_first
	.set	slot, 0
entry_first:

.macro JUMP
	.cfi_startproc
	LANDING
	mov	w16, #slot
	b	entry_common
	brk	#0
	.cfi_endproc
	.set	slot, slot + 1
.endm

.macro TRAMPOLINE name
	.globl	\name
	.type	\name, %function
\name:
	JUMP
	.size	\name, 16
.endm

#define CALL(name)  TRAMPOLINE name
#define ENTRY(name) TRAMPOLINE name
#include "driver.def"
	.rept	ENTRY_SPARE
	JUMP
	.endr

/* From the caller's stack, which begins @above bytes after x29. */
.macro HAND_ON_STACK above
	.set	offset, 0
	.rept	STACK_BYTES / 32
	ldp	q16, q17, [x29, #(\above + offset)]
	stp	q16, q17, [sp, #offset]
	.set	offset, offset + 32
	.endr
.endm

.macro GATE_STATE to
	adrp	\to, gate_state
	add	\to, \to, :lo12:gate_state
	ldr	w9, [\to]
.endm

.macro LEAVE_FRAME
	ldr	x19, [x29, #16]
	ldp	x29, x30, [x29]
	add	sp, sp, #(STACK_BYTES + FRAME_BYTES)
	.cfi_remember_state
	.cfi_def_cfa sp, 0
	.cfi_restore x19
	.cfi_restore x29
	.cfi_restore x30
	CHECK
	.cfi_negate_ra_state
.endm

	.type	entry_common, %function
entry_common:
	.cfi_startproc
	adrp	x17, entry_targets
	add	x17, x17, :lo12:entry_targets
	ldr	x17, [x17, w16, uxtw #3]
	cbz	x17, entry_slowly
	SIGN
	.cfi_negate_ra_state
	sub	sp, sp, #(STACK_BYTES + FRAME_BYTES)
	.cfi_def_cfa_offset STACK_BYTES + FRAME_BYTES
	stp	x29, x30, [sp, #STACK_BYTES]
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	str	x19, [sp, #(STACK_BYTES + 16)]
	.cfi_offset x19, -16
	add	x29, sp, #STACK_BYTES
	.cfi_def_cfa x29, FRAME_BYTES
	mrs	x9, tpidr_el0
	adrp	x10, :gottprel:gate_self
	ldr	x10, [x10, :gottprel_lo12:gate_self]
	ldr	x19, [x9, x10]
	cbz	x19, 2f
	ldr	w9, [x19] /* its depth */
	add	w9, w9, #1
	str	w9, [x19]
	GATE_STATE x10
	cbnz	w9, 1f
	HAND_ON_STACK FRAME_BYTES
	blr	x17
	cmp	w0, #ENTRY_FAILED
	b.hs	4f
5:	ldr	w9, [x19]
	sub	w9, w9, #1
	stlr	w9, [x19]
	GATE_STATE x10
	cbnz	w9, 3f
0:	LEAVE_FRAME
	ret
	.cfi_restore_state
	/* The gate is not plainly open: as if nothing had been. */
1:	ldr	w9, [x19]
	sub	w9, w9, #1
	str	w9, [x19]
2:	LEAVE_FRAME
	b	entry_slowly
	.cfi_restore_state
	/* Nor any more: somebody may wait for this thread to leave. */
3:	stp	x0, x1, [sp]
	str	q0, [sp, #16]
	mov	x0, x19
	bl	gate_left
	ldp	x0, x1, [sp]
	ldr	q0, [sp, #16]
	b	0b
	/* In a context that has failed every call does: the way there is no hot path. */
4:	stp	x0, x1, [sp]
	str	q0, [sp, #16]
	bl	entry_failed
	ldp	x0, x1, [sp]
	ldr	q0, [sp, #16]
	b	5b
	.cfi_endproc
	.size	entry_common, . - entry_common

	.type	entry_slowly, %function
entry_slowly:
	.cfi_startproc
	SIGN
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	mov	x29, sp
	.cfi_def_cfa_register x29
	sub	sp, sp, #(SAVED_BYTES + STACK_BYTES)
	stp	x0, x1, [sp, #STACK_BYTES]
	stp	x2, x3, [sp, #(STACK_BYTES + 16)]
	stp	x4, x5, [sp, #(STACK_BYTES + 32)]
	stp	x6, x7, [sp, #(STACK_BYTES + 48)]
	str	x8, [sp, #(STACK_BYTES + 64)]
	stp	q0, q1, [sp, #(STACK_BYTES + 80)]
	stp	q2, q3, [sp, #(STACK_BYTES + 112)]
	stp	q4, q5, [sp, #(STACK_BYTES + 144)]
	stp	q6, q7, [sp, #(STACK_BYTES + 176)]
	mov	w0, w16
	bl	entry_begin
	mov	x17, x0
	HAND_ON_STACK 16
	ldp	x0, x1, [sp, #STACK_BYTES]
	ldp	x2, x3, [sp, #(STACK_BYTES + 16)]
	ldp	x4, x5, [sp, #(STACK_BYTES + 32)]
	ldp	x6, x7, [sp, #(STACK_BYTES + 48)]
	ldr	x8, [sp, #(STACK_BYTES + 64)]
	ldp	q0, q1, [sp, #(STACK_BYTES + 80)]
	ldp	q2, q3, [sp, #(STACK_BYTES + 112)]
	ldp	q4, q5, [sp, #(STACK_BYTES + 144)]
	ldp	q6, q7, [sp, #(STACK_BYTES + 176)]
	blr	x17
	stp	x0, x1, [sp, #STACK_BYTES]
	str	q0, [sp, #(STACK_BYTES + 80)]
	bl	entry_end
	ldp	x0, x1, [sp, #STACK_BYTES]
	ldr	q0, [sp, #(STACK_BYTES + 80)]
	mov	sp, x29
	ldp	x29, x30, [sp], #16
	.cfi_def_cfa sp, 0
	.cfi_restore x29
	.cfi_restore x30
	CHECK
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size	entry_slowly, . - entry_slowly

/*
 * dlsym, dlvsym and dlopen. The loader's own ones look at who calls them, so they are jumped to, with
 * the caller's return address in place, unless @answer, which gets that address as its fourth
 * argument, has the result.
 */
.macro LOADER symbol answer exported
	.p2align 4
	.globl	\symbol, \symbol\()_old
	.type	\symbol, %function
	.type	\symbol\()_old, %function
	.symver	\symbol, \exported\()@@GLIBC_2.34
	.symver	\symbol\()_old, \exported\()@GLIBC_2.17
\symbol:
\symbol\()_old:
	.cfi_startproc
	LANDING
	mov	x3, x30
	SIGN
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	bl	\answer
	mov	x16, x1
	cbz	x16, 1f
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
1:	ldp	x29, x30, [sp], #48
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	CHECK
	.cfi_negate_ra_state
	cbz	x16, 2f
	br	x16
2:	ret
	.cfi_endproc
	.size	\symbol, . - \symbol
.endm

	LOADER	entry_dlsym, lookup_dlsym, dlsym
	LOADER	entry_dlvsym, lookup_dlvsym, dlvsym
	LOADER	entry_dlopen, lookup_dlopen, dlopen

	.section .note.GNU-stack, "", %progbits

	/* Every target of a call by address has a landing: the kernel may check them (BTI). */
	.section .note.gnu.property, "a"
	.p2align 3
	.word	4, 16, 5
	.asciz	"GNU"
	.word	0xc0000000, 4, 3, 0
