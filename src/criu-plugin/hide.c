// SPDX-License-Identifier: MIT
/* Intercepts CRIU's queries of a process's page map. See plugin.h, "what is hidden". */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-plugin/plugin.h"

static const struct hidden_table *table;
static hide_fn may_hide;

static int (*real_ioctl)(int fd, unsigned long request, ...);
static ssize_t (*real_pread)(int fd, void *buf, size_t len_bytes, off_t offset);
static const char *const pread_names[] = { "pread64", "pread" };

static int64_t pid_of_pagemap(int fd)
{
	char link[48], path[128];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	return pagemap_pid(path);
}

static int scan(int fd, struct pagemap_scan *s)
{
	return real_ioctl(fd, PAGEMAP_SCAN_REQUEST, s);
}

static int our_ioctl(int fd, unsigned long request, ...)
{
	va_list list;

	va_start(list, request);
	void *arg = va_arg(list, void *);
	va_end(list);
	int64_t pid = request == PAGEMAP_SCAN_REQUEST ? pid_of_pagemap(fd) : 0;
	int r = pid ? may_hide() : 0;
	if (r < 0) {
		errno = -r;
		return -1;
	}
	return r ? pagemap_scan_hidden(table, pid, fd, arg, scan) : real_ioctl(fd, request, arg);
}

static ssize_t our_pread(int fd, void *buf, size_t len_bytes, off_t offset)
{
	ssize_t n = real_pread(fd, buf, len_bytes, offset);
	int saved = errno;
	int64_t pid = n > 0 ? pid_of_pagemap(fd) : 0;
	int r = pid ? may_hide() : 0;

	if (r > 0)
		pagemap_clear_hidden(table, pid, buf, (size_t)n, offset,
				     (size_t)sysconf(_SC_PAGESIZE));
	errno = r < 0 ? -r : saved;
	return r < 0 ? -1 : n;
}

struct hidden_table *hidden_table_map(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct hidden_table))
		return NULL;
	struct hidden_table *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		return NULL;
	if (t->magic != HIDDEN_MAGIC) {
		munmap(t, sizeof(*t));
		return NULL;
	}
	return t;
}

bool hide_begin(const struct hidden_table *t, hide_fn may)
{
	table = t;
	may_hide = may;
	real_ioctl = import_replace("ioctl", (void *)our_ioctl);
	for (size_t i = 0; i < 2 && !real_pread; i++)
		real_pread = import_replace(pread_names[i], (void *)our_pread);
	return real_ioctl && real_pread;
}

void hide_end(void)
{
	if (real_ioctl)
		import_replace("ioctl", (void *)real_ioctl);
	for (size_t i = 0; i < 2 && real_pread; i++)
		import_replace(pread_names[i], (void *)real_pread);
}
