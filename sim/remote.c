// SPDX-License-Identifier: MIT
/*
 * The caller's side of the checkpoint calls: finds the control block of another process, asks, and
 * waits until it is done or dead. The work is the target's: it goes on when the caller dies.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "ctl.h"
#include "sim.h"

/* H200: what a call returns without reaching the target. */
enum {
	RESULT_NO_PROCESS = CUDA_ERROR_OPERATING_SYSTEM,  /* 0, negative, or of no process */
	RESULT_NO_CLIENT = CUDA_ERROR_NOT_INITIALIZED,	  /* lives or is a zombie, but no cuInit */
	RESULT_TARGET_DIED = CUDA_ERROR_OPERATING_SYSTEM, /* in the middle of the call */
	RESULT_NO_ACCESS = CUDA_ERROR_NOT_PERMITTED,	  /* not measured */
};

enum { CALLER_KILLED_CHECK_MS = 50, STATUS_BYTES_MAX = 65536 };

struct peer_process {
	int pidfd, fd; /* fd: of the control block, a description of our own */
	int tid;       /* of the restore thread, as we see it */
	struct ctl *ctl;
};

#define TARGET_EMPTY ((struct peer_process){ .pidfd = -1, .fd = -1 })

static void target_close(struct peer_process *t)
{
	cleanup_close(&t->pidfd);
	cleanup_close(&t->fd);
	if (t->ctl)
		munmap(t->ctl, sizeof(*t->ctl));
}
DEFINE_AUTO_FINI(struct peer_process, target_close)

/* The id of thread @tid of @pid in its own pid namespace: the last number of "NSpid:". */
static int inner_tid(int pid, const char *tid)
{
	auto_free char *text = NULL;
	char path[64], *line, *end;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/status", pid, tid);
	if (file_read(AT_FDCWD, path, STATUS_BYTES_MAX, &text, NULL) < 0)
		return -1;
	line = strstr(text, "\nNSpid:");
	end = line ? strchr(line + 1, '\n') : NULL;
	if (!end)
		return atoi(tid);
	*end = '\0';
	return atoi(strrchr(line, '\t') + 1);
}

/* The restore thread of @pid as we see it, or -1: the block is not of that process. */
static int find_restore_thread(int pid, uint32_t wanted)
{
	char path[64];
	auto_closedir DIR *dir = NULL;
	struct dirent *entry;

	snprintf(path, sizeof(path), "%u", wanted);
	if (inner_tid(pid, path) == (int)wanted)
		return (int)wanted;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.' && inner_tid(pid, entry->d_name) == (int)wanted)
			return atoi(entry->d_name);
	return -1;
}

static bool is_block(int dir, const char *name)
{
	char link[64];
	ssize_t n = readlinkat(dir, name, link, sizeof(link) - 1);

	if (n < 0)
		return false;
	link[n] = '\0';
	return !strncmp(link, "/memfd:" CTL_MEMFD_NAME, strlen("/memfd:" CTL_MEMFD_NAME));
}

static bool try_block(struct peer_process *t, int pid, int dir, const char *name)
{
	auto_close int fd = openat(dir, name, O_RDWR | O_CLOEXEC);
	struct stat st;
	struct ctl *ctl;
	int tid;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size != sizeof(*ctl))
		return false;
	ctl = mmap(NULL, sizeof(*ctl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ctl == MAP_FAILED)
		return false;
	/* A child between fork and exec has its parent's descriptor, but not its thread. */
	tid = ctl->magic == CTL_MAGIC && ctl->version == CTL_VERSION
		      ? find_restore_thread(pid, ctl->restore_tid)
		      : -1;
	if (tid < 0) {
		munmap(ctl, sizeof(*ctl));
		return false;
	}
	t->fd = take_fd(&fd);
	t->ctl = ctl;
	t->tid = tid;
	return true;
}

