// SPDX-License-Identifier: MIT
/* What a program finds, and what others learn of it, while its GPU is away: calls that look are answered, one that uses the
 * GPU asks for it, and the socket's time says when it was last used. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "job.h"
#include "threads.h"

enum { BYTES = 4 << 20 };

static char *path_beside(const char *name)
{
	char *path = NULL;

	CHECK(asprintf(&path, "%s/%s", getenv(AGENT_DIR_VARIABLE), name) > 0);
	return path;
}

static int listen_as_shim(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char *path = path_beside(AGENT_WAKE_SOCKET);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	CHECK(strlen(path) < sizeof(at.sun_path));
	strcpy(at.sun_path, path);
	free(path);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof(at)));
	return fd;
}

static bool comes(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, timeout_ms) == 1;
}

static struct agent_wake take(int fd)
{
	struct agent_wake packet;

	CHECK(recv(fd, &packet, sizeof(packet), 0) == sizeof(packet));
	CHECK(packet.version == AGENT_VERSION && packet.pid == getpid());
	CHECK(memchr(packet.call, '\0', sizeof(packet.call)));
	return packet;
}

struct looks {
	CUevent event;
	CUstream stream;
	size_t free_bytes, total_bytes;
};

static void look(const struct looks *seen)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	size_t free_bytes = 0, total_bytes = 0;

	CHECK(!cuEventQuery(seen->event) && !cuEventSynchronize(seen->event));
	CHECK(!cuStreamQuery(seen->stream) && !cuStreamSynchronize(seen->stream));
	CHECK(!cuCtxSynchronize());
	CHECK(!cuStreamIsCapturing(seen->stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
	CHECK(!cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK(!cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(!cuMemGetInfo_v2(&free_bytes, &total_bytes));
	CHECK(free_bytes == seen->free_bytes && total_bytes == seen->total_bytes);
}

struct user {
	CUcontext ctx;
	CUdeviceptr ptr;
	atomic_bool done;
};

static void *use(void *arg)
{
	struct user *u = arg;

	CHECK(!cuCtxSetCurrent(u->ctx)); /* which waits */
	CHECK(!cuMemsetD8_v2(u->ptr, 7, BYTES));
	u->done = true;
	return NULL;
}

/* Looks go on, before and after a thread asks; that one goes on when its memory is back. */
static void test_asleep(const struct looks *seen, struct user *u, int shim)
{
	int conn = agent_connect();
	struct parked parked = agent_park(conn);
	struct agent_reply reply;
	pthread_t thread;

	look(seen);
	/* Longer than until the agent looks for calls that wait. */
	CHECK(!comes(shim, 2500 * AGENT_LOOKS_S));
	CHECK(!agent_do(conn, AGENT_DETACH, &reply));
	close(conn);
	CHECK(!pthread_create(&thread, NULL, use, u));
	CHECK(comes(shim, 60000));
	struct agent_wake packet = take(shim);
	CHECK_STR(packet.call, "cuCtxSetCurrent");
	look(seen);
	CHECK(comes(shim, 60000)); /* again, as the first may have gone to a shim that has died */
	packet = take(shim);
	CHECK_STR(packet.call, "cuCtxSetCurrent");
	CHECK(!u->done);
	conn = agent_connect();
	agent_unpark(conn, &parked);
	CHECK(!agent_do(conn, AGENT_OPEN, &reply));
	close(conn);
	CHECK(!pthread_join(thread, NULL));
	while (comes(shim, 0))
		take(shim);
	CHECK(!comes(shim, 2500 * AGENT_LOOKS_S));
}

static struct timespec last_use(void)
{
	char name[16];
	struct stat st;

	snprintf(name, sizeof(name), "%d", (int)getpid());
	char *path = path_beside(name);
	CHECK(!stat(path, &st));
	free(path);
	return st.st_mtim;
}

static bool is_later(struct timespec a, struct timespec b)
{
	return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

/* The time goes on while there are calls, and not by looks. */
static void test_time_of_use(const struct looks *seen, const struct user *u)
{
	struct timespec before = last_use();

	for (int i = 0; i < 25 * AGENT_LOOKS_S; i++) {
		CHECK(!cuEventQuery(seen->event));
		usleep(100000);
	}
	CHECK(!is_later(last_use(), before));
	while (!is_later(last_use(), before))
		CHECK(!cuMemsetD8_v2(u->ptr, 7, BYTES));
}

int main(void)
{
	struct user u = { .ctx = job_start("1024") };
	struct looks seen;
	int shim = listen_as_shim();

	CHECK(!cuMemAlloc_v2(&u.ptr, BYTES));
	CHECK(!cuEventCreate(&seen.event, 0) && !cuStreamCreate(&seen.stream, 0));
	CHECK(!cuEventRecord(seen.event, seen.stream));
	CHECK(!cuCtxSynchronize());
	CHECK(!cuMemGetInfo_v2(&seen.free_bytes, &seen.total_bytes));
	test_asleep(&seen, &u, shim);
	u.done = false;
	test_asleep(&seen, &u, shim);
	test_time_of_use(&seen, &u);
	close(shim);
	return 0;
}
