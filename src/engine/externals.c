// SPDX-License-Identifier: MIT
/*
 * Standard streams that lead outside the tree. A pipe is foreign where the tree holds only one of its ends; a terminal,
 * where the tree does not hold its master. A regular file that is written to without O_APPEND is passed to CRIU as well,
 * because others may write to it too, and CRIU refuses a file whose size has changed; and so is every file of another
 * user's job, because CRIU would open as root any file that is at its path by then. CRIU's keys: criu(8), --inherit-fd.
 */
#include "engine/externals.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/user.h"
#include "job/log.h"
#include "process/scan.h"

enum { STDIO_FDS = 3, FDINFO_BYTES_MAX = 4096 };

struct stream {
	char target[PATH_MAX]; /* "pipe:[123]", "/dev/pts/3", a path */
	struct stat st;
	bool writes, appends;
	int tty_index; /* of a master; -1: none */
};

static bool read_stream(struct stream *ret, pid_t pid, int fd)
{
	char path[64];
	auto_free char *info = NULL;
	unsigned flags = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	ssize_t n = readlink(path, ret->target, sizeof(ret->target) - 1);
	if (n < 0 || scan_stat_fd(AT_FDCWD, path, &ret->st) < 0)
		return false;
	ret->target[n] = '\0';
	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	if (file_read(AT_FDCWD, path, FDINFO_BYTES_MAX, &info, NULL) < 0)
		return false;
	const char *line = strstr(info, "flags:");
	if (!line || sscanf(line, "flags: %o", &flags) != 1)
		return false;
	ret->writes = (flags & O_ACCMODE) != O_RDONLY;
	ret->appends = flags & O_APPEND;
	line = strstr(info, "tty-index:");
	ret->tty_index = line ? atoi(line + strlen("tty-index:")) : -1;
	return true;
}

typedef bool (*stream_matches_fn)(const struct stream *other, const struct stream *one);

static bool is_other_end(const struct stream *other, const struct stream *pipe)
{
	return !strcmp(other->target, pipe->target) && other->writes != pipe->writes;
}

static bool is_master(const struct stream *other, const struct stream *slave)
{
	return other->tty_index >= 0 && !strncmp(slave->target, "/dev/pts/", 9) &&
	       atoi(slave->target + 9) == other->tty_index;
}