static CUresult find_block(struct peer_process *t, int pid)
{
	char path[64];
	auto_closedir DIR *dir = NULL;
	struct dirent *entry;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return errno == EACCES ? (CUresult)RESULT_NO_ACCESS : (CUresult)RESULT_NO_PROCESS;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && is_block(dirfd(dir), entry->d_name) &&
		    try_block(t, pid, dirfd(dir), entry->d_name))
			return CUDA_SUCCESS;
	return errno == EACCES ? (CUresult)RESULT_NO_ACCESS : (CUresult)RESULT_NO_CLIENT;
}

static bool is_dead(const struct peer_process *t)
{
	struct pollfd poll_fd = { .fd = t->pidfd, .events = POLLIN };

	return poll(&poll_fd, 1, 0) > 0;
}

/* H200: the id of any thread stands for its process. -1: there is no such thread. */
static int process_of(int tid)
{
	auto_free char *text = NULL;
	char path[64], *line;

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	if (tid <= 0 || file_read(AT_FDCWD, path, STATUS_BYTES_MAX, &text, NULL) < 0)
		return -1;
	line = strstr(text, "\nTgid:");
	return line ? atoi(line + strlen("\nTgid:")) : -1;
}

static CUresult target_open(struct peer_process *t, int pid)
{
	if (!config_get())
		return CUDA_ERROR_SYSTEM_NOT_READY;
	pid = process_of(pid);
	t->pidfd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	if (t->pidfd < 0)
		return (CUresult)RESULT_NO_PROCESS;
	if (is_dead(t))
		return (CUresult)RESULT_NO_CLIENT;
	errno = 0;
	return find_block(t, pid);
}

struct watch {
	struct peer_process *target;
	uint32_t asked;
	int stop; /* eventfd */
};

/* Answers in place of a target that died, so that the process that waits for it wakes up. */
static void *watch_thread(void *data)
{
	struct watch *watch = data;
	struct ctl *ctl = watch->target->ctl;
	struct pollfd fds[] = { { .fd = watch->target->pidfd, .events = POLLIN },
				{ .fd = watch->stop, .events = POLLIN } };

	while (poll(fds, 2, -1) < 0)
		;
	if (!fds[0].revents || atomic_load(&ctl->done) == watch->asked)
		return NULL;
	ctl->result = RESULT_TARGET_DIED;
	atomic_store(&ctl->done, watch->asked);
	ctl_futex_wake(&ctl->done);
	return NULL;
}

static int start_watch(struct watch *watch, pthread_t *ret)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(ret, NULL, watch_thread, watch);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

/* Waits until request @asked is answered; false when @deadline_ns came first. */
static bool wait_done(struct peer_process *t, uint32_t asked, uint64_t deadline_ns)
{
	struct watch watch = { .target = t, .asked = asked };
	auto_close int stop = -1;
	pthread_t thread;
	uint32_t done;

	if (atomic_load(&t->ctl->done) == asked)
		return true;
	watch.stop = stop = eventfd(0, EFD_CLOEXEC);
	if (stop < 0 || start_watch(&watch, &thread))
		return false;
	while ((done = atomic_load(&t->ctl->done)) != asked && clock_now_ns() < deadline_ns)
		ctl_futex_wait(&t->ctl->done, done, deadline_ns);
	eventfd_write(stop, 1);
	pthread_join(thread, NULL);
	return atomic_load(&t->ctl->done) == asked;
}

/*
 * One caller at a time. The flock goes with its holder, however that ends; a caller that is killed
 * wakes nobody up, hence the look from time to time.
 */
static bool take_turn(struct peer_process *t, uint64_t deadline_ns)
{
	while (flock(t->fd, LOCK_EX | LOCK_NB) < 0) {
		uint32_t freed = atomic_load(&t->ctl->freed);
		uint64_t look = deadline_in_ms(CALLER_KILLED_CHECK_MS);

		if (clock_now_ns() >= deadline_ns)
			return false;
		ctl_futex_wait(&t->ctl->freed, freed, look < deadline_ns ? look : deadline_ns);
	}
	return true;
}

