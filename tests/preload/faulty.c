// SPDX-License-Identifier: MIT
/*
 * libfaulty.so, preloaded by tests into our programs: the n-th call of a class fails, and the time of day is another
 * than the kernel's. It counts and fails the calls that our own code makes, or a library for it, but not those of the
 * simulated driver, which is not a program of ours. In any other program, such as a job, it does nothing.
 */
#include "faulty.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

enum { SITE_DEPTH = 2 }; /* so many callers tell one place from another */

static struct faulty *faulty; /* NULL: not one of our programs, or no test wants anything */
static const char *program;
static char program_name[FAULTY_PROGRAM_BYTES];
static __thread bool inside __attribute__((tls_model("initial-exec"))); /* what this library calls itself does not count */

/* The text of the simulated driver's libraries, as found when they make their first call. */
struct range {
	uintptr_t begin, end;
};

/* ---- which calls count ---- */

static bool is_drivers(const void *caller)
{
	static struct range known;
	uintptr_t at = (uintptr_t)caller;
	Dl_info info;

	if (at >= known.begin && at < known.end)
		return true;
	inside = true;
	bool driver = dladdr(caller, &info) && info.dli_fname &&
		      (strstr(info.dli_fname, "libcuda.so") || strstr(info.dli_fname, "libnvidia"));
	inside = false;
	if (driver)
		known = (struct range){ at & ~0xffful, (at & ~0xffful) + 0x1000 };
	return driver;
}

/* ---- where a call is made ---- */

static uint64_t mix(uint64_t hash, const void *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((const unsigned char *)p)[i]) * 0x100000001b3ull;
	return hash;
}

struct walk {
	const void *caller;
	uint64_t hash;
	int n; /* -1: not yet at the caller */
	char where[FAULTY_WHERE_BYTES];
};

