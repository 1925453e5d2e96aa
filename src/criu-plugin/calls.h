// SPDX-License-Identifier: MIT
/*
 * System calls that a stop interrupts. A wait for a relative time (poll(2), nanosleep(2), clock_nanosleep(2), futex(2)) goes on
 * after a stop: the kernel keeps its end, and the thread calls restart_syscall(2). CRIU cannot save that, and has the call
 * fail with EINTR, in the image and in a process that goes on, although no signal was handled. So such a thread is made to call
 * the same again before CRIU looks at it. It waits for the whole time once more: later, never early.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * Sees to it for all threads of process @pid, which we trace and which stand still. Returns how many waits will end
 * early anyway, since restart_syscall(2) does not show which call it continues.
 */
unsigned calls_restart(pid_t pid);

/** Reads a word of a process; false: it cannot be read. */
typedef bool (*word_fn)(void *arg, uint64_t address, uint64_t *ret);

/** The call that restart_syscall(2) goes on with, by the instruction that ends at @end; -1: that does not tell. Pure but for @word. */
int64_t call_by_code(uint64_t end, word_fn word, void *arg);

/**
 * The same by where in the kernel it waits (@wchan, as /proc/PID/wchan names it; "0" or nothing: not known) and by its arguments; -1:
 * they do not tell. Pure but for @word.
 */
int64_t call_by_arguments(const uint64_t arguments[static 4], const char *wchan, word_fn word,
			  void *arg);

/** Whether a signal that a thread handles is about to interrupt it, by its /proc/PID/task/TID/status. Pure. */
bool call_is_interrupted(const char *status);
