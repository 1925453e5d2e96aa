// SPDX-License-Identifier: MIT
/* See driver-job.h. */
#include "process/driver-job.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "gpu/vendor.h"
#include "process/process.h"

enum {
	ENVIRONMENT_BYTES_MAX = 8 << 20,
	CACHE_TRIES = 16,
	BLOCK_BYTES = 1 << 20,
	TOOL_BYTES_MAX = 256 << 20
};

/* The value of @name, which may have a value behind it that is not compared; NULL: there is none. */
static const char *find_value(const char *environment, size_t len, const char *name)
{
	size_t n = strcspn(name, "=");

	for (const char *e = environment; e < environment + len; e += strlen(e) + 1)
		if (!strncmp(e, name, n) && e[n] == '=')
			return e + n + 1;
	return NULL;
}

/* The first entry of the vendor's list that the environment lacks or contradicts. */
static const char *find_missing(const struct gpu_driver_job *v, const char *environment, size_t len)
{
	for (const char *const *e = v->environment; *e; e++) {
		const char *value = find_value(environment, len, *e);

		if (!value || strcmp(value, strchr(*e, '=') + 1) != 0)
			return *e;
	}
	return NULL;
}

/* A descriptor of a process, as the process names it: nobody is asked for it. */
static int stat_descriptor(struct statx *ret, const char *path)
{
	return statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, ret) < 0 ? -errno
											  : 0;
}

/* Opens what the kernel has in its cache, which it may miss during a mount or rename elsewhere. Kernels before 5.12 have no
 * such flag, and ask the file system. */
static int open_cached(int root_fd, const char *path)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC,
				.resolve = RESOLVE_IN_ROOT | RESOLVE_CACHED };
	int fd = -1;

	for (int i = 0; i < CACHE_TRIES && fd < 0; i++) {
		fd = (int)syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
		if (fd < 0 && errno == EINVAL)
			how.resolve = RESOLVE_IN_ROOT;
		else if (fd < 0 && errno != EAGAIN)
			return -errno;
	}
	return fd < 0 ? -ENOENT : fd;
}

/* A file below the process's root. Its path is what the program has in its environment, and may lead to a file system that
 * does not answer: the file system is not asked, as a file that is open is in the cache. */
static int stat_cached(struct statx *ret, pid_t pid, const char *path)
{
	auto_free char *root = path_format("/proc/%d/root", pid);

	if (!root)
		return -ENOMEM;
	auto_close int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root_fd < 0)
		return -errno;
	auto_close int fd = open_cached(root_fd, path);
	if (fd < 0)
		return fd;
	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, ret) < 0
		       ? -errno
		       : 0;
}

/* As the process would open it: its own descriptors, and all else below its root. */
static int find_file(struct driver_job *ret, pid_t pid, const char *path)
{
	int number, holder, end = 0;
	auto_free char *seen = NULL;
	struct statx st;
	int r;

	if (sscanf(path, "/proc/self/fd/%d%n", &number, &end) == 1 && !path[end])
		seen = path_format("/proc/%d/fd/%d", pid, number);
	else if (sscanf(path, "/proc/%d/fd/%d%n", &holder, &number, &end) == 2 && !path[end])
		seen = path_format("/proc/%d/root/proc/%d/fd/%d", pid, holder, number);
	r = seen ? stat_descriptor(&st, seen) : stat_cached(&st, pid, path);
	if (r < 0)
		return r;
	if (!S_ISREG(st.stx_mode))
		return -ENOENT;
	ret->device = makedev(st.stx_dev_major, st.stx_dev_minor);
	ret->inode = st.stx_ino;
	return 1;
}

int driver_job_find(struct driver_job *ret, const struct gpu_vendor *vendor, pid_t pid)
{
	const struct gpu_driver_job *v = &vendor->driver_job;
	auto_free char *environment = NULL;
	struct driver_job job = { 0 };
	size_t len = 0;

	if (!v->variable)
		return 0;
	int r = proc_file_read(pid, "environ", ENVIRONMENT_BYTES_MAX, &environment, &len);
	if (r < 0)
		return r;
	const char *path = find_value(environment, len, v->variable);
	if (!path)
		return 0;
	job.missing = find_missing(v, environment, len);
	r = find_file(&job, pid, path);
	if (r > 0)
		*ret = job;
	return r;
}

/* The file may be a user's, who can cut it short at any moment: a mapping of it would end us by SIGBUS. */
static bool contains(const char *path, const char *text)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	auto_free char *block = malloc(BLOCK_BYTES);
	size_t len = strlen(text), kept = 0, seen = 0;
	struct stat st;
	ssize_t n;

	if (!block || fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return false;
	while (seen < TOOL_BYTES_MAX &&
	       (n = fd_read_full(fd, block + kept, BLOCK_BYTES - kept)) > 0) {
		size_t there = kept + (size_t)n;

		seen += (size_t)n;
		if (memmem(block, there, text, len))
			return true;
		kept = there < len ? there : len - 1; /* the text may go on in the next block */
		memmove(block, block + there - kept, kept);
	}
	return false;
}

/* Nothing is run to learn its version. What we have under its name is another program. */
static bool is_tool(const struct gpu_driver_job *v, const char *path)
{
	const char *name = strrchr(path, '/');

	return name && strcmp(name + 1, "brumate") != 0 && access(path, X_OK) == 0 &&
	       contains(path, v->option);
}

char *driver_job_find_tool(const struct gpu_vendor *vendor, char *const *environment)
{
	const struct gpu_driver_job *v = &vendor->driver_job;
	const char *path = NULL;

	for (; *environment; environment++)
		if (!strncmp(*environment, "PATH=", strlen("PATH=")))
			path = *environment + strlen("PATH=");
	while (v->tool && path && *path) {
		int n = (int)strcspn(path, ":");
		auto_free char *tool = path_format("%.*s/%s", n, path, v->tool);
		auto_free char *real = tool && *tool == '/' ? realpath(tool, NULL) : NULL;

		if (real && is_tool(v, real))
			return take_ptr(&real);
		path += n + (path[n] == ':');
	}
	return NULL;
}

bool driver_job_is_same(const struct driver_job *a, const struct driver_job *b)
{
	return a->device == b->device && a->inode == b->inode;
}
