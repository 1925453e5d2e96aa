// SPDX-License-Identifier: MIT
/* System calls that are made again; see calls.h. */
#include "criu-plugin/calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

/* ---- which call it was ---- */

#if defined(__x86_64__)

enum { WORD = sizeof(uint64_t), CLOCKS = 16, DESCRIPTORS_MAX = 1 << 20 };

static bool read_byte(uint8_t *ret, uint64_t address, word_fn word, void *arg)
{
	uint64_t value;

	if (!word(arg, address & ~(uint64_t)(WORD - 1), &value))
		return false;
	*ret = (uint8_t)(value >> address % WORD * 8);
	return true;
}

static bool read_bytes(uint8_t *ret, size_t n, uint64_t address, word_fn word, void *arg)
{
	bool ok = true;

	for (size_t i = 0; ok && i < n; i++)
		ok = read_byte(&ret[i], address + i, word, arg);
	return ok;
}

static bool can_read(uint64_t address, word_fn word, void *arg)
{
	uint8_t byte;

	return read_byte(&byte, address, word, arg);
}

static bool is_wait(uint64_t nr)
{
	return nr == SYS_poll || nr == SYS_nanosleep || nr == SYS_clock_nanosleep ||
	       nr == SYS_futex;
}

/* Most code puts the number into the register just before: mov $NR,%eax (or %rax); syscall. */
int64_t call_by_code(uint64_t end, word_fn word, void *arg)
{
	static const uint8_t short_move[] = { 0xb8 }, long_move[] = { 0x48, 0xc7, 0xc0 },
			     syscall_code[] = { 0x0f, 0x05 };
	enum { NUMBER = 4, CODE = sizeof(long_move) + NUMBER + sizeof(syscall_code) };
	const size_t at = sizeof(long_move); /* of the number */
	uint8_t code[CODE];
	uint32_t nr;

	if (!read_bytes(code, CODE, end - CODE, word, arg) ||
	    memcmp(code + at + NUMBER, syscall_code, sizeof(syscall_code)) != 0 ||
	    (memcmp(code, long_move, sizeof(long_move)) != 0 && code[at - 1] != short_move[0]))
		return -1;
	memcpy(&nr, code + at, NUMBER);
	return is_wait(nr) ? (int64_t)nr : -1;
}

static bool is_time(uint64_t address, word_fn word, void *arg)
{
	struct timespec t;

	return read_bytes((uint8_t *)&t, sizeof(t), address, word, arg) && t.tv_sec >= 0 &&
	       t.tv_nsec >= 0 && t.tv_nsec < (long)NS_PER_S;
}

static bool may_be_room(uint64_t address, word_fn word, void *arg)
{
	return !address || can_read(address, word, arg);
}

/* The kernel looks at 32 bits of it, which are negative for a clock of CPU time. The address of anything is rarely as small. */
static bool is_clock(uint64_t argument)
{
	const uint64_t high = argument >> 32;

	return (high == 0 || high == UINT32_MAX) && (int32_t)argument < CLOCKS;
}

static bool may_be(uint64_t nr, const uint64_t a[static 4], word_fn word, void *arg)
{
	switch (nr) {
	case SYS_poll:
		return a[1] < DESCRIPTORS_MAX && (!a[1] || can_read(a[0], word, arg));
	case SYS_nanosleep:
		return is_time(a[0], word, arg) && may_be_room(a[1], word, arg);
	case SYS_clock_nanosleep:
		return is_clock(a[0]) && !a[1] && is_time(a[2], word, arg) &&
		       may_be_room(a[3], word, arg);
	case SYS_futex: {
		const uint64_t op = a[1] & ~(uint64_t)(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);

		return (op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET) && a[0] % 4 == 0 &&
		       can_read(a[0], word, arg) && is_time(a[3], word, arg);
	}
	default:
		return false;
	}
}

/* The names of the kernel's functions that wait have "poll" or "futex" in them, and those of a sleep neither. */
static bool may_wait_in(uint64_t nr, const char *wchan)
{
	const bool in_poll = strstr(wchan, "poll"), in_futex = strstr(wchan, "futex");

	if (!*wchan || !strcmp(wchan, "0"))
		return true;
	return nr == SYS_poll ? in_poll : nr == SYS_futex ? in_futex : !in_poll && !in_futex;
}

int64_t call_by_arguments(const uint64_t arguments[static 4], const char *wchan, word_fn word,
			  void *arg)
{
	static const uint64_t waits[] = { SYS_poll, SYS_nanosleep, SYS_clock_nanosleep, SYS_futex };
	int64_t found = -1;

	for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
		if (!may_wait_in(waits[i], wchan) || !may_be(waits[i], arguments, word, arg))
			continue;
		if (found >= 0)
			return -1;
		found = (int64_t)waits[i];
	}
	return found;
}

/* ---- a thread ---- */

/* What the kernel leaves as the result of an interrupted call, for itself (linux/errno.h). The first: it is made again
 * where no signal is handled, as it was; the second: as restart_syscall(2). */
enum { RESTART_NO_HANDLER = -514, RESTART_BLOCK = -516 };
enum { CODE_64 = 0x33, RESTART_SYSCALL_32 = 0, LOOK_MS = 100, LOOK_US = 200 };

static bool peek(void *arg, uint64_t address, uint64_t *ret)
{
	const pid_t *tid = arg;

	errno = 0;
	long word = ptrace(PTRACE_PEEKDATA, *tid, (void *)address, NULL);
	*ret = (uint64_t)word;
	return errno == 0;
}

