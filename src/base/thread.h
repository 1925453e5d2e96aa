// SPDX-License-Identifier: MIT
/*
 * Threads of our own. They take no signals: those are for the threads that the program had before, of which
 * one may be another program's.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>

/** Starts a thread that the caller joins. Returns 0 or -errno. */
int thread_start(pthread_t *ret, void *(*fn)(void *arg), void *arg);

/** Starts a thread that nobody joins, with a stack of @stack_bytes (0: as the C library has it). Returns 0
 * or -errno. */
int thread_start_detached(void *(*fn)(void *arg), void *arg, size_t stack_bytes);
