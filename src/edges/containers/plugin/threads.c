// SPDX-License-Identifier: MIT
/* Threads that run while CRIU holds the rest. See threads.h. */
#include "edges/containers/plugin/threads.h"

#include <dirent.h>
#include <errno.h>
#include <linux/audit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"

#if defined(__x86_64__)
#define OUR_CALLS AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_CALLS AUDIT_ARCH_AARCH64
#endif

enum { STEP_MS = 25, LOOK_US = 200, CALL_STOP = SIGTRAP | 0x80 };

/* Signals that a thread causes itself. If they were blocked, they would end the process; unblocked, the thread stops,
 * and causes the signal again when it continues. */
static const int own_signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };

enum where {
	HELD, /* in the middle of the program */
	RUNNING,
	STAYS, /* at the edge of a system call, or gone: it gets no further */
};

struct bystander {
	struct runner thread;
	enum where where;
	bool is_masked; /* it has not its own mask now */
};

struct bystanders {
	struct bystander *items;
	size_t n;
};

/* ---- one thread ---- */

static int get_mask(pid_t tid, uint64_t *ret)
{
	return ptrace(PTRACE_GETSIGMASK, tid, sizeof(*ret), ret) < 0 ? -errno : 0;
}

static int set_mask(pid_t tid, uint64_t mask)
{
	return ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask) < 0 ? -errno : 0;
}

static int set_options(pid_t tid, long options)
{
	return ptrace(PTRACE_SETOPTIONS, tid, NULL, (void *)options) < 0 ? -errno : 0;
}

/* CRIU itself asks for nothing of what these options replace any more. */
int thread_bind(pid_t tid)
{
	return set_options(tid, PTRACE_O_EXITKILL);
}

/* It must only run the driver's code. Filters of system calls apply to it again. */
int thread_let_run(struct runner *t)
{
	int r = get_mask(t->tid, &t->mask);

	if (r == 0)
		r = set_mask(t->tid, ~0ull);
	if (r == 0)
		r = thread_bind(t->tid);
	if (r < 0)
		return r;
	return ptrace(PTRACE_CONT, t->tid, NULL, NULL) < 0 ? -errno : 0;
}

int thread_stop_again(const struct runner *t)
{
	int status;

	if (ptrace(PTRACE_INTERRUPT, t->tid, NULL, NULL) < 0)
		return -errno;
	for (;;) {
		pid_t pid = waitpid(t->tid, &status, __WALL);

		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0 || !WIFSTOPPED(status))
			return -ESRCH;
		if (status >> 16 == PTRACE_EVENT_STOP)
			break;
		if (ptrace(PTRACE_CONT, t->tid, NULL, (void *)(long)WSTOPSIG(status)) < 0)
			return -errno;
	}
	return set_mask(t->tid, t->mask);
}

/* ---- the threads beside those that run ---- */

static bool is_in(const struct bystanders *b, pid_t tid)
{
	for (size_t i = 0; i < b->n; i++)
		if (b->items[i].thread.tid == tid)
			return true;
	return false;
}

static int add(struct bystanders *b, pid_t tid)
{
	return array_add(b->items, b->n, (struct bystander){ .thread.tid = tid });
}

static bool runs(const struct runner *runners, size_t n, pid_t tid)
{
	for (size_t i = 0; i < n; i++)
		if (runners[i].tid == tid)
			return true;
	return false;
}

/* Any thread of a process identifies all of it to the kernel. */
static int add_beside(struct bystanders *b, pid_t of, const struct runner *runners, size_t n)
{
	char path[64];
	const struct dirent *entry;
	int r = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", of);
	auto_closedir DIR *dir = opendir(path);
	while (dir && r == 0 && (entry = readdir(dir))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (tid > 0 && !runs(runners, n, tid) && !is_in(b, tid))
			r = add(b, tid);
	}
	return r;
}

struct bystanders *bystanders_find(const struct runner *runners, size_t n)
{
	struct bystanders *b = calloc(1, sizeof(*b));

	for (size_t i = 0; b && i < n; i++)
		if (runners[i].is_agent && add_beside(b, runners[i].tid, runners, n) < 0) {
			bystanders_free(b);
			return NULL;
		}
	return b;
}

void bystanders_free(struct bystanders *b)
{
	if (b)
		free(b->items);
	free(b);
}

/* ---- stepping aside ---- */

