// SPDX-License-Identifier: MIT
/* Filters of system calls; see ptrace(2), PTRACE_SECCOMP_GET_FILTER. What is read is what CRIU reads as well. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include "criu-plugin/plugin.h"

enum { INSTRUCTION_BYTES = 8 };

/* Puts filter @i of a thread at @at. Returns the bytes it takes, 0 (there is none), -errno. */
static long read_filter(struct filter_table *t, uint32_t at, pid_t tid, unsigned long i)
{
	struct __ptrace_seccomp_metadata meta = { .filter_off = i };
	struct filter_head head;
	long n = ptrace(PTRACE_SECCOMP_GET_FILTER, tid, (void *)i, NULL);

	if (n < 0) /* EINVAL: it is not in the mode that has filters; ENOENT: these were all */
		return errno == ENOENT || (errno == EINVAL && i == 0) ? 0 : -errno;
	if ((unsigned long)n * INSTRUCTION_BYTES + sizeof(head) > sizeof(t->chains) - at)
		return -ENOSPC;
	/* EIO: a kernel that does not tell them, before 4.16. */
	if (ptrace(PTRACE_SECCOMP_GET_METADATA, tid, (void *)sizeof(meta), &meta) < 0 &&
	    errno != EIO)
		return -errno;
	head = (struct filter_head){ (uint32_t)meta.flags, (uint32_t)n * INSTRUCTION_BYTES };
	memcpy(t->chains + at, &head, sizeof(head));
	if (ptrace(PTRACE_SECCOMP_GET_FILTER, tid, (void *)i, t->chains + at + sizeof(head)) != n)
		return -EIO;
	return (long)(sizeof(head) + head.len_bytes);
}

/* Appends the chain of a thread without taking its room. Returns its bytes, -errno. */
static long read_chain(struct filter_table *t, pid_t tid)
{
	uint32_t at = t->used_bytes;
	long n = 1;

	for (unsigned long i = 0; n > 0; i++) {
		n = read_filter(t, at, tid, i);
		at += n > 0 ? (uint32_t)n : 0;
	}
	return n < 0 ? n : (long)(at - t->used_bytes);
}

/* Takes the chain that was appended, unless there is one like it. */
static int add_owner(struct filter_table *t, pid_t pid, uint32_t len_bytes)
{
	struct filter_owner new = { pid, t->used_bytes, len_bytes };

	for (uint32_t i = t->n; i-- > 0;) {
		const struct filter_owner *o = &t->owners[i];

		if (o->len_bytes != len_bytes ||
		    memcmp(t->chains + o->offset, t->chains + t->used_bytes, len_bytes) != 0)
			continue;
		if (o->pid == pid)
			return 0;
		new.offset = o->offset;
	}
	if (t->n == FILTER_OWNERS_MAX)
		return -ENOSPC;
	if (new.offset == t->used_bytes)
		t->used_bytes += len_bytes;
	t->owners[t->n++] = new;
	return 0;
}

static int read_threads(struct filter_table *t, pid_t pid, DIR *dir)
{
	long n = 0;

	while (n >= 0) {
		errno = 0;
		struct dirent *e = readdir(dir);

		if (!e)
			return -errno;
		n = e->d_name[0] == '.' ? 0 : read_chain(t, atoi(e->d_name));
		if (n > 0)
			n = add_owner(t, pid, (uint32_t)n);
	}
	return (int)n;
}

void filters_read(struct filter_table *t, pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *dir = opendir(path);
	int r = dir ? read_threads(t, pid, dir) : -errno;

	if (dir)
		closedir(dir);
	if (r < 0)
		t->error = (uint32_t)-r;
}
