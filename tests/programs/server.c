// SPDX-License-Identifier: MIT
/*
 * server --port P [--mib M] [watch]: a stand-in for a model server. It answers GET of HTTP on its port, keep-alive or not:
 * "/health" at once and without the GPU, anything else by its device memory, of which every word is changed and checked:
 * "step N OK", where N counts such answers. One thread serves all connections, and one uses the GPU, in the order in which
 * it was asked. With "watch", a third asks for its context and the state of an event, a stream and the memory all the time, as
 * those of libraries do.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { REQUEST_BYTES = 1024, CONNECTIONS_MAX = 16384, WATCH_MS = 5 };

/* Of a connection: what came of a request so far. */
static struct connection {
	size_t n;
	char text[REQUEST_BYTES];
} * connections[CONNECTIONS_MAX];

static struct gpu gpu;
static struct array memory;

/* ---- the queue between the two ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int queue[CONNECTIONS_MAX * 4];
static size_t first, last;

static void ask_gpu(int fd)
{
	pthread_mutex_lock(&lock);
	if (last - first == sizeof(queue) / sizeof(queue[0]))
		die("ERR more requests than fit");
	queue[last++ % (sizeof(queue) / sizeof(queue[0]))] = fd;
	pthread_cond_signal(&filled);
	pthread_mutex_unlock(&lock);
}

static int next_request(void)
{
	pthread_mutex_lock(&lock);
	while (first == last)
		pthread_cond_wait(&filled, &lock);
	int fd = queue[first++ % (sizeof(queue) / sizeof(queue[0]))];
	pthread_mutex_unlock(&lock);
	return fd;
}

/* ---- answers ---- */

static void answer(int fd, const char *text)
{
	char reply[256];
	int n = snprintf(
		reply, sizeof(reply),
		"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n%s",
		strlen(text), text);

	if (send(fd, reply, (size_t)n, MSG_NOSIGNAL) != n && errno != EPIPE && errno != ECONNRESET)
		die("ERR send: %s", strerror(errno));
}

static void *use_gpu(void *arg)
{
	(void)arg;
	CHECKED(cuCtxSetCurrent(gpu.ctx));
	for (unsigned long step = 1;; step++) {
		int fd = next_request();
		char text[64];

		array_add(&memory, NULL);
		const bool right = array_check(&memory, NULL);
		snprintf(text, sizeof(text), "step %lu %s\n", step, right ? "OK" : "BAD");
		answer(fd, text);
	}
	return NULL;
}

static void *watch(void *arg)
{
	CUevent event;
	CUstream stream;

	(void)arg;
	CHECKED(cuCtxSetCurrent(gpu.ctx));
	CHECKED(cuStreamCreate(&stream, 1));
	CHECKED(cuEventCreate(&event, 0));
	CHECKED(cuEventRecord(event, stream));
	CHECKED(cuEventSynchronize(event));
	for (;;) {
		size_t free_bytes, total_bytes;

		CUcontext current;

		CHECKED(cuCtxGetCurrent(&current));
		if (current != gpu.ctx)
			die("ERR another context is current");
		CHECKED(cuCtxSetCurrent(current));
		CHECKED(cuEventQuery(event));
		CHECKED(cuStreamSynchronize(stream));
		CHECKED(cuMemGetInfo_v2(&free_bytes, &total_bytes));
		if (!total_bytes || free_bytes > total_bytes)
			die("ERR %zu of %zu bytes are free", free_bytes, total_bytes);
		poll(NULL, 0, WATCH_MS);
	}
	return NULL;
}

/* ---- connections ---- */

static void take_requests(int fd, struct connection *c)
{
	char *end;

	while ((end = memmem(c->text, c->n, "\r\n\r\n", 4))) {
		size_t len = (size_t)(end - c->text) + 4;

		if (!strncmp(c->text, "GET /health", 11))
			answer(fd, "alive\n");
		else
			ask_gpu(fd);
		memmove(c->text, c->text + len, c->n -= len);
	}
}

/* The number may be that of a new connection only after the answers of the old one: half-closed ones stay until then. */
static void serve(int fd, int epoll)
{
	struct connection *c = connections[fd];
	ssize_t n = read(fd, c->text + c->n, sizeof(c->text) - c->n);

	if (n > 0) {
		c->n += (size_t)n;
		take_requests(fd, c);
		return;
	}
	free(c);
	connections[fd] = NULL;
	/* The other thread may still be in the send(2) that the client has answered by hanging up: then close(2) does not end
	 * the file, and its event would come again. */
	epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
}

static void take_connection(int listener, int epoll)
{
	int fd = accept(listener, NULL, NULL), one = 1;
	struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };

	if (fd < 0 || fd >= CONNECTIONS_MAX)
		die("ERR accept: %d: %s", fd, strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	connections[fd] = calloc(1, sizeof(struct connection));
	if (!connections[fd] || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) < 0)
		die("ERR a connection: %s", strerror(errno));
}

static int listen_on(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)port),
				  .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 4096) < 0)
		die("ERR port %d: %s", port, strerror(errno));
	return fd;
}

static void start(void *(*fn)(void *))
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, fn, NULL))
		die("ERR no thread");
}

int main(int argc, char **argv)
{
	struct options o = { .mib = 64, .chunk_mib = 16 };
	struct rlimit files = { CONNECTIONS_MAX, CONNECTIONS_MAX };
	struct epoll_event e = { .events = EPOLLIN };

	options_parse(&o, argc, argv,
		      "server --port P [--mib 64] [--chunk-mib 16] [--gpu 0] [watch]");
	setrlimit(RLIMIT_NOFILE, &files);
	int listener = e.data.fd = listen_on(o.port), epoll = epoll_create1(EPOLL_CLOEXEC);
	gpu_open(&gpu, o.gpu);
	array_alloc(&memory, &gpu, o.mib / o.chunk_mib, o.chunk_mib << 20);
	start(use_gpu);
	if (o.word && !strcmp(o.word, "watch"))
		start(watch);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e) < 0)
		die("ERR epoll: %s", strerror(errno));
	say("ready pid %d", (int)getpid());
	for (;;) {
		struct epoll_event got[64];
		int n = epoll_wait(epoll, got, 64, -1);

		for (int i = 0; i < n; i++)
			if (got[i].data.fd == listener)
				take_connection(listener, epoll);
			else
				serve(got[i].data.fd, epoll);
	}
}
