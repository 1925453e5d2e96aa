// SPDX-License-Identifier: MIT
/* Starting and asking the helper. See helper.h. */
#include "edges/containers/plugin/helper.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { SOCKET_FD = 3, IMAGES_FD = 4, TABLE_FD = 5, FREE_FD = 100, CANNOT_RUN = 127 };

/* The folder of the plugin is in that of the programs. */
static int find_program(char path[static PATH_MAX])
{
	static const char name[] = "/../brumate-container";
	Dl_info info;

	if (!dladdr((void *)helper_start, &info) || !info.dli_fname)
		return -ENOENT;
	size_t len = strlen(info.dli_fname);
	const char *slash = strrchr(info.dli_fname, '/');
	size_t dir_len = slash ? (size_t)(slash - info.dli_fname) : 0;
	if (!slash || len >= PATH_MAX || dir_len + sizeof(name) > PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(path, info.dli_fname, dir_len);
	memcpy(path + dir_len, name, sizeof(name));
	return access(path, X_OK) < 0 ? -errno : 0;
}

/* In a child, which has no other thread. */
static void set_descriptors(int socket_fd, int images_fd, int table_fd)
{
	int socket = fcntl(socket_fd, F_DUPFD, FREE_FD),
	    images = fcntl(images_fd, F_DUPFD, FREE_FD);
	int null = open("/dev/null", O_RDWR);
	int table = fcntl(table_fd < 0 ? null : table_fd, F_DUPFD, FREE_FD);
	int log = open("brumate.log", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);

	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	dup2(log < 0 ? null : log, STDERR_FILENO);
	if (dup2(socket, SOCKET_FD) < 0 || dup2(images, IMAGES_FD) < 0 || dup2(table, TABLE_FD) < 0)
		_exit(CANNOT_RUN);
	syscall(SYS_close_range, TABLE_FD + 1, ~0u, 0);
}

_Noreturn static void run_helper(const char *path, int socket_fd, int images_fd, int table_fd,
				 pid_t criu)
{
	char number[16];
	sigset_t none;

	if (fork() != 0) /* not CRIU's child, so CRIU does not wait for it */
		_exit(0);
	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	set_descriptors(socket_fd, images_fd, table_fd);
	snprintf(number, sizeof(number), "%d", criu);
	execl(path, "brumate-container", "3", "4", "5", number, (char *)NULL);
	_exit(CANNOT_RUN);
}

/* CRIU takes the end of a child that it does not know for a failure of its own. */
static int fork_helper(const char *path, int socket_fd, int images_fd, int table_fd)
{
	sigset_t child, before;
	pid_t criu = getpid();

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	pid_t pid = fork();
	if (pid == 0)
		run_helper(path, socket_fd, images_fd, table_fd, criu);
	int r = pid < 0 ? -errno : 0;
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return r;
}

int helper_start(struct helper *h, int images_dir_fd, int table_fd)
{
	char path[PATH_MAX];
	int pair[2];
	int r = find_program(path);

	if (r < 0)
		return r;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	r = fork_helper(path, pair[1], images_dir_fd, table_fd);
	close(pair[1]);
	if (r < 0) {
		close(pair[0]);
		return r;
	}
	h->fd = pair[0];
	return 0;
}

/* Where it has died, the answer says so. */
void helper_request(const struct helper *h, const char *word, pid_t pid)
{
	char request[64];
	int len = snprintf(request, sizeof(request), "%s %d", word, pid);

	send(h->fd, request, (size_t)len, MSG_NOSIGNAL);
}

bool helper_has_answered(const struct helper *h, int timeout_ms)
{
	struct pollfd one = { .fd = h->fd, .events = POLLIN };

	return poll(&one, 1, timeout_ms) > 0;
}

int helper_answer(const struct helper *h, char answer[static HELPER_ANSWER_BYTES])
{
	char got[HELPER_ANSWER_BYTES];
	ssize_t n;

	while ((n = recv(h->fd, got, sizeof(got) - 1, 0)) < 0 && errno == EINTR)
		;
	if (n <= 0) {
		snprintf(answer, HELPER_ANSWER_BYTES,
			 "brumate-container has ended; brumate.log says more");
		return -EPIPE;
	}
	got[n] = '\0';
	bool ok = !strncmp(got, "ok", 2);
	snprintf(answer, HELPER_ANSWER_BYTES, "%s", got + (n < 3 ? n : 3));
	return ok ? 0 : -EIO;
}

int helper_ask(const struct helper *h, const char *word, pid_t pid,
	       char answer[static HELPER_ANSWER_BYTES])
{
	helper_request(h, word, pid);
	return helper_answer(h, answer);
}

bool helper_is_gone(const struct helper *h)
{
	char byte;

	return h->fd >= 0 && recv(h->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

void helper_hang_up(struct helper *h)
{
	cleanup_close(&h->fd);
	h->fd = -1;
}
