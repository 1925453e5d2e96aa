// SPDX-License-Identifier: MIT
/* Descriptors ride along with a message, open files and not numbers; those that have no room are closed. */
#include "base/fd-pass.h"
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { N = 3 };

static void send_fds(int socket, const int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[FD_PASS_BYTES(N)] = { 0 };
	struct iovec iov = { "x", 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n)
		fd_pass_put(&msg, control, fds, n);
	CHECK(sendmsg(socket, &msg, 0) == 1);
}

static size_t receive_fds(int socket, int *ret, size_t room)
{
	_Alignas(struct cmsghdr) char control[FD_PASS_BYTES(N)];
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};

	CHECK(recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) == 1);
	return fd_pass_take(&msg, ret, room);
}

/* The lowest free number tells whether anything was left open. */
static int lowest_free(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

int main(void)
{
	const char *paths[N] = { "/dev/null", "/dev/zero", "/dev/full" };
	int pair[2], fds[N], got[N] = { -1, -1, -1 };
	struct stat sent, came;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	for (int i = 0; i < N; i++)
		CHECK((fds[i] = open(paths[i], O_RDWR | O_CLOEXEC)) >= 0);
	int free_fd = lowest_free();

	send_fds(pair[0], fds, N);
	CHECK(receive_fds(pair[1], got, N) == N);
	for (int i = 0; i < N; i++) {
		CHECK(fstat(fds[i], &sent) == 0 && fstat(got[i], &came) == 0);
		CHECK(got[i] != fds[i] && sent.st_rdev == came.st_rdev);
		CHECK(fcntl(got[i], F_GETFD) == FD_CLOEXEC && close(got[i]) == 0);
	}
	CHECK(lowest_free() == free_fd);

	got[1] = -1;
	send_fds(pair[0], fds, N);
	CHECK(receive_fds(pair[1], got, 1) == N);
	CHECK(got[1] == -1 && close(got[0]) == 0);
	CHECK(lowest_free() == free_fd);

	send_fds(pair[0], NULL, 0);
	CHECK(receive_fds(pair[1], got, N) == 0);
	return 0;
}
