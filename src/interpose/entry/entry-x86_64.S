/* SPDX-License-Identifier: MIT
 *
 * The exported trampolines for x86-64: one of 16 bytes for each line of driver.def, then the spare
 * ones, and what they share. Nothing here knows a prototype: every register that may hold an argument
 * and a fixed part of the caller's stack are handed on. Return addresses stay where they are, so
 * shadow stacks, unwinders and profilers see plain calls.
 *
 * Where the function is known, the thread has a record and the gate is open, a call is made without C:
 * that is gate_enter() and gate_leave() of gate.c in five instructions, which leave the arguments in their
 * registers. Two more look at the result: errors from ENTRY_FAILED on are told to entry_failed(). Launches of a few µs pass here, so what it costs is measured (tests/programs/call-cost.c).
 */
#include <cet.h>

#define ENTRY_SPARE 512 /* as in entry.h */
#define STACK_BYTES 256 /* of arguments on the stack that are handed on */
#define SAVED_BYTES 192 /* seven general and eight vector registers, aligned */

	.text
	.p2align 4
	.globl	entry_first
	.hidden	entry_first
	.set	slot, 0
entry_first:

.macro JUMP
	.cfi_startproc
	_CET_ENDBR
	movl	$slot, %r11d
	jmp	entry_common
	.cfi_endproc
	.set	slot, slot + 1
	.org	entry_first + 16 * slot, 0xcc /* refused if a trampoline is longer than 16 bytes */
.endm

.macro TRAMPOLINE name
	.globl	\name
	.type	\name, @function
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

/* The first words one by one: the caller has just stored them so, and a wider load would have to wait. */
.macro HAND_ON_STACK
	.set	offset, 0
	.rept	8
	movq	16 + offset(%rbp), %r11
	movq	%r11, offset(%rsp)
	.set	offset, offset + 8
	.endr
	.rept	(STACK_BYTES - 64) / 32
	movups	16 + offset(%rbp), %xmm8
	movups	32 + offset(%rbp), %xmm9
	movaps	%xmm8, offset(%rsp)
	movaps	%xmm9, 16 + offset(%rsp)
	.set	offset, offset + 32
	.endr
.endm

	.type	entry_common, @function
entry_common:
	.cfi_startproc
	leaq	entry_targets(%rip), %r10
	movq	(%r10, %r11, 8), %r10
	testq	%r10, %r10
	jz	entry_slowly
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	pushq	%rbx
	.cfi_offset %rbx, -24
	subq	$(8 + STACK_BYTES), %rsp
	movq	gate_self@gottpoff(%rip), %rbx
	movq	%fs:(%rbx), %rbx
	testq	%rbx, %rbx
	jz	2f
	incl	(%rbx) /* its depth */
	cmpl	$0, gate_state(%rip)
	jne	1f
	HAND_ON_STACK
	call	*%r10
	cmpl	$ENTRY_FAILED, %eax
	jae	4f
5:	decl	(%rbx)
	cmpl	$0, gate_state(%rip)
	jne	3f
0:	movq	-8(%rbp), %rbx
	leave
	.cfi_remember_state
	.cfi_restore %rbx
	.cfi_restore %rbp
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_restore_state
	/* The gate is not plainly open: as if nothing had been. */
1:	decl	(%rbx)
2:	movq	-8(%rbp), %rbx
	leave
	.cfi_remember_state
	.cfi_restore %rbx
	.cfi_restore %rbp
	.cfi_def_cfa %rsp, 8
	jmp	entry_slowly
	.cfi_restore_state
	/* Nor any more: somebody may wait for this thread to leave. */
3:	movq	%rax, (%rsp)
	movq	%rdx, 8(%rsp)
	movaps	%xmm0, 16(%rsp)
	movq	%rbx, %rdi
	call	gate_left
	movq	(%rsp), %rax
	movq	8(%rsp), %rdx
	movaps	16(%rsp), %xmm0
	jmp	0b
	/* In a context that has failed every call does: the way there is no hot path. */
4:	movq	%rax, (%rsp)
	movq	%rdx, 8(%rsp)
	movaps	%xmm0, 16(%rsp)
	movl	%eax, %edi
	call	entry_failed
	movq	(%rsp), %rax
	movq	8(%rsp), %rdx
	movaps	16(%rsp), %xmm0
	jmp	5b
	.cfi_endproc
	.size	entry_common, . - entry_common

	.type	entry_slowly, @function
entry_slowly:
	.cfi_startproc
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	subq	$(SAVED_BYTES + STACK_BYTES), %rsp
	movq	%rdi, -8(%rbp)
	movq	%rsi, -16(%rbp)
	movq	%rdx, -24(%rbp)
	movq	%rcx, -32(%rbp)
	movq	%r8, -40(%rbp)
	movq	%r9, -48(%rbp)
	movq	%rax, -56(%rbp)
	movaps	%xmm0, -80(%rbp)
	movaps	%xmm1, -96(%rbp)
	movaps	%xmm2, -112(%rbp)
	movaps	%xmm3, -128(%rbp)
	movaps	%xmm4, -144(%rbp)
	movaps	%xmm5, -160(%rbp)
	movaps	%xmm6, -176(%rbp)
	movaps	%xmm7, -192(%rbp)
	movl	%r11d, %edi
	call	entry_begin
	movq	%rax, %r10
	HAND_ON_STACK
	movq	-8(%rbp), %rdi
	movq	-16(%rbp), %rsi
	movq	-24(%rbp), %rdx
	movq	-32(%rbp), %rcx
	movq	-40(%rbp), %r8
	movq	-48(%rbp), %r9
	movq	-56(%rbp), %rax
	movaps	-80(%rbp), %xmm0
	movaps	-96(%rbp), %xmm1
	movaps	-112(%rbp), %xmm2
	movaps	-128(%rbp), %xmm3
	movaps	-144(%rbp), %xmm4
	movaps	-160(%rbp), %xmm5
	movaps	-176(%rbp), %xmm6
	movaps	-192(%rbp), %xmm7
	call	*%r10
	movq	%rax, -8(%rbp)
	movq	%rdx, -16(%rbp)
	movaps	%xmm0, -80(%rbp)
	movl	%eax, %edi
	call	entry_end
	movq	-8(%rbp), %rax
	movq	-16(%rbp), %rdx
	movaps	-80(%rbp), %xmm0
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size	entry_slowly, . - entry_slowly

/*
 * dlsym, dlvsym and dlopen. The loader's own ones look at who calls them, so they are jumped to, with
 * the caller's return address in place, unless @answer, which is told that address as its fourth
 * argument, has the result.
 */
.macro LOADER symbol answer exported
	.p2align 4
	.globl	\symbol, \symbol\()_old
	.type	\symbol, @function
	.type	\symbol\()_old, @function
	.symver	\symbol, \exported\()@@GLIBC_2.34
	.symver	\symbol\()_old, \exported\()@GLIBC_2.2.5
\symbol:
\symbol\()_old:
	.cfi_startproc
	_CET_ENDBR
	movq	(%rsp), %rcx
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	call	\answer
	movq	%rdx, %r11
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%r11, %r11
	jnz	1f
	ret
1:	jmp	*%r11
	.cfi_endproc
	.size	\symbol, . - \symbol
.endm

	LOADER	entry_dlsym, lookup_dlsym, dlsym
	LOADER	entry_dlvsym, lookup_dlvsym, dlvsym
	LOADER	entry_dlopen, lookup_dlopen, dlopen

	.section .note.GNU-stack, "", @progbits
