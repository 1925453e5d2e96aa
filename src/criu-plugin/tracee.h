// SPDX-License-Identifier: MIT
/*
 * A thread that we trace (PTRACE_SEIZE) and that stands still: a few of its own instructions, or a system call, and it stands still
 * as before. It meets no signal meanwhile. Steps are for x86-64 alone, elsewhere they are -ENOTSUP.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** The number of thread @tid in its innermost pid namespace, which is the same after a restore; 0: it has ended. */
int tracee_inner_number(pid_t tid);

/** What it stopped at. */
enum tracee_stop {
	TRACEE_INTERRUPTED, /* where it was when it was interrupted */
	TRACEE_AT_CALL,	    /* before a system call, which it has not made yet and will make */
	TRACEE_ELSEWHERE, /* by a signal that its own instructions bring it; the same comes again when it goes on */
};

/** Lets it run for at most @us, and no further than to its next system call. @ret is what it stopped at. 0, -errno. */
int tracee_step(pid_t tid, unsigned us, enum tracee_stop *ret);

/**
 * Lets it run instruction by instruction until @is_enough() of the thread is not 0, at most until @deadline_ns, and no further than
 * to its next system call. 0: none was enough; else what @is_enough() returned, or -errno. @ret is what it stopped at.
 */
int tracee_walk(pid_t tid, uint64_t deadline_ns, int (*is_enough)(pid_t tid, void *arg), void *arg,
		enum tracee_stop *ret);

/** Whether it was interrupted in a system call. 1, 0, -errno. */
int tracee_is_in_call(pid_t tid);

enum { TRACEE_WORDS_MAX = 16 };

/** A system call. */
struct tracee_call {
	uint64_t number, arguments[6];
	/* Below its stack, where all is as before afterwards, the thread has @n_words for the call, which are read back into @words;
	 * their address is the argument @words_argument. No other thread of the process may run then. */
	uint64_t *words; /* borrowed */
	size_t n_words;	 /* at most TRACEE_WORDS_MAX; 0: none */
	unsigned words_argument;
};

/** Has it make a system call by an instruction of the kernel's own code in its memory (vdso(7)). @ret is what the call returned. 0,
 * -errno: it was not made. */
int tracee_make(pid_t tid, const struct tracee_call *call, int64_t *ret);

/** The same of a call with two arguments, all others being 0. */
int tracee_call(pid_t tid, long nr, uint64_t first, uint64_t second, int64_t *ret);

/** The same of a call that fills in a word whose address is the second argument. 0; -errno, also of the call. */
int tracee_ask(pid_t tid, long nr, uint64_t first, uint64_t *ret);