/* Places are the same in each process, wherever its libraries lie. */
static _Unwind_Reason_Code walk_on(struct _Unwind_Context *context, void *arg)
{
	struct walk *walk = arg;
	void *at = (void *)_Unwind_GetIP(context);
	Dl_info info;

	if (walk->n < 0 && at != walk->caller)
		return _URC_NO_REASON;
	walk->n++;
	if (!dladdr(at, &info) || !info.dli_fname)
		return _URC_END_OF_STACK;
	const char *base = strrchr(info.dli_fname, '/');
	uintptr_t offset = (uintptr_t)at - (uintptr_t)info.dli_fbase;
	base = base ? base + 1 : info.dli_fname;
	walk->hash = mix(mix(walk->hash, base, strlen(base)), &offset, sizeof(offset));
	size_t len = strlen(walk->where);
	snprintf(walk->where + len, sizeof(walk->where) - len, "%s+%#zx ", base, (size_t)offset - 1);
	return walk->n + 1 < SITE_DEPTH ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/* Never 0. */
static uint64_t site_of(uint32_t call, const void *caller, char *where)
{
	struct walk walk = { caller, mix(mix(0xcbf29ce484222325ull, program, strlen(program)), &call, sizeof(call)), -1, "" };
	int error = errno;

	inside = true;
	_Unwind_Backtrace(walk_on, &walk);
	inside = false;
	errno = error;
	if (where)
		memcpy(where, walk.where, sizeof(walk.where));
	return walk.hash | 1;
}

static void note_site(struct faulty *f, uint32_t call, const void *caller)
{
	char where[FAULTY_WHERE_BYTES];
	uint64_t site = site_of(call, caller, where);

	for (unsigned int i = 0; i < FAULTY_SITES; i++) {
		struct faulty_site *s = &f->sites[(site / 2 + i) % FAULTY_SITES];
		uint64_t there = 0;

		if (__atomic_load_n(&s->site, __ATOMIC_ACQUIRE) == site)
			return;
		if (__atomic_compare_exchange_n(&s->site, &there, site, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			strcpy(s->program, program);
			memcpy(s->where, where, sizeof(where));
			s->call = call;
			return;
		}
		if (there == site)
			return;
	}
}

/* ---- whether it fails ---- */

static bool is_chosen(struct faulty_rule *rule, uint32_t call)
{
	return (rule->calls & call) && rule->program[0] && !strcmp(rule->program, program);
}

/* Counts a call. Returns whether it is to fail, with errno set; 0 in errno: cut short. */
static bool fails_or_is_short(uint32_t call, const void *caller)
{
	struct faulty *f = __atomic_load_n(&faulty, __ATOMIC_ACQUIRE);
	uint64_t site = 0;

	if (!f || inside)
		return false;
	if (f->notes_sites && !is_drivers(caller))
		note_site(f, call, caller);
	for (int i = 0; i < FAULTY_RULES; i++) {
		struct faulty_rule *rule = &f->rules[i];

		if (!is_chosen(rule, call) || is_drivers(caller))
			continue;
		if (rule->site && rule->site != (site = site ? site : site_of(call, caller, NULL)))
			continue;
		if (__atomic_add_fetch(&rule->n_passed, 1, __ATOMIC_RELAXED) != rule->nth)
			continue;
		__atomic_add_fetch(&rule->n_failed, 1, __ATOMIC_RELAXED);
		errno = rule->error;
		return true;
	}
	return false;
}

/* The same for a call that is done whole or not at all. */
static bool fails(uint32_t call, const void *caller)
{
	if (!fails_or_is_short(call, caller))
		return false;
	if (!errno)
		errno = ENOSPC;
	return true;
}

#define CALLER __builtin_return_address(0)

/* The call that is interposed. */
static void *next_call(const char *name)
{
	inside = true;
	void *found = dlsym(RTLD_NEXT, name);
	inside = false;
	return found;
}

#define NEXT(name)                                                    \
	({                                                            \
		static __typeof__(&name) next;                        \
		if (!next)                                            \
			next = (__typeof__(&name))next_call(#name);   \
		next;                                                 \
	})

/* ---- memory ---- */

/* glibc's own names, as dlsym() itself takes memory. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

void *malloc(size_t size)
{
	return fails(FAULTY_MEMORY, CALLER) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails(FAULTY_MEMORY, CALLER) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fails(FAULTY_MEMORY, CALLER) ? NULL : __libc_realloc(p, size);
}

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return fails(FAULTY_MEMORY, CALLER) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset);
}

/* ---- descriptors ---- */

#define OPEN_MODE(flags)                                              \
	({                                                            \
		mode_t mode_ = 0;                                     \
		if ((flags) & (O_CREAT | __O_TMPFILE)) {              \
			va_list ap_;                                  \
			va_start(ap_, flags);                         \
			mode_ = va_arg(ap_, mode_t);                  \
			va_end(ap_);                                  \
		}                                                     \
		mode_;                                                \
	})

int open(const char *path, int flags, ...)
{
	mode_t mode = OPEN_MODE(flags);

	return fails(FAULTY_OPEN, CALLER) ? -1 : NEXT(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	mode_t mode = OPEN_MODE(flags);

	return fails(FAULTY_OPEN, CALLER) ? -1 : NEXT(open64)(path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
	mode_t mode = OPEN_MODE(flags);

	return fails(FAULTY_OPEN, CALLER) ? -1 : NEXT(openat)(dir, path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...)
{
	mode_t mode = OPEN_MODE(flags);

	return fails(FAULTY_OPEN, CALLER) ? -1 : NEXT(openat64)(dir, path, flags, mode);
}

#define FAILING(class, type, bad, name, parameters, arguments)                  \
	type name parameters                                                    \
	{                                                                       \
		return fails(class, CALLER) ? (bad) : NEXT(name) arguments;     \
	}

FAILING(FAULTY_OPEN, int, -1, pipe2, (int fds[2], int flags), (fds, flags))
FAILING(FAULTY_OPEN, int, -1, memfd_create, (const char *name, unsigned flags), (name, flags))
FAILING(FAULTY_OPEN, int, -1, eventfd, (unsigned n, int flags), (n, flags))
FAILING(FAULTY_OPEN, int, -1, timerfd_create, (int clock, int flags), (clock, flags))
FAILING(FAULTY_OPEN, int, -1, epoll_create1, (int flags), (flags))
FAILING(FAULTY_OPEN, int, -1, dup, (int fd), (fd))

/* ---- reading and writing ---- */

#define MOVING(class, name, parameters, whole, half)                                        \
	ssize_t name parameters                                                             \
	{                                                                                   \
		if (len < 2 ? !fails(class, CALLER) : !fails_or_is_short(class, CALLER))    \
			return NEXT(name) whole;                                            \
		return errno ? -1 : NEXT(name) half;                                        \
	}

MOVING(FAULTY_WRITE, write, (int fd, const void *buf, size_t len), (fd, buf, len), (fd, buf, len / 2))
MOVING(FAULTY_WRITE, pwrite, (int fd, const void *buf, size_t len, off_t at), (fd, buf, len, at),
       (fd, buf, len / 2, at))
MOVING(FAULTY_WRITE, pwrite64, (int fd, const void *buf, size_t len, off64_t at), (fd, buf, len, at),
       (fd, buf, len / 2, at))
MOVING(FAULTY_READ, read, (int fd, void *buf, size_t len), (fd, buf, len), (fd, buf, len / 2))
MOVING(FAULTY_READ, pread, (int fd, void *buf, size_t len, off_t at), (fd, buf, len, at), (fd, buf, len / 2, at))
MOVING(FAULTY_READ, pread64, (int fd, void *buf, size_t len, off64_t at), (fd, buf, len, at),
       (fd, buf, len / 2, at))
FAILING(FAULTY_WRITE, ssize_t, -1, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
FAILING(FAULTY_WRITE, int, -1, ftruncate, (int fd, off_t len), (fd, len))
FAILING(FAULTY_WRITE, int, -1, ftruncate64, (int fd, off64_t len), (fd, len))
FAILING(FAULTY_WRITE, int, -1, fallocate, (int fd, int mode, off_t at, off_t len), (fd, mode, at, len))
FAILING(FAULTY_SYNC, int, -1, fsync, (int fd), (fd))
FAILING(FAULTY_SYNC, int, -1, fdatasync, (int fd), (fd))

/* ---- names ---- */

FAILING(FAULTY_NAME, int, -1, rename, (const char *from, const char *to), (from, to))
FAILING(FAULTY_NAME, int, -1, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
FAILING(FAULTY_NAME, int, -1, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
	(a, from, b, to, flags))
FAILING(FAULTY_NAME, int, -1, linkat, (int a, const char *from, int b, const char *to, int flags),
	(a, from, b, to, flags))
FAILING(FAULTY_NAME, int, -1, unlink, (const char *path), (path))
FAILING(FAULTY_NAME, int, -1, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
FAILING(FAULTY_NAME, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
FAILING(FAULTY_NAME, int, -1, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))

/* ---- sockets ---- */

FAILING(FAULTY_SOCKET, int, -1, socket, (int family, int type, int protocol), (family, type, protocol))
FAILING(FAULTY_SOCKET, int, -1, socketpair, (int family, int type, int protocol, int fds[2]), (family, type, protocol, fds))
FAILING(FAULTY_SOCKET, int, -1, bind, (int fd, const struct sockaddr *a, socklen_t len), (fd, a, len))
FAILING(FAULTY_SOCKET, int, -1, listen, (int fd, int n), (fd, n))
FAILING(FAULTY_SOCKET, int, -1, connect, (int fd, const struct sockaddr *a, socklen_t len), (fd, a, len))
FAILING(FAULTY_SOCKET, int, -1, accept4, (int fd, struct sockaddr *a, socklen_t *len, int flags), (fd, a, len, flags))
FAILING(FAULTY_SOCKET, ssize_t, -1, send, (int fd, const void *buf, size_t len, int flags), (fd, buf, len, flags))
FAILING(FAULTY_SOCKET, ssize_t, -1, recv, (int fd, void *buf, size_t len, int flags), (fd, buf, len, flags))
FAILING(FAULTY_SOCKET, ssize_t, -1, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
FAILING(FAULTY_SOCKET, ssize_t, -1, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))

/* ---- processes and threads ---- */

FAILING(FAULTY_START, pid_t, -1, fork, (void), ())

int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	if (fails(FAULTY_START, CALLER))
		return errno;
	return NEXT(pthread_create)(ret, attr, fn, arg);
}

/* ---- the time of day ---- */

static int64_t offset_ns(void)
{
	struct faulty *f = __atomic_load_n(&faulty, __ATOMIC_ACQUIRE);

	return f ? __atomic_load_n(&f->clock_offset_ns, __ATOMIC_RELAXED) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *ret)
{
	int r = NEXT(clock_gettime)(clock, ret);
	int64_t offset = clock == CLOCK_REALTIME ? offset_ns() : 0;

	if (r < 0 || !offset)
		return r;
	int64_t ns = (int64_t)ret->tv_sec * 1000000000 + ret->tv_nsec + offset;
	ret->tv_sec = ns / 1000000000;
	ret->tv_nsec = ns % 1000000000;
	return 0;
}

time_t time(time_t *ret)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (ret)
		*ret = now.tv_sec;
	return now.tv_sec;
}

int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	*ret = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
	return 0;
}

/* ---- coming up ---- */

/* By the name it was started by; /proc/self/comm would be a thread's. */
__attribute__((constructor)) static void open_faulty(void)
{
	const char *path = getenv("BRUMATE_TEST_FAULTY");
	const char *name = program_invocation_short_name;

	if (!path || strncmp(name, "brumate", strlen("brumate")))
		return;
	strncpy(program_name, name, sizeof(program_name) - 1);
	program = program_name;
	int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	void *at = (void *)syscall(SYS_mmap, NULL, sizeof(struct faulty), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_close, fd);
	if (at != MAP_FAILED)
		__atomic_store_n(&faulty, at, __ATOMIC_RELEASE);
}
