// SPDX-License-Identifier: MIT
/* The keeper's whole life, as our child: it gives back what it was given, and ends in order once that is of no
 * use to anyone, leaving no memory behind (which a sanitizer would make a failure of). */
#include "client/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/paths.h"
#include "check.h"

enum { SOCKET_FD = 3, MANY = 100 };

static void run_keeper(const char *program, int socket_fd)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (socket_fd != SOCKET_FD)
		dup2(socket_fd, SOCKET_FD);
	execl(program, "brumate-keeper", "--keep", NULL);
	_exit(127);
}

/* Connected to a keeper of its own. */
static pid_t start(struct keeper *ret)
{
	auto_free char *program = path_find_helper("brumate-shim");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(sa_family_t); /* the kernel chooses a name */
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	CHECK(program && fd >= 0);
	CHECK(bind(fd, (struct sockaddr *)&address, len) == 0 && listen(fd, 1) == 0);
	len = sizeof(address);
	CHECK(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
	*ret = KEEPER_EMPTY;
	ret->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(ret->fd >= 0 && connect(ret->fd, (struct sockaddr *)&address, len) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		run_keeper(program, fd);
	return pid;
}

static void hold(struct keeper *k)
{
	struct keeper_tag tags[MANY];
	int fds[MANY];

	for (unsigned i = 0; i < MANY; i++) {
		tags[i] = (struct keeper_tag){ KEEPER_HOST, 0, i };
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		CHECK(fds[i] >= 0);
	}
	CHECK(keeper_hold(k, tags, fds, MANY, NULL) == 0);
	for (unsigned i = 0; i < MANY; i++)
		close(fds[i]);
	CHECK(keeper_drop(k, tags, 1, NULL) == 0);
}

static void count(void *arg, struct keeper_tag tag, int fd)
{
	size_t *n = arg;
	struct stat st;

	CHECK(tag.kind == KEEPER_HOST && tag.id > 0 && tag.id < MANY);
	CHECK(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
	close(fd);
	++*n;
}

/* Of a process that has ended, and of nobody: it ends with all that it holds. */
static void watch_ended(struct keeper *k)
{
	struct keeper_message m = { .op = KEEPER_WATCH, .n = 1 };
	size_t n_fds;
	int fds[KEEPER_FDS_MAX];
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid)
		_exit(0);
	auto_close int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
	CHECK(pid_fd >= 0 && waitpid(pid, NULL, 0) == pid);
	CHECK(keeper_send(k->fd, &m, &pid_fd, 1) == 0);
	CHECK(keeper_receive(k->fd, &m, fds, &n_fds) == 0 && m.error == 0 && n_fds == 0);
}

int main(void)
{
	struct keeper k;
	pid_t pid = start(&k);
	size_t n = 0;
	int status;

	hold(&k);
	CHECK(keeper_give(&k, count, &n, NULL) == 0 && n == MANY - 1);
	watch_ended(&k);
	keeper_close(&k);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return 0;
}