static void read_text(char *ret, size_t room, pid_t tid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", tid, name);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, room - 1);
	ret[n < 0 ? 0 : n] = '\0';
}

static bool is_interrupted(pid_t tid)
{
	char text[8192];

	read_text(text, sizeof(text), tid, "status");
	return call_is_interrupted(text);
}

static bool is_asleep(pid_t tid)
{
	char text[4096];

	read_text(text, sizeof(text), tid, "stat");
	const char *name_end = strrchr(text, ')');
	return name_end && !strncmp(name_end, ") S", strlen(") S"));
}

static bool awaits_restart(const struct user_regs_struct *r)
{
	return (int64_t)r->orig_rax >= 0 && (int32_t)r->rax == RESTART_BLOCK;
}

/* Continues the thread in its call, and no further, until it waits there or the call returns. False: it did something
 * else. */
static bool wait_in_call(pid_t tid, char *wchan, size_t room)
{
	const uint64_t deadline_ns = deadline_in_ms(LOOK_MS);
	int status;

	for (int stops = 0; stops < 2; stops++) {
		if (ptrace(PTRACE_SYSCALL, tid, NULL, NULL) < 0)
			return false;
		/* The first stop is where it enters the call. */
		while (stops == 0 && waitpid(tid, &status, __WALL) < 0)
			if (errno != EINTR)
				return false;
		if (stops == 0 && (!WIFSTOPPED(status) || (WSTOPSIG(status) & 0x7f) != SIGTRAP))
			return false;
	}
	do {
		pid_t pid = waitpid(tid, &status, __WALL | WNOHANG);

		if (pid != 0)
			return pid > 0 && WIFSTOPPED(status);
		if (is_asleep(tid)) {
			read_text(wchan, room, tid, "wchan");
			break;
		}
		usleep(LOOK_US);
	} while (clock_now_ns() < deadline_ns);
	if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0)
		return false;
	while (waitpid(tid, &status, __WALL) < 0)
		if (errno != EINTR)
			return false;
	return WIFSTOPPED(status);
}

/* Sees where in the kernel it waits, where it may run without signals for a moment. */
static void look_where(pid_t tid, struct user_regs_struct *r, char *wchan, size_t room)
{
	uint64_t mask, all = ~0ull;

	wchan[0] = '\0';
	if (ptrace(PTRACE_GETSIGMASK, tid, sizeof(mask), &mask) < 0 ||
	    ptrace(PTRACE_SETSIGMASK, tid, sizeof(all), &all) < 0)
		return;
	if (!wait_in_call(tid, wchan, room))
		wchan[0] = '\0';
	ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask);
	ptrace(PTRACE_GETREGS, tid, NULL, r);
}

/* Returns false where the wait will end early. */
static bool find_call(pid_t tid, struct user_regs_struct *r)
{
	char wchan[128];
	int64_t nr = call_by_code(r->rip, peek, &tid);

	if (nr < 0) {
		look_where(tid, r, wchan, sizeof(wchan));
		if (!awaits_restart(r)) /* it has ended by then, as it was to */
			return true;
		const uint64_t arguments[] = { r->rdi, r->rsi, r->rdx, r->r10 };
		nr = call_by_arguments(arguments, wchan, peek, &tid);
	}
	if (nr >= 0)
		r->orig_rax = (uint64_t)nr;
	return nr >= 0;
}

/* Returns false where the wait will end early. */
static bool restart_call(pid_t tid)
{
	struct user_regs_struct r;

	if (ptrace(PTRACE_GETREGS, tid, NULL, &r) < 0 || !awaits_restart(&r) || is_interrupted(tid))
		return true;
	const bool is_64 = r.cs == CODE_64;
	if (r.orig_rax == RESTART_SYSCALL_32 && !is_64)
		return false;
	if (r.orig_rax == SYS_restart_syscall && is_64 && !find_call(tid, &r))
		return false;
	if (!awaits_restart(&r))
		return true;
	r.rax = (uint64_t)(int64_t)RESTART_NO_HANDLER;
	return ptrace(PTRACE_SETREGS, tid, NULL, &r) == 0;
}

#else /* the kernel puts registers back to before the call by itself, before a tracer sees them */

int64_t call_by_code(uint64_t end, word_fn word, void *arg)
{
	(void)end, (void)word, (void)arg;
	return -1;
}

int64_t call_by_arguments(const uint64_t arguments[static 4], const char *wchan, word_fn word,
			  void *arg)
{
	(void)arguments, (void)wchan, (void)word, (void)arg;
	return -1;
}

static bool restart_call(pid_t tid)
{
	(void)tid;
	return true;
}

#endif

/* ---- signals ---- */

static uint64_t signals(const char *status, const char *name)
{
	const char *line = strstr(status, name);

	return line ? strtoull(line + strlen(name), NULL, 16) : 0;
}

bool call_is_interrupted(const char *status)
{
	const uint64_t come = signals(status, "\nSigPnd:") | signals(status, "\nShdPnd:");

	return come & ~signals(status, "\nSigBlk:") & signals(status, "\nSigCgt:");
}

/* ---- a process ---- */

unsigned calls_restart(pid_t pid)
{
	char path[32];
	unsigned n_early = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.' && !restart_call((pid_t)atoi(e->d_name)))
			n_early++;
	return n_early;
}