/* Whether some process of the tree holds a match for @one, on any fd. */
static bool tree_has(const struct proc_tree *tree, const struct stream *one,
		     stream_matches_fn matches)
{
	for (size_t i = 0; i < tree->n; i++) {
		char path[64];
		snprintf(path, sizeof(path), "/proc/%d/fd", tree->items[i].id.pid);
		auto_closedir DIR *dir = opendir(path);
		struct dirent *entry;

		while (dir && (entry = readdir(dir))) {
			struct stream other;

			if (entry->d_name[0] != '.' &&
			    read_stream(&other, tree->items[i].id.pid, atoi(entry->d_name)) &&
			    matches(&other, one))
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
		array_room(m->externals, m->n_externals, sizeof(*m->externals));
	if (!more)
		return -ENOMEM;
	m->externals = more;
	struct manifest_external *e = &more[m->n_externals];
	e->key = strdup(key);
	if (!e->key)
		return -ENOMEM;
	m->n_externals++;
	snprintf(e->become, sizeof(e->become), "%s", become);
	return 0;
}

static bool is_terminal(const struct stream *s)
{
	return S_ISCHR(s->st.st_mode) &&
	       (!strncmp(s->target, "/dev/pts/", 9) || !strncmp(s->target, "/dev/tty", 8) ||
		!strcmp(s->target, "/dev/console"));
}

static int consider(struct op *op, const struct proc_info *info, int fd)
{
	struct stream s;
	char key[96];

	if (!read_stream(&s, info->id.pid, fd))
		return 0;
	const char *become = s.writes && fd > 0 ? "log" : "null";
	if (S_ISFIFO(s.st.st_mode) && !strncmp(s.target, "pipe:", 5))
		return tree_has(&op->tree, &s, is_other_end)
			       ? 0
			       : add(&op->checkpoint.manifest, s.target, become);
	bool of_user = op->target->uid != geteuid();
	if (S_ISREG(s.st.st_mode) && s.writes && (!s.appends || of_user) && s.st.st_nlink)
		return add(&op->checkpoint.manifest, s.target + 1, "append");
	if (!is_terminal(&s) || tree_has(&op->tree, &s, is_master))
		return 0;
	snprintf(key, sizeof(key), "tty[%llx:%llx]", (unsigned long long)s.st.st_rdev,
		 (unsigned long long)s.st.st_dev);
	return add(&op->checkpoint.manifest, key, "tty");
}

static bool is_closed(const struct manifest_external *e)
{
	return !strncmp(e->become, "closed", strlen("closed"));
}

/* What the preflight has found, which is refused unless it is asked for. */
static int find_sockets(struct op *op)
{
	auto_free struct scan_socket *sockets = NULL;
	size_t n = 0;
	int r = op->request->drop_external ? scan_find_outside(&sockets, &n, &op->tree) : 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		char key[32], become[32];

		snprintf(key, sizeof(key), "socket:[%u]", sockets[i].inode);
		snprintf(become, sizeof(become), "closed%s%s",
			 sockets[i].is_packets ? "-packets" : "",
			 sockets[i].is_nonblocking ? "-nonblock" : "");
		r = add(&op->checkpoint.manifest, key, become);
	}
	return r;
}

static void note_externals(struct op *op)
{
	for (size_t i = 0; i < op->checkpoint.manifest.n_externals; i++) {
		const struct manifest_external *e = &op->checkpoint.manifest.externals[i];

		if (!strcmp(e->become, "log") || !strcmp(e->become, "null"))
			progress_note(
				&op->progress,
				"%s leads outside the job: after a restore %s takes its place",
				e->key,
				!strcmp(e->become, "log") && op->target->log ? "the job's log"
									     : "/dev/null");
		else if (!strcmp(e->become, "tty"))
			progress_note(
				&op->progress,
				"%s is a terminal outside the job: after a restore a new one takes "
				"its place",
				e->key);
	}
}

int externals_find(struct op *op, struct brumate_error *err)
{
	for (size_t i = 0; i < op->tree.n; i++)
		for (int fd = 0; fd < STDIO_FDS; fd++)
			if (consider(op, &op->tree.items[i], fd) < 0)
				return brumate_fail(err, ENOMEM, "%m");
	if (find_sockets(op) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	op->checkpoint.manifest.shell_job = !in_tree(&op->tree, op->tree.items[0].sid);
	note_externals(op);
	return 0;
}

char **externals_for_dump(const struct manifest *m)
{
	char **keys = calloc(m->n_externals + 1, sizeof(*keys));
	size_t n = 0;

	for (size_t i = 0; keys && i < m->n_externals; i++)
		if (!strcmp(m->externals[i].become, "tty"))
			keys[n++] = strdup(m->externals[i].key);
		else if (is_closed(&m->externals[i]))
			keys[n++] = path_format("unix%s", strchr(m->externals[i].key, '['));
	return keys;
}

void externals_free(char **keys)
{
	for (char **k = keys; k && *k; k++)
		free(*k);
	free(keys);
}

/* ---- a terminal for a job whose own is gone ---- */

enum { MASTER_FD = 0, LOG_FD = 1, KEPT_FDS = 2 };

static void copy_until_hung_up(void)
{
	char buf[4096];

	for (;;) {
		ssize_t n = read(MASTER_FD, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) /* EIO: no slave is open any more */
			_exit(0);
		for (ssize_t done = 0, w; done < n; done += w) {
			w = write(LOG_FD, buf + done, (size_t)(n - done));
			if (w <= 0)
				break; /* a full disk costs output, never the job */
		}
	}
}

/* The user whose job it is: what is written to the log counts for their quota. */
struct reader_user {
	uid_t uid;
	gid_t gid;
	const gid_t *groups; /* borrowed */
	size_t n_groups;
};

static void become_reader(int master_fd, int log_fd, const struct reader_user *user)
{
	int out = log_fd >= 0 ? log_fd : open("/dev/null", O_WRONLY);
	int kept_master = fcntl(master_fd, F_DUPFD, KEPT_FDS),
	    kept_out = fcntl(out, F_DUPFD, KEPT_FDS);

	setsid();
	prctl(PR_SET_NAME, "brumate-tty");
	if (user->uid != geteuid() &&
	    user_become(user->uid, user->gid, user->groups, user->n_groups) < 0)
		_exit(1);
	if (kept_master < 0 || kept_out < 0 || dup2(kept_master, MASTER_FD) < 0 ||
	    dup2(kept_out, LOG_FD) < 0)
		_exit(1);
	close_range(KEPT_FDS, ~0u, 0);
	copy_until_hung_up();
}

/* The terminal belongs to the user as whom it is opened, as CRIU wants it to. */
static int open_master(const char *root, const struct target *target)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	/* Of an init of ours the user may not see the root. */
	auto_close int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root_fd < 0)
		return -errno;
	int r = user_files_enter(&user, target->uid, target->gid, NULL);
	if (r < 0)
		return r;
	auto_close int master = openat(root_fd, "dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
		return -errno;
	return take_fd(&master);
}

/*
 * Makes a pseudo terminal below the file system root @root and a process that copies what is
 * written to it to @log_fd (borrowed; -1: nowhere). That process is nobody's but the terminal's: it outlives its
 * maker and ends when the last user of the terminal has gone, so the job never sees a hang-up because of us. It has
 * the rights of @target's user. It runs between fork and exit in a process that had threads: system calls only. Returns the slave's fd
 * (owned) or -errno.
 */
static int make_terminal(const char *root, int log_fd, const struct target *target)
{
	auto_free gid_t *groups = NULL;
	size_t n_groups = 0;
	int r = target->uid == geteuid()
			? 0
			: user_groups(&groups, &n_groups, target->uid, target->gid, NULL);

	if (r < 0)
		return r;
	const struct reader_user user = { target->uid, target->gid, groups, n_groups };
	auto_close int master = open_master(root, target);
	if (master < 0)
		return master;
	auto_close int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return -errno;

	/* Not protected: an end of it while we live is reaped with the job's orphans. */
	pid_t pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		become_reader(master, log_fd, &user);
	return take_fd(&slave);
}

/* ---- what takes their place ---- */

static int open_in(const char *root, const struct target *target, const char *what)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	/* Of an init of ours the user may not see the root. */
	auto_close int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root_fd < 0)
		return -errno;
	if (!strcmp(what, "/dev/null")) {
		int fd = openat(root_fd, "dev/null", O_RDWR | O_CLOEXEC);

		return fd < 0 ? -errno : fd;
	}
	/* The path is the user's, not ours. */
	int r = user_files_enter(&user, target->uid, target->gid, NULL);
	return r < 0 ? r : output_open(root_fd, what + 1);
}

