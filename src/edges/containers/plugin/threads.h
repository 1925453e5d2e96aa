// SPDX-License-Identifier: MIT
/*
 * Threads of a restored container that CRIU holds by ptrace while GPU state is restored. The threads that do that
 * work run; all others are stopped where the checkpoint found them, and one of them may hold a lock that the first
 * ones need, such as that of the C library's allocator. So the other threads of the same processes may run briefly
 * from time to time: each executes its program's own instructions up to its next system call. This has no effect
 * outside of its process, so the image can be restored again if the restore fails.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** A thread that runs, and its final signal mask. */
struct runner {
	pid_t tid;
	uint64_t mask;
	bool is_agent; /* which keeps the other threads of its process out of the driver */
};

/** From now on the kernel ends @tid with its tracer. -errno. */
int thread_bind(pid_t tid);

/** Lets it run without signals. -errno. */
int thread_let_run(struct runner *t);

/** Stops it in the state in which CRIU left it, except that system calls are restarted. -errno. */
int thread_stop_again(const struct runner *t);

struct bystanders; /* the threads that step aside */

/** The other threads, apart from @runners, of the processes that have an agent: those of other processes might enter
 * the driver, and wait there with a lock of its own. NULL: out of memory. */
struct bystanders *bystanders_find(const struct runner *runners, size_t n);
void bystanders_free(struct bystanders *b);

/** Lets them run for a moment to release locks. All are stopped again when it returns; -errno: one is not. */
int bystanders_step(struct bystanders *b);

/** Whether it may make this system call during that: one whose effects only its own process sees. Pure. */
bool bystander_may_call(uint64_t nr, const uint64_t arguments[static 6]);
