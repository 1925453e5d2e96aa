// SPDX-License-Identifier: MIT
/*
 * Our own threads. They take no signals: those are for the other threads, which in a library belong to the program.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>

/** Starts a thread that the caller joins. Returns 0 or -errno. */
int thread_start(pthread_t *ret, void *(*fn)(void *arg), void *arg);

/** Starts a detached thread with a stack of @stack_bytes (0: the C library's default). Returns 0 or -errno. */
int thread_start_detached(void *(*fn)(void *arg), void *arg, size_t stack_bytes);