bool bystander_may_call(uint64_t nr, const uint64_t arguments[static 6])
{
	switch (nr) {
	case SYS_futex: /* the holder of a lock may have to wait for another lock first */
	case SYS_brk:
	case SYS_munmap:
	case SYS_mremap:
	case SYS_mprotect:
	case SYS_sched_yield:
	case SYS_gettid:
	case SYS_getpid:
		return true;
	case SYS_mmap: /* of no device */
		return arguments[3] & MAP_ANONYMOUS;
	case SYS_madvise: /* MADV_REMOVE also removes pages of the mapped file */
		return arguments[2] != MADV_REMOVE;
	case SYS_prctl: /* the name of a heap */
		return arguments[0] == PR_SET_VMA;
	default:
		return false;
	}
}

static bool may_go_on(pid_t tid, int status)
{
	struct __ptrace_syscall_info info = { 0 };

	if (status >> 16 ==
	    PTRACE_EVENT_STOP) /* of an earlier step, if it is no stop of the whole process */
		return WSTOPSIG(status) == SIGTRAP;
	if (WSTOPSIG(status) != CALL_STOP ||
	    ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof(info), &info) < 0)
		return false;
	if (info.op == PTRACE_SYSCALL_INFO_EXIT)
		return true;
	return info.op == PTRACE_SYSCALL_INFO_ENTRY && info.arch == OUR_CALLS &&
	       bystander_may_call(info.entry.nr, info.entry.args);
}

static void go_on(struct bystander *b)
{
	b->where = ptrace(PTRACE_SYSCALL, b->thread.tid, NULL, NULL) < 0 ? STAYS : RUNNING;
}

static void begin(struct bystander *b)
{
	uint64_t mask = ~0ull;
	pid_t tid = b->thread.tid;

	for (size_t i = 0; i < sizeof(own_signals) / sizeof(*own_signals); i++)
		mask &= ~(1ull << (own_signals[i] - 1));
	b->where = STAYS;
	if (get_mask(tid, &b->thread.mask) < 0 || set_mask(tid, mask) < 0)
		return; /* it has ended */
	b->is_masked = true;
	if (set_options(tid, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) == 0)
		go_on(b);
}

/* Returns whether the thread had an event. */
static bool attend(struct bystander *b)
{
	int status;
	pid_t pid = waitpid(b->thread.tid, &status, __WALL | WNOHANG);

	if (pid == 0 || (pid < 0 && errno == EINTR))
		return false;
	b->where = STAYS;
	if (pid > 0 && WIFSTOPPED(status) && may_go_on(pid, status))
		go_on(b);
	return true;
}

static void attend_all(struct bystanders *b)
{
	const uint64_t deadline = deadline_in_ms(STEP_MS);
	bool running = true;

	while (running && clock_now_ns() < deadline) {
		bool told = false;

		running = false;
		for (size_t i = 0; i < b->n; i++) {
			if (b->items[i].where != RUNNING)
				continue;
			told = attend(&b->items[i]) || told;
			running = running || b->items[i].where == RUNNING;
		}
		if (running && !told)
			usleep(LOOK_US);
	}
}

/* It may stop for something else first, and for this when it runs again. */
static int interrupt(struct bystander *b)
{
	int status;
	pid_t pid;

	b->where = STAYS;
	if (ptrace(PTRACE_INTERRUPT, b->thread.tid, NULL, NULL) < 0)
		return -errno;
	while ((pid = waitpid(b->thread.tid, &status, __WALL)) < 0 && errno == EINTR)
		;
	if (pid < 0 || !WIFSTOPPED(status))
		return -ESRCH;
	if (may_go_on(pid, status))
		b->where = HELD;
	return 0;
}

static int hold(struct bystander *b)
{
	int r = b->where == RUNNING ? interrupt(b) : 0;

	if (r == 0 && b->is_masked)
		r = set_mask(b->thread.tid, b->thread.mask);
	b->is_masked = false;
	return r == -ESRCH ? 0 : r; /* it has ended, which is for CRIU to find */
}

int bystanders_step(struct bystanders *b)
{
	int r = 0;

	for (size_t i = 0; i < b->n; i++)
		if (b->items[i].where == HELD)
			begin(&b->items[i]);
	attend_all(b);
	for (size_t i = 0; i < b->n; i++) {
		int one = hold(&b->items[i]);

		r = r == 0 ? one : r;
	}
	return r;
}
