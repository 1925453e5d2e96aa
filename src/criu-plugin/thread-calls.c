// SPDX-License-Identifier: MIT
/*
 * System calls that restored threads make for themselves, as others cannot make them: the shim asks for them in the table
 * (hidden.h), before a thread runs on. CRIU holds all threads, with the registers that they are to have.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "criu-plugin/plugin.h"
#include "criu-plugin/tracee.h"

/* In a thread whose filters of system calls are suspended, where it has any: what is asked for might end it. */
static int begin_tracing(pid_t tid)
{
	const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD;
	char path[64];
	auto_free char *status = NULL;

	if (ptrace(PTRACE_SETOPTIONS, tid, NULL, (void *)(options | PTRACE_O_SUSPEND_SECCOMP)) == 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	int r = file_read(AT_FDCWD, path, 1 << 16, &status, NULL);
	if (r < 0)
		return r;
	if (!strstr(status, "\nSeccomp:\t0\n"))
		return -EPERM;
	return ptrace(PTRACE_SETOPTIONS, tid, NULL, (void *)options) < 0 ? -errno : 0;
}

_Static_assert((int)HIDDEN_CALL_WORDS == (int)TRACEE_WORDS_MAX, "a mask");

static int64_t make_call(pid_t tid, const struct hidden_call *c)
{
	uint64_t mask[HIDDEN_CALL_WORDS];
	struct tracee_call call = { .number = c->number,
				    .words = mask,
				    .n_words = c->mask_argument ? HIDDEN_CALL_WORDS : 0,
				    .words_argument = (unsigned)c->mask_argument };
	int64_t result = 0;
	int r = begin_tracing(tid);

	memcpy(call.arguments, c->arguments, sizeof(call.arguments));
	memcpy(mask, c->mask, sizeof(mask));
	if (r == 0)
		r = tracee_make(tid, &call, &result);
	return r < 0 ? r : result;
}

/* ---- what a process is asked for ---- */

static int64_t make_calls(pid_t pid, pid_t tid, const struct hidden_call *c)
{
	char path[64];
	int64_t result = 0;

	if (tid)
		return make_call(tid, c);
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.') {
			int64_t one = make_call((pid_t)atoi(e->d_name), c);

			result = one < 0 ? one : result;
		}
	return dir ? result : -errno;
}

int64_t calls_make(const struct hidden_table *t, pid_t pid)
{
	uint32_t n = atomic_load_explicit(&t->calls.n, memory_order_acquire);
	int64_t result = 0;

	for (uint32_t i = 0; i < n && i < HIDDEN_CALLS_MAX; i++) {
		const struct hidden_call *c = &t->calls.items[i];

		if (c->pid != pid)
			continue;
		int64_t one = make_calls(pid, (pid_t)c->tid, c);
		result = one < 0 ? one : result;
	}
	return result;
}
