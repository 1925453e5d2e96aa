// SPDX-License-Identifier: MIT
/*
 * What a CRIU that was killed leaves behind, and how a tree it was dumping is made to run on. Seen with 4.2.1 on Linux 6.18: the kernel lets traced tasks go and the code that CRIU injected
 * takes itself out when its socket closes; but TCP sockets stay in repair mode, in which reading and
 * writing fail, and the table that drops their packets stays too. A dying process closes what it has
 * open, the highest number first, before it lets go of those it traces: between its socket, by which
 * we hear of it, and the rest it is given something that takes milliseconds to close, and in these the
 * tree is stopped.
 */
#include "base/cleanup.h"
#include "base/paths.h"
#include "process/criu-private.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOCK_NAME_LEN = 26 };

void heal_state_fini(struct heal_state *h)
{
	for (size_t i = 0; h->pid_fds && i < h->before.n; i++)
		cleanup_close(&h->pid_fds[i]);
	free(h->pid_fds);
	proc_tree_fini(&h->before);
	h->pid_fds = NULL;
}

int heal_prepare(struct heal_state *ret, struct proc_id root, struct brumate_error *err)
{
	auto_(heal_state_fini) struct heal_state h = HEAL_STATE_EMPTY;
	int r = proc_tree_read(&h.before, root, err);

	if (r < 0)
		return r;
	h.pid_fds = malloc(h.before.n * sizeof(*h.pid_fds));
	if (!h.pid_fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < h.before.n; i++)
		h.pid_fds[i] = proc_open(h.before.items[i].id);
	*ret = h;
	h = HEAL_STATE_EMPTY;
	return 0;
}

static void signal_all(const struct heal_state *h, int signal)
{
	for (size_t i = 0; i < h->before.n; i++)
		if (h->pid_fds[i] >= 0 && h->before.items[i].state != 'T')
			syscall(SYS_pidfd_send_signal, h->pid_fds[i], signal, NULL, 0);
}

int heal_brake(void)
{
	auto_close int fd = inotify_init1(IN_CLOEXEC);

	/* A watch is what the kernel waits for when it closes this: until nobody can be looking at it. */
	if (fd < 0 || inotify_add_watch(fd, "/", IN_DELETE_SELF) < 0)
		return -errno;
	return take_fd(&fd);
}

void heal_stop(const struct heal_state *h)
{
	signal_all(h, SIGSTOP);
}

static void end_tcp_repair(int pid_fd, int number)
{
	auto_close int fd = (int)syscall(SYS_pidfd_getfd, pid_fd, number, 0);
	int on = 0, off = 0;
	socklen_t len = sizeof(on);

	if (fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, &len) == 0 && on)
		setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off));
}

static void heal_sockets(struct proc_id id, int pid_fd)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/fd", id.pid);
	auto_closedir DIR *dir = opendir(path);
	if (pid_fd < 0 || !dir)
		return;
	for (struct dirent *e; (e = readdir(dir));) {
		struct stat st;

		if (e->d_name[0] != '.' && fstatat(dirfd(dir), e->d_name, &st, 0) == 0 &&
		    S_ISSOCK(st.st_mode))
			end_tcp_repair(pid_fd, atoi(e->d_name));
	}
}

/* The table is named after the run, as much of it as fits into CRIU's buffer. */
static void remove_lock_of_run(const char *id, const char *end)
{
	char name[64] = "CRIU-";
	size_t n = strlen(name);

	for (; id < end && n < sizeof(name) - 1 && (isxdigit((unsigned char)*id) || *id == '-');
	     id++)
		name[n++] = *id;
	net_lock_remove(name);
	name[LOCK_NAME_LEN] = '\0';
	net_lock_remove(name);
}

/* CRIU names the run anew once it knows its request, so there is more than one such line. */
static void remove_lock_named_in(const char *log, size_t len)
{
	static const char mark[] = "CRIU run id = ";
	const char *end = log + len;

	for (const char *p = log; (p = memmem(p, (size_t)(end - p), mark, sizeof(mark) - 1));) {
		p += sizeof(mark) - 1;
		remove_lock_of_run(p, end);
	}
}

/* A restore makes deleted files anew under names of their own beside the old ones. */
static void remove_ghosts_named_in(const char *log, size_t len)
{
	static const char mark[] = "Opening ghost file 0x";
	const char *end = log + len;

	for (const char *p = log; (p = memmem(p, (size_t)(end - p), mark, sizeof(mark) - 1));) {
		p += sizeof(mark) - 1;
		const char *eol = memchr(p, '\n', (size_t)(end - p));
		auto_free char *line = strndup(p, (size_t)((eol ? eol : end) - p));
		char *path = line ? strstr(line, " for ") : NULL;
		auto_free char *ghost =
			path ? path_format("/%s.cr.%lx.ghost", path + strlen(" for "),
					   strtoul(line, NULL, 16))
			     : NULL;

		if (ghost)
			unlink(ghost);
	}
}

static void with_log(int log_fd, void (*fn)(const char *log, size_t len))
{
	struct stat st;

	if (log_fd < 0 || fstat(log_fd, &st) < 0 || st.st_size <= 0)
		return;
	void *log = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, log_fd, 0);
	if (log == MAP_FAILED)
		return;
	fn(log, (size_t)st.st_size);
	munmap(log, (size_t)st.st_size);
}

void heal_tree(const struct heal_state *h, int log_fd)
{
	for (size_t i = 0; i < h->before.n; i++)
		heal_sockets(h->before.items[i].id, h->pid_fds[i]);
	with_log(log_fd, remove_lock_named_in);
	signal_all(h, SIGCONT);
}

void heal_restore(int log_fd)
{
	with_log(log_fd, remove_ghosts_named_in);
}

void criu_release_network(int work_dir_fd, const char *log_name)
{
	auto_close int fd = openat(work_dir_fd, log_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	with_log(fd, remove_lock_named_in);
}
