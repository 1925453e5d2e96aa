// SPDX-License-Identifier: MIT
/* Which children are whose to wait for; see reap.h. One per process, like the children themselves. */
#include "process/reap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "process/process.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROTECTED_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t protected[PROTECTED_MAX]; /* 0: free */

void reap_lock(void)
{
	pthread_mutex_lock(&lock);
}

void reap_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static pid_t *find_slot(pid_t pid)
{
	for (int i = 0; i < PROTECTED_MAX; i++)
		if (protected[i] == pid)
			return &protected[i];
	return NULL;
}

void reap_protect(pid_t pid)
{
	pid_t *slot = find_slot(pid);

	if (!slot)
		slot = find_slot(0);
	assert(slot); /* a handful of threads wait for a child each */
	*slot = pid;
}

int reap_spawn(pid_t *ret, const char *program, char *const argv[], char *const env[], int out_fd,
	       int err_fd)
{
	posix_spawn_file_actions_t actions;
	int r = posix_spawn_file_actions_init(&actions);

	if (r)
		return -r;
	r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!r)
		r = posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
	if (!r && err_fd >= 0)
		r = posix_spawn_file_actions_adddup2(&actions, err_fd, 2);
	if (!r) {
		reap_lock();
		r = posix_spawnp(ret, program, &actions, NULL, argv, env);
		if (!r)
			reap_protect(*ret);
		reap_unlock();
	}
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

bool reap_is_protected(pid_t pid)
{
	reap_lock();
	bool is = find_slot(pid);
	reap_unlock();
	return is;
}

pid_t reap_fork(void)
{
	reap_lock();
	pid_t pid = fork();
	if (pid == 0)
		return 0;
	if (pid > 0)
		reap_protect(pid);
	else
		pid = -errno;
	reap_unlock();
	return pid;
}

void reap_release(pid_t pid)
{
	reap_lock();
	pid_t *slot = find_slot(pid);
	if (slot)
		*slot = 0;
	reap_unlock();
}

/* The lock spans the wait and the end of the protection: once waited for, the number is free for
 * another child, which another thread may protect. */
static int collect(pid_t pid, int *ret_status)
{
	reap_lock();
	pid_t got = waitpid(pid, ret_status, WNOHANG);
	int r = got < 0 ? -errno : got > 0;
	pid_t *slot = r ? find_slot(pid) : NULL;
	if (slot)
		*slot = 0;
	reap_unlock();
	return r;
}

int reap_wait(pid_t pid, int *ret_status)
{
	siginfo_t info;

	while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0)
		if (errno != EINTR)
			break; /* no child of ours: collect() says so */
	int r = collect(pid, ret_status);
	return r < 0 ? r : 0;
}

int reap_poll(pid_t pid, int *ret_status)
{
	return collect(pid, ret_status);
}

int reap_orphans(void (*on_exit)(void *arg, pid_t pid, int status), void *arg)
{
	auto_free pid_t *children = NULL;
	size_t n = 0;

	int r = proc_children(getpid(), &children, &n);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		int status;

		reap_lock();
		bool reaped = !find_slot(children[i]) && waitpid(children[i], &status, WNOHANG) > 0;
		reap_unlock();
		if (reaped && on_exit)
			on_exit(arg, children[i], status);
	}
	return 0;
}

int reap_wait_for(pid_t pid, uint64_t timeout_ms)
{
	struct proc_id id = PROC_ID_NONE;
	int status;

	if (proc_identify(&id, pid, NULL) == 0 &&
	    proc_wait_gone(id, deadline_in_ms(timeout_ms)) == -ETIMEDOUT) {
		proc_signal(id, SIGKILL);
		reap_release(pid);
		return -ETIMEDOUT;
	}
	int r = reap_wait(pid, &status);
	return r < 0 ? r : status;
}
