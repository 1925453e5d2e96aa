// SPDX-License-Identifier: MIT
/*
 * Processes that live in the memory of others, as clone(2) with CLONE_VM makes them. Whether two do, kcmp(2) tells,
 * which also puts address spaces in an order: the tree's are sorted, so that everybody else on the machine costs a
 * few calls.
 */
#include "process/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"

/* Where it cannot be told, as of a process that has ended, they are taken for different. */
static int by_memory(const void *a, const void *b)
{
	const pid_t *one = a, *other = b;
	long order = syscall(SYS_kcmp, *one, *other, KCMP_VM, 0, 0);

	return order == 0 ? 0 : order == 1 ? -1 : 1;
}

/* A thread of the kernel, and a process that ends, have no memory, and that is equal, too. */
static bool has_memory(pid_t pid)
{
	char path[32];
	auto_free char *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	return file_read(AT_FDCWD, path, 256, &text, NULL) == 0 && strncmp(text, "0 ", 2);
}

static bool is_member(const struct proc_tree *tree, pid_t pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].id.pid == pid)
			return true;
	return false;
}

static bool is_sharer(struct proc_info *ret, const struct proc_tree *tree, const pid_t *sorted,
		      size_t n, pid_t pid)
{
	return !is_member(tree, pid) && bsearch(&pid, sorted, n, sizeof(*sorted), by_memory) &&
	       has_memory(pid) && proc_read(ret, pid, NULL) == 0;
}

int proc_find_sharer(struct proc_info *ret, const struct proc_tree *tree)
{
	auto_free pid_t *sorted = calloc(tree->n + 1, sizeof(*sorted));
	auto_closedir DIR *dir = opendir("/proc");
	size_t n = 0;

	if (!sorted || !dir)
		return sorted ? -errno : -ENOMEM;
	for (size_t i = 0; i < tree->n; i++)
		if (has_memory(tree->items[i].id.pid))
			sorted[n++] = tree->items[i].id.pid;
	qsort(sorted, n, sizeof(*sorted), by_memory);
	for (struct dirent *e; (e = readdir(dir));) {
		pid_t pid = atoi(e->d_name);

		if (pid > 0 && is_sharer(ret, tree, sorted, n, pid))
			return 1;
	}
	return 0;
}
