// SPDX-License-Identifier: MIT
/*
 * What the kernel tells only a thread itself. The timer slack of others it tells those with CAP_SYS_NICE, which the CRIU of a user has
 * not; that a thread keeps its capabilities, CRIU writes down, but could not set as a user; MDWE it does not know.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "criu-plugin/plugin.h"
#include "criu-plugin/tracee.h"

enum { GET_WRITE_OR_RUN = 66 }; /* prctl(2), PR_GET_MDWE, which older headers lack */

static int64_t keyring_of(pid_t pid, int32_t which)
{
	int64_t its = 0;
	int r = tracee_call(pid, SYS_keyctl, KEYCTL_GET_KEYRING_ID, (uint64_t)(int64_t)which, &its);

	return r == 0 ? its : 0;
}

/* A restored process has that of the shim. One that has none is given that of its user where it asks for it, and processes of root's
 * shim begin with an empty one (base/user.c), of which nothing is lost. */
static bool has_other_keyring(pid_t pid)
{
	const long own = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0);
	const int64_t its = own > 0 ? keyring_of(pid, KEY_SPEC_SESSION_KEYRING) : 0;

	return its > 0 && its != own && its != keyring_of(pid, KEY_SPEC_USER_SESSION_KEYRING) &&
	       syscall(SYS_keyctl, KEYCTL_READ, its, NULL, 0) != 0;
}

static bool is_told_to_us(pid_t tid)
{
	char path[48], text[32];

	snprintf(path, sizeof(path), "/proc/%d/timerslack_ns", tid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && read(fd, text, sizeof(text)) > 0;
}

/* 0: also where this kernel does not know what is asked. */
static int ask(pid_t tid, int what, uint64_t *ret)
{
	int64_t result = 0;
	int r = tracee_call(tid, SYS_prctl, (uint64_t)what, 0, &result);

	*ret = r == 0 && result > 0 ? (uint64_t)result : 0;
	return r;
}

/* Returns whether it is under MDWE. */
static bool read_thread(struct thread_tellings *t, pid_t pid, int32_t inner_pid, pid_t tid)
{
	struct thread_told told = { .pid = inner_pid, .timer_slack_ns = 0 };
	uint64_t keeps = 0, rules = 0;
	int r = 0;

	if (tid == pid)
		r = ask(tid, GET_WRITE_OR_RUN, &rules);
	if (!is_told_to_us(tid)) {
		if (r == 0)
			r = ask(tid, PR_GET_TIMERSLACK, &told.timer_slack_ns);
		if (r == 0)
			r = ask(tid, PR_GET_KEEPCAPS, &keeps);
		t->n_unknown += r < 0;
	}
	if (!told.timer_slack_ns && !rules)
		return false;
	told.keeps_capabilities = (uint32_t)keeps;
	told.write_or_run = (uint32_t)rules;
	told.tid = tracee_inner_number(tid);
	if (t->n < THREAD_TOLD_MAX)
		t->items[t->n++] = told;
	else
		t->n_unknown++;
	return rules != 0;
}

bool tellings_read(struct thread_tellings *t, pid_t pid)
{
	const int32_t inner_pid = tracee_inner_number(pid);
	char path[32];
	bool is_bound = false;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.')
			is_bound |= read_thread(t, pid, inner_pid, (pid_t)atoi(e->d_name));
	t->n_keyrings += has_other_keyring(pid);
	return is_bound;
}
