// SPDX-License-Identifier: MIT
/* Descriptors ride along with a packet, open files and not numbers; what has no room is told of and closed. */
#include "base/packet.h"
#include "base/clock.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3, SOON_MS = 20 };

/* The lowest free number tells whether anything was left open. */
static int lowest_free(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

static void send_fds(int socket_fd, const int *fds, size_t n)
{
	CHECK(packet_send(socket_fd, "text", 4, fds, n, DEADLINE_NEVER) == 4);
}

static ssize_t receive(int socket_fd, struct packet_fds *fds)
{
	char text[4];
	ssize_t n = packet_receive(socket_fd, text, sizeof(text), fds, deadline_in_ms(SOON_MS));

	CHECK(n < 0 || !memcmp(text, "text", (size_t)n));
	return n;
}

static void test_fds(int pair[2], const int *fds)
{
	int got[N] = { -1, -1, -1 }, free_fd = lowest_free();
	struct packet_fds all = { got, N }, one = { got, 1 };
	struct stat sent, came;

	send_fds(pair[0], fds, N);
	CHECK(receive(pair[1], &all) == 4 && all.n == N && all.state == PACKET_WHOLE);
	for (int i = 0; i < N; i++) {
		CHECK(fstat(fds[i], &sent) == 0 && fstat(got[i], &came) == 0);
		CHECK(got[i] != fds[i] && sent.st_rdev == came.st_rdev);
		CHECK(fcntl(got[i], F_GETFD) == FD_CLOEXEC);
	}
	packet_close_fds(got, N);
	CHECK(lowest_free() == free_fd);

	got[1] = -1;
	send_fds(pair[0], fds, N);
	CHECK(receive(pair[1], &one) == 4 && one.n == 1 && one.state == PACKET_TOO_LONG);
	CHECK(got[1] == -1 && close(got[0]) == 0);
	CHECK(lowest_free() == free_fd);

	send_fds(pair[0], NULL, 0);
	CHECK(receive(pair[1], &all) == 4 && all.n == 0 && all.state == PACKET_WHOLE);
	CHECK(packet_send(pair[0], "text", 4, fds, PACKET_FDS_MAX + 1, DEADLINE_NEVER) == -EINVAL);
}

/* Looking takes nothing away, and without room for descriptors opens nothing. */
static void test_peek(int pair[2], const int *fds)
{
	int got[N], free_fd = lowest_free();
	struct packet_fds none = { NULL, 0 }, all = { got, N };

	CHECK(packet_peek(pair[1], &none, deadline_in_ms(SOON_MS)) == -ETIMEDOUT);
	send_fds(pair[0], fds, N);
	CHECK(packet_peek(pair[1], &none, DEADLINE_NEVER) == 0);
	CHECK(none.n == 0 && none.state == PACKET_LOST_FDS && lowest_free() == free_fd);
	CHECK(packet_peek(pair[1], &all, DEADLINE_NEVER) == 0);
	CHECK(all.n == N && all.state == PACKET_WHOLE && fcntl(got[0], F_GETFD) == FD_CLOEXEC);
	packet_close_fds(got, N);
	CHECK(receive(pair[1], &all) == 4 && all.n == N && all.state == PACKET_WHOLE);
	packet_close_fds(got, N);

	send_fds(pair[0], NULL, 0);
	CHECK(packet_peek(pair[1], &none, DEADLINE_NEVER) == 0 && none.state == PACKET_WHOLE);
	CHECK(receive(pair[1], &none) == 4 && none.state == PACKET_WHOLE);
}

static void test_limit(int pair[2], const int *fds)
{
	int got[N], free_fd = lowest_free();
	struct packet_fds some = { got, N };
	struct rlimit before, low;

	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	low = (struct rlimit){ (rlim_t)free_fd + 1, before.rlim_max };
	send_fds(pair[0], fds, N);
	CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
	CHECK(receive(pair[1], &some) == 4 && some.n == 1 && some.state == PACKET_LOST_FDS);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	packet_close_fds(got, some.n);
	CHECK(lowest_free() == free_fd);
}

static void test_length(int pair[2])
{
	struct packet_fds none = { NULL, 0 };

	CHECK(packet_send(pair[0], "text and more", 13, NULL, 0, DEADLINE_NEVER) == 13);
	CHECK(receive(pair[1], &none) == 4 && none.state == PACKET_TOO_LONG);
}

static void test_waiting(int pair[2])
{
	struct packet_fds none = { NULL, 0 };
	ssize_t n;

	CHECK(receive(pair[1], &none) == -ETIMEDOUT);
	do
		n = packet_send(pair[0], "text", 4, NULL, 0, deadline_in_ms(SOON_MS));
	while (n == 4);
	CHECK(n == -ETIMEDOUT);
}

static void test_end(int type)
{
	struct packet_fds none = { NULL, 0 };
	int pair[2];

	CHECK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) == 0);
	close(pair[0]);
	CHECK(receive(pair[1], &none) == -EPIPE);
	CHECK(packet_send(pair[1], "text", 4, NULL, 0, DEADLINE_NEVER) == -EPIPE);
	close(pair[1]);
}

enum { FILES_MAX = 8, UID = 64321 };

/* Sends more than may be on their way, as a user whose descriptors no other program's are counted with. */
static void fill(int socket_fd, int told_fd, const int *fds)
{
	const struct rlimit files = { FILES_MAX, FILES_MAX };
	const uint64_t soon_ns = deadline_in_ms(SOON_MS);

	CHECK(geteuid() != 0 || setresuid(UID, UID, UID) == 0);
	CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
	for (int n_sent = 0; n_sent <= FILES_MAX; n_sent += N)
		send_fds(socket_fd, fds, N);
	CHECK(packet_send(socket_fd, "text", 4, fds, N, soon_ns) == -ETIMEDOUT);
	CHECK(write(told_fd, "full", 4) == 4);
	send_fds(socket_fd, fds, N);
	_exit(0);
}

/* Others of a sender's user may have sent what the kernel counts against the sender. */
static void test_too_many_on_their_way(int pair[2], const int *fds)
{
	int got[N], told[2], status;
	char text[4];

	CHECK(pipe2(told, O_CLOEXEC) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		fill(pair[0], told[1], fds);
	close(told[1]);
	CHECK(read(told[0], text, 4) == 4);
	for (int n_come = 0; n_come <= FILES_MAX + N; n_come += N) {
		struct packet_fds all = { got, N };

		CHECK(packet_receive(pair[1], text, 4, &all, deadline_in_ms(10000)) == 4);
		CHECK(all.n == N);
		packet_close_fds(got, N);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	close(told[0]);
}

int main(void)
{
	const char *paths[N] = { "/dev/null", "/dev/zero", "/dev/full" };
	const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };
	int fds[PACKET_FDS_MAX + 1];

	for (int i = 0; i < N; i++)
		CHECK((fds[i] = open(paths[i], O_RDWR | O_CLOEXEC)) >= 0);
	for (int i = 0; i < 2; i++) {
		int pair[2];

		CHECK(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, pair) == 0);
		test_fds(pair, fds);
		test_peek(pair, fds);
		test_limit(pair, fds);
		if (types[i] == SOCK_SEQPACKET)
			test_length(pair);
		test_too_many_on_their_way(pair, fds);
		test_waiting(pair);
		close(pair[0]);
		close(pair[1]);
		test_end(types[i]);
	}
	return 0;
}