/* A connection whose other end has gone: what was sent is lost, and the program has to connect again. */
static int make_closed(const char *become)
{
	int type = strstr(become, "-packets") ? SOCK_SEQPACKET : SOCK_STREAM, ends[2];

	if (strstr(become, "-nonblock"))
		type |= SOCK_NONBLOCK;
	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	close(ends[1]);
	return ends[0];
}

static int replacement(struct op *op, const char *root, const struct manifest_external *e)
{
	const struct target *target = op->target;

	if (is_closed(e))
		return make_closed(e->become);
	if (!strcmp(e->become, "append")) {
		auto_free char *path = path_format("/%s", e->key);

		return path ? open_in(root, target, path) : -ENOMEM;
	}
	if (!strcmp(e->become, "tty")) {
		auto_close int log_fd = target->log ? open_in(root, target, target->log) : -1;

		return make_terminal(root, log_fd, target);
	}
	return open_in(root, target,
		       !strcmp(e->become, "log") && target->log ? target->log : "/dev/null");
}

/* The real path of @path, of which the last part may be gone. Owned. */
static char *resolve_path(const char *path)
{
	auto_free char *dir = strdup(path), *real = realpath(path, NULL);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (real || !slash)
		return take_ptr(&real);
	*slash = '\0';
	real = realpath(*dir ? dir : "/", NULL);
	return real ? path_format("%s/%s", real, slash + 1) : strdup(path);
}

int externals_give(struct criu_inherit **inherits, size_t *n, const char *key, int fd)
{
	auto_close int owned = fd;
	auto_free char *copy = fd < 0 ? NULL : strdup(key);
	struct criu_inherit *grown = copy ? reallocarray(*inherits, *n + 1, sizeof(*grown)) : NULL;

	if (grown)
		*inherits = grown;
	if (!grown)
		return fd < 0 ? fd : -ENOMEM;
	grown[(*n)++] = (struct criu_inherit){ take_ptr(&copy), take_fd(&owned) };
	return 0;
}

/* Gives the key of the log that the processes of a copy wrote to before (owned): empty where they go on with it. */
static int find_old_log(char **ret, const struct op *op, struct brumate_error *err)
{
	const char *log = op->restore.image.manifest.job.log;
	const bool is_other = log && op->target->log && strcmp(log, op->target->log);
	auto_free char *path = is_other ? resolve_path(log) : strdup("");

	*ret = path ? strdup(path + strspn(path, "/")) : NULL;
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* What takes the place of @e; @old_log is that of the job's log. */
static int add_replacement(struct criu_inherit **list, size_t *n, struct op *op, const char *root,
			   const struct manifest_external *e, const char *old_log,
			   struct brumate_error *err)
{
	const struct manifest_external log = { .key = e->key, .become = "log" };
	int r = externals_give(list, n, e->key,
			       replacement(op, root, strcmp(e->key, old_log) ? e : &log));

	return r < 0 ? brumate_fail(err, -r, "replacement for %s: %m", e->key) : 0;
}

int externals_for_restore(struct op *op, struct criu_inherit **ret, size_t *ret_n,
			  struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	auto_free char *old_log = NULL;
	struct criu_inherit *list = NULL;
	char root[32] = "/";
	bool has_log = false;
	size_t n = 0;
	int r = find_old_log(&old_log, op, err);

	if (op->target->init.pid)
		snprintf(root, sizeof(root), "/proc/%d/root", op->target->init.pid);
	for (size_t i = 0; i < m->n_externals && r == 0; i++) {
		has_log = has_log || !strcmp(m->externals[i].key, old_log);
		r = add_replacement(&list, &n, op, root, &m->externals[i], old_log, err);
	}
	if (r == 0 && *old_log && !has_log) {
		const struct manifest_external log = { .key = old_log, .become = "log" };

		r = add_replacement(&list, &n, op, root, &log, old_log, err);
	}
	if (r < 0) {
		externals_close(list, n);
		return r;
	}
	*ret = list;
	*ret_n = n;
	return 0;
}

void externals_close(struct criu_inherit *inherits, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(inherits[i].key);
		close(inherits[i].fd);
	}
	free(inherits);
}
