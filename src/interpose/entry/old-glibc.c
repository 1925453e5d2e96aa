// SPDX-License-Identifier: MIT
/*
 * What newer C libraries have, for older ones. A container may have any: a library that asks for a version of a symbol that
 * is not there keeps the program from starting. So what has come since glibc 2.17 is done here by system calls, or by what
 * was there before, and what moved into libc.so.6 with glibc 2.34 is asked for by its old version, and else looked for in
 * the library where it was: that one comes with the driver, which may be loaded long after this library. The names are
 * hidden: for this library alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/entry/elf-object.h"

/* ---- by system calls ---- */

pid_t gettid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

ssize_t getrandom(void *to, size_t bytes, unsigned int flags)
{
	return syscall(SYS_getrandom, to, bytes, flags);
}

int memfd_create(const char *name, unsigned int flags)
{
	return (int)syscall(SYS_memfd_create, name, flags);
}

int fcntl64(int fd, int command, ...)
{
	va_list list;

	va_start(list, command);
	unsigned long argument = va_arg(list, unsigned long);
	va_end(list);
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* The kernel's structure is that of the C library here. */
int stat64(const char *path, struct stat64 *ret)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, ret, 0);
}

int lstat64(const char *path, struct stat64 *ret)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, ret, AT_SYMLINK_NOFOLLOW);
}

int fstat64(int fd, struct stat64 *ret)
{
	return (int)syscall(SYS_fstat, fd, ret);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *ret_before)
{
	return sigprocmask(how, set, ret_before) < 0 ? errno : 0;
}

/* ---- by another name ---- */

/* From glibc 2.38 on, its headers make these of strtoul(3) and sscanf(3): they read "0b1", too, which nobody here needs. */
unsigned long __isoc23_strtoul(const char *text, char **ret_end, int base);
int __isoc23_sscanf(const char *text, const char *format, ...);

extern unsigned long old_strtoul(const char *text, char **ret_end, int base) __asm__("strtoul");
extern int old_vsscanf(const char *text, const char *format,
		       va_list list) __asm__("__isoc99_vsscanf");

unsigned long __isoc23_strtoul(const char *text, char **ret_end, int base)
{
	return old_strtoul(text, ret_end, base);
}

int __isoc23_sscanf(const char *text, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	int n = old_vsscanf(text, format, list);
	va_end(list);
	return n;
}

/* ---- by the library that has it ---- */

static void *look_for(_Atomic(void *) *known, const char *soname, const char *name)
{
	struct elf_object object;

	if (elf_find_soname(&object, soname))
		atomic_store(known, elf_function(&object, name));
	return atomic_load(known);
}

/* NULL if the library is not loaded: the program uses no threads, or none of the loader's functions, and so has no
 * driver either. */
static void *find(_Atomic(void *) *known, void *in_libc, const char *soname, const char *name)
{
	void *function = in_libc ? in_libc : atomic_load_explicit(known, memory_order_relaxed);

	return function ? function : look_for(known, soname, name);
}

#define MOVED(result, name, version, soname, parameters, arguments, without)                   \
	extern __typeof__(name) first_##name __attribute__((weak));                            \
	__asm__(".symver first_" #name ", " #name "@" version);                                \
	result name parameters                                                                 \
	{                                                                                      \
		static _Atomic(void *) known;                                                  \
		__typeof__(name) *function =                                                   \
			(__typeof__(name) *)find(&known, (void *)first_##name, soname, #name); \
                                                                                               \
		return function ? function arguments : (without);                              \
	}

/* The versions of the symbols: arm64 began with glibc 2.17. */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#define THIRD  "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#define THIRD  "GLIBC_2.17"
#else
#error "old-glibc.c does not know the C library's first version on this machine"
#endif

#define THREADS "libpthread.so.0"
#define LOADER	"libdl.so.2"

MOVED(int, pthread_create, OLDEST, THREADS,
      (pthread_t * ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
      (ret, attr, fn, arg), ENOSYS)
MOVED(int, pthread_join, OLDEST, THREADS, (pthread_t thread, void **ret), (thread, ret), ENOSYS)
MOVED(int, pthread_once, OLDEST, THREADS, (pthread_once_t * once, void (*fn)(void)), (once, fn),
      ENOSYS)
MOVED(int, pthread_key_create, OLDEST, THREADS, (pthread_key_t * ret, void (*fn)(void *)),
      (ret, fn), ENOSYS)
MOVED(int, pthread_setspecific, OLDEST, THREADS, (pthread_key_t key, const void *value),
      (key, value), ENOSYS)
MOVED(int, pthread_attr_setstacksize, OLDEST, THREADS, (pthread_attr_t * attr, size_t bytes),
      (attr, bytes), ENOSYS)
MOVED(int, pthread_condattr_setclock, THIRD, THREADS, (pthread_condattr_t * attr, clockid_t clock),
      (attr, clock), ENOSYS)
MOVED(int, dlclose, OLDEST, LOADER, (void *handle), (handle), -1)
MOVED(char *, dlerror, OLDEST, LOADER, (void), (), NULL)
MOVED(int, dlinfo, THIRD, LOADER, (void *handle, int request, void *ret), (handle, request, ret),
      -1)