static void give_turn(struct peer_process *t)
{
	flock(t->fd, LOCK_UN);
	atomic_fetch_add(&t->ctl->freed, 1);
	ctl_futex_wake(&t->ctl->freed);
}

/*
 * H200: the time-out counts from when the process answers: a lock of a stopped process outlasts it,
 * and succeeds once the process is continued.
 */
static CUresult ask(struct peer_process *t, enum ctl_op op, unsigned int timeout_ms, uint64_t deadline_ns,
		    const struct restore_request *request)
{
	uint32_t asked = atomic_load(&t->ctl->asked);

	/* An earlier caller may have died and left a request that is still being served. */
	if (!wait_done(t, asked, deadline_ns))
		return CUDA_ERROR_NOT_READY;
	if (is_dead(t))
		return (CUresult)RESULT_TARGET_DIED;
	if (request)
		t->ctl->restore = *request;
	t->ctl->op = op;
	t->ctl->timeout_ms = timeout_ms;
	atomic_store(&t->ctl->asked, ++asked);
	ctl_futex_wake(&t->ctl->asked);
	if (!wait_done(t, asked, DEADLINE_NEVER))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return (CUresult)t->ctl->result;
}

/* Leaves @target open for the caller to look at and close. */
static CUresult call_target(const char *name, int pid, enum ctl_op op, unsigned int timeout_ms,
			    const struct restore_request *request, struct peer_process *target)
{
	uint64_t deadline = timeout_ms ? deadline_in_ms(timeout_ms) : DEADLINE_NEVER;
	CUresult r = sim_fault(name);

	if (!r)
		r = target_open(target, pid);
	if (r)
		return r;
	if (!take_turn(target, deadline))
		return CUDA_ERROR_NOT_READY;
	r = ask(target, op, timeout_ms, deadline, request);
	give_turn(target);
	return r;
}

static CUresult call(const char *name, int pid, enum ctl_op op, unsigned int timeout_ms,
		     const struct restore_request *request)
{
	auto_(target_close) struct peer_process target = TARGET_EMPTY;

	return call_target(name, pid, op, timeout_ms, request, &target);
}

static CUresult fill_request(struct restore_request *ret, const CUcheckpointRestoreArgs *args)
{
	const struct config *config = config_get();

	if (!config)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	*ret = (struct restore_request){ .machine = config->machine };
	if (!args || !args->gpuPairsCount)
		return CUDA_SUCCESS;
	/* H200: remapping came with driver 580. */
	if (config->driver < 580)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!args->gpuPairs || args->gpuPairsCount > CONFIG_GPUS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	ret->n_pairs = args->gpuPairsCount;
	memcpy(ret->pairs, args->gpuPairs, ret->n_pairs * sizeof(*ret->pairs));
	return CUDA_SUCCESS;
}

/* H200: even the state is answered by the process itself: a stopped one does not answer. */
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	auto_(target_close) struct peer_process target = TARGET_EMPTY;
	CUresult r;

	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	r = call_target(__func__, pid, CTL_QUERY, 0, NULL, &target);
	if (!r)
		*state = (CUprocessState)atomic_load(&target.ctl->state);
	return r;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	auto_(target_close) struct peer_process target = TARGET_EMPTY;
	CUresult r;

	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	r = call_target(__func__, pid, CTL_QUERY, 0, NULL, &target);
	if (!r)
		*tid = target.tid;
	return r;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	return call(__func__, pid, CTL_LOCK, args ? args->timeoutMs : 0, NULL);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	return call(__func__, pid, CTL_CHECKPOINT, 0, NULL);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct restore_request request;
	CUresult r = fill_request(&request, args);

	return r ? r : call(__func__, pid, CTL_RESTORE, 0, &request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	return call(__func__, pid, CTL_UNLOCK, 0, NULL);
}
