// SPDX-License-Identifier: MIT
/*
 * Standard streams that lead outside the tree. A pipe is foreign where the tree holds only one of its
 * ends; a terminal, where its session's leader is not in the tree. CRIU's keys: criu(8), --inherit-fd.
 */
#include "engine/externals.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"

enum { STDIO_FDS = 3, FDINFO_BYTES_MAX = 4096 };

struct stdio {
	char target[64]; /* "pipe:[123]", "/dev/pts/3" */
	struct stat st;
	bool writes;
};

static bool read_stdio(struct stdio *ret, pid_t pid, int fd)
{
	char path[64];
	auto_free char *info = NULL;
	unsigned flags = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	ssize_t n = readlink(path, ret->target, sizeof(ret->target) - 1);
	if (n < 0 || stat(path, &ret->st) < 0)
		return false;
	ret->target[n] = '\0';
	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	if (file_read(AT_FDCWD, path, FDINFO_BYTES_MAX, &info, NULL) < 0)
		return false;
	const char *line = strstr(info, "flags:");
	if (!line || sscanf(line, "flags: %o", &flags) != 1)
		return false;
	ret->writes = (flags & O_ACCMODE) != O_RDONLY;
	return true;
}

/* Whether some process of the tree holds the other end of this pipe, on any fd. */
static bool has_other_end(const struct proc_tree *tree, const struct stdio *pipe)
{
	for (size_t i = 0; i < tree->n; i++) {
		char path[64];
		snprintf(path, sizeof(path), "/proc/%d/fd", tree->items[i].id.pid);
		auto_closedir DIR *dir = opendir(path);
		struct dirent *entry;

		while (dir && (entry = readdir(dir))) {
			struct stdio other;

			if (entry->d_name[0] == '.')
				continue;
			if (read_stdio(&other, tree->items[i].id.pid, atoi(entry->d_name)) &&
			    !strcmp(other.target, pipe->target) && other.writes != pipe->writes)
				return true;
		}
	}
	return false;
}

static bool in_tree(const struct proc_tree *tree, pid_t pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].id.pid == pid)
			return true;
	return false;
}

static int add(struct manifest *m, const char *key, const char *become)
{
	for (size_t i = 0; i < m->n_externals; i++)
		if (!strcmp(m->externals[i].key, key))
			return 0;

	struct manifest_external *more =
		realloc(m->externals, (m->n_externals + 1) * sizeof(*m->externals));
	if (!more)
		return -ENOMEM;
	m->externals = more;
	struct manifest_external *e = &more[m->n_externals++];
	snprintf(e->key, sizeof(e->key), "%s", key);
	snprintf(e->become, sizeof(e->become), "%s", become);
	return 0;
}

static int consider(struct op *op, const struct proc_info *info, int fd)
{
	struct stdio s;
	char key[96];

	if (!read_stdio(&s, info->id.pid, fd))
		return 0;
	const char *become = s.writes && fd > 0 ? "log" : "null";
	if (S_ISFIFO(s.st.st_mode) && !strncmp(s.target, "pipe:", 5))
		return has_other_end(&op->tree, &s) ? 0 : add(&op->manifest, s.target, become);
	if (!S_ISCHR(s.st.st_mode) || !info->tty_nr || in_tree(&op->tree, info->sid))
		return 0;
	if (strncmp(s.target, "/dev/pts/", 9) && strncmp(s.target, "/dev/tty", 8) &&
	    strcmp(s.target, "/dev/console"))
		return 0;
	snprintf(key, sizeof(key), "tty[%llx:%llx]", (unsigned long long)s.st.st_rdev,
		 (unsigned long long)s.st.st_dev);
	return add(&op->manifest, key, "tty");
}

int externals_find(struct op *op, struct brumate_error *err)
{
	for (size_t i = 0; i < op->tree.n; i++)
		for (int fd = 0; fd < STDIO_FDS; fd++)
			if (consider(op, &op->tree.items[i], fd) < 0)
				return brumate_fail(err, ENOMEM, "%m");
	op->manifest.shell_job = !in_tree(&op->tree, op->tree.items[0].sid);
	if (op->manifest.n_externals)
		op_note(op, "standard streams lead outside the job: after a restore its output goes to its log");
	return 0;
}

char **externals_for_dump(const struct manifest *m)
{
	char **keys = calloc(m->n_externals + 1, sizeof(*keys));
	size_t n = 0;

	for (size_t i = 0; keys && i < m->n_externals; i++)
		if (!strcmp(m->externals[i].become, "tty"))
			keys[n++] = strdup(m->externals[i].key);
	return keys;
}

void externals_free(char **keys)
{
	for (char **k = keys; k && *k; k++)
		free(*k);
	free(keys);
}

static int replacement(const struct manifest_external *e, int log_fd)
{
	if (!strcmp(e->become, "log") && log_fd >= 0)
		return fcntl(log_fd, F_DUPFD_CLOEXEC, 3);
	return open("/dev/null", O_RDWR | O_CLOEXEC);
}

int externals_for_restore(const struct manifest *m, int log_fd, struct criu_inherit **ret, size_t *ret_n,
			  struct brumate_error *err)
{
	struct criu_inherit *list = calloc(m->n_externals + 1, sizeof(*list));

	if (!list)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->n_externals; i++) {
		snprintf(list[i].key, sizeof(list[i].key), "%s", m->externals[i].key);
		list[i].fd = replacement(&m->externals[i], log_fd);
		if (list[i].fd < 0) {
			int code = errno;

			externals_close(list, i);
			return brumate_fail(err, code, "replacement for %s: %m", m->externals[i].key);
		}
	}
	*ret = list;
	*ret_n = m->n_externals;
	return 0;
}

void externals_close(struct criu_inherit *inherits, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(inherits[i].fd);
	free(inherits);
}
