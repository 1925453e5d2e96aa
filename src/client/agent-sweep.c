// SPDX-License-Identifier: MIT
/*
 * Sockets that agents left behind, as their processes have ended: a job of many short ones would gather them
 * as long as it lives. One goes only where no process of the job has its number and nobody listens on it.
 */
#include "client/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"

static bool has_number(const struct proc_tree *tree, const char *name)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].inner_pid == atoi(name))
			return true;
	return false;
}

static bool is_number(const char *name)
{
	return *name && !name[strspn(name, "0123456789")] && strlen(name) < 10;
}

/* Who is told that it is refused listens no more: its descriptors are closed, all of them. */
static bool is_deserted(int dir_fd, const char *name, struct stat *ret)
{
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (fd < 0 || fstatat(dir_fd, name, ret, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISSOCK(ret->st_mode))
		return false;
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", dir_fd, name);
	return connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 &&
	       errno == ECONNREFUSED;
}

/* A new process may have got the number since it was looked at: its socket, which is another file, goes
 * back to its place. */
static void remove_deserted(int dir_fd, const char *name, const struct stat *was)
{
	static const char aside[] = "deserted";
	struct stat st;

	if (renameat(dir_fd, name, dir_fd, aside) < 0)
		return;
	if (fstatat(dir_fd, aside, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino == was->st_ino)
		unlinkat(dir_fd, aside, 0);
	else
		renameat2(dir_fd, aside, dir_fd, name, RENAME_NOREPLACE);
}

/* Names of sockets that none of @known has. Owned, each and all. */
static char **suspects(DIR *d, const struct proc_tree *known, size_t *ret_n)
{
	char **names = NULL;
	struct dirent *entry;
	size_t n = 0;

	while ((entry = readdir(d))) {
		if (!is_number(entry->d_name) || has_number(known, entry->d_name))
			continue;
		char **more = array_room(names, n, sizeof(*names));
		char *name = more ? strdup(entry->d_name) : NULL;

		names = more ? more : names;
		if (!name)
			break;
		names[n++] = name;
	}
	*ret_n = n;
	return names;
}

void agent_sweep(const char *dir, struct proc_id root, const struct proc_tree *known)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	int list_fd = dir_fd < 0 ? -1 : fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
	auto_closedir DIR *d = list_fd < 0 ? NULL : fdopendir(list_fd);
	struct stat was;
	size_t n = 0;

	if (!d)
		return;
	char **names = suspects(d, known, &n);
	/* Read after the names: who has made a socket by then is in it, or has ended. */
	bool sure = n && proc_tree_read(&tree, root, NULL) == 0;
	for (size_t i = 0; i < n; i++) {
		if (sure && !has_number(&tree, names[i]) && is_deserted(dir_fd, names[i], &was))
			remove_deserted(dir_fd, names[i], &was);
		free(names[i]);
	}
	free(names);
}
