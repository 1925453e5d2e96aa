// SPDX-License-Identifier: MIT
/* The agent as a guest in its process: what it leaves open, forks, and a program that closes its socket. */
#include "job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, HIGH = 500 };

/* Asked by a connection of its own: the agent is through with the one before when it answers. */
static int count_fds(void)
{
	int n = 0, conn = agent_connect();
	struct agent_reply reply;
	DIR *dir;

	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	close(conn);
	return n;
}

static int socket_fd(void)
{
	int found = -1;

	for (int fd = HIGH; fd < HIGH + 100; fd++) {
		struct sockaddr_un at;
		socklen_t len = sizeof(at);

		if (getsockname(fd, (struct sockaddr *)&at, &len) || at.sun_family != AF_UNIX ||
		    !strstr(at.sun_path, "/agent/"))
			continue;
		CHECK(found < 0);
		CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
		found = fd;
	}
	return found;
}

/* Whatever came, from a peer who is right or wrong, is closed when it hangs up. */
static void test_fds(CUdeviceptr ptr)
{
	struct agent_request request = { .version = AGENT_VERSION, .op = AGENT_MAP, .n = 3 };
	struct agent_reply reply;
	int before = count_fds(), fds[3], conn;

	for (int i = 0; i < 5; i++)
		agent_cycle();
	CHECK(count_fds() == before);
	conn = agent_connect();
	for (int i = 0; i < 3; i++)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	/* With the gate open, with ids that are not, and with files that are no memory. */
	CHECK(agent_ask(conn, &request, &reply, fds, 3) == -EPERM);
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_ask(conn, &request, &reply, fds, 3) == -ENOENT);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	close(conn);

	struct parked parked;
	int wrong = open("/dev/null", O_RDONLY | O_CLOEXEC);

	conn = agent_connect();
	parked = agent_park(conn);
	CHECK(parked.n == 1);
	request.n = 1;
	request.ids[0] = parked.pieces[0].id;
	CHECK(agent_ask(conn, &request, &reply, &wrong, 1) < 0);
	CHECK(reply.gate == AGENT_GATE_UNMAPPED);
	agent_unpark(conn, &parked);
	close(conn);
	close(wrong);
	CHECK(holds(ptr, 1000, 1));
	CHECK(count_fds() == before);
}

/* The agent's ends of its connections have its address too. */
static bool has_agents_socket(void)
{
	for (int fd = 0; fd < 1024; fd++) {
		struct sockaddr_un at = { 0 };
		socklen_t len = sizeof(at);

		if (!getsockname(fd, (struct sockaddr *)&at, &len) && at.sun_family == AF_UNIX &&
		    strstr(at.sun_path, "/agent/"))
			return true;
	}
	return false;
}

/* A fork's child is not part of it: it cannot use the driver, and nobody takes it for its parent. That holds
 * for a fork in the middle of a conversation too. */
static void test_fork(CUdeviceptr ptr)
{
	int status, conn = agent_connect();
	struct agent_reply reply;

	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	CHECK(has_agents_socket());
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		CUdeviceptr other;

		CHECK(!has_agents_socket());
		CHECK(cuMemAlloc_v2(&other, 10) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuMemFree_v2(ptr) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuMemFree_v2(0) == CUDA_ERROR_NOT_INITIALIZED);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	close(conn);
	agent_cycle();
	CHECK(holds(ptr, 1000, 1));
}

static bool can_connect(const struct sockaddr_un *at)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int r = connect(fd, (const struct sockaddr *)at, sizeof(*at));

	close(fd);
	return r == 0;
}

/* Programs that become daemons close all there is. The agent goes quietly; the memory is still there. */
static void test_closed(CUdeviceptr ptr)
{
	struct sockaddr_un at = { 0 };
	socklen_t len = sizeof(at);
	int fd = socket_fd(), mine, i = 0;
	CUdeviceptr more;
	struct stat st;

	CHECK(fd >= 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
	CHECK(stat(at.sun_path, &st) == 0 && (st.st_mode & 0777) == AGENT_MODE_WITH_ROOM);
	close(fd);
	/* Its number is another file now, which the agent must not touch. */
	mine = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(dup3(mine, fd, O_CLOEXEC) == fd);
	while (can_connect(&at)) {
		CHECK(i++ < 1000); /* the one it was waiting for is still served */
		usleep(1000);
	}
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(holds(ptr, 1000, 1));
	CHECK(!cuMemAlloc_v2(&more, 3 * MIB) && !cuMemFree_v2(more));
	CHECK(!cuMemFree_v2(ptr));
}

int main(void)
{
	CUdeviceptr ptr;

	job_start("256");
	CHECK(!cuMemAlloc_v2(&ptr, 1000));
	fill(ptr, 1000, 1);
	test_fds(ptr);
	test_fork(ptr);
	test_closed(ptr);
	return 0;
}
