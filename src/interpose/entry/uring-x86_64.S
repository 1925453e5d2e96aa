/* SPDX-License-Identifier: MIT
 *
 * syscall(2) of the C library, but for the one that makes an io_uring (entry.c). It takes no look at anything else: the
 * arguments go to the kernel in its registers, and its errors to errno, as in the library's own.
 */
#include <asm/unistd_64.h>
#include <cet.h>

#define ERROR_LAST -4095

	.text
	.p2align 4
	.globl	syscall
	.type	syscall, @function
syscall:
	.cfi_startproc
	_CET_ENDBR
	cmpq	$__NR_io_uring_setup, %rdi
	je	2f
0:	movq	%rdi, %rax
	movq	%rsi, %rdi
	movq	%rdx, %rsi
	movq	%rcx, %rdx
	movq	%r8, %r10
	movq	%r9, %r8
	movq	8(%rsp), %r9
	syscall
	cmpq	$ERROR_LAST, %rax
	jae	1f
	ret
1:	negl	%eax
	/* The error in %eax. */
3:	pushq	%rax
	.cfi_adjust_cfa_offset 8
	call	__errno_location@PLT
	popq	%rcx
	.cfi_adjust_cfa_offset -8
	movl	%ecx, (%rax)
	movq	$-1, %rax
	ret
2:	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	call	uring_refused
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testl	%eax, %eax
	jnz	3b
	jmp	0b
	.cfi_endproc
	.size	syscall, . - syscall

	.section .note.GNU-stack, "", @progbits
