// SPDX-License-Identifier: MIT
/*
 * `brumate http`: the methods of io.brumate at a unix socket, for programs that speak HTTP and JSON alone. POST /v1/METHOD with the
 * parameters as the body is answered with the reply. Who connects must be the same user, or root, as the kernel says. Each connection
 * is a request and has a thread; one that hangs up cancels its call. Keeps nothing.
 */
#include "cli/client.h"
#include "cli/output.h"
#include "edges/serve/http-head.h"
#include "edges/serve/options.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/start.h"
#include "base/thread.h"
#include "service/service.h"

enum {
	REQUESTS_MAX = 64,
	SHARE_MAX = REQUESTS_MAX / 2, /* of one process */
	REQUEST_TIMEOUT_MS = 10000,   /* for a client to send its request */
	ANSWER_TIMEOUT_MS = 10000,
	PLACE_TIMEOUT_MS = 2000, /* for one of those under way to end */
	HANG_UP_MS = 2000,	 /* for a client to read its answer */
	STACK_BYTES = 1 << 20,
	REFUSED_KEPT = 16,
	HEAR_MS = 20, /* between looks at what they send */
	BODY_BYTES_MAX = WIRE_MESSAGE_BYTES_MAX,
};

/* A connection that had no place: its client may still be sending the request, and reads the answer after that. */
struct refused {
	int fd; /* -1: none; owned */
	uint64_t until_ns;
};

struct http_server {
	int stop_fd; /* readable when calls under way are to be cancelled */
	pthread_mutex_t lock;
	pthread_cond_t ended;
	struct exchange
		*exchanges; /* those under way, newest first; under the lock, as is their number */
	unsigned n;
	struct refused refused[REFUSED_KEPT]; /* the last ones */
	size_t n_refused;
	uint64_t
		full_until_ns; /* none but calls are under way: when that is no passing state; 0: they are not */
};

/* A connection. */
struct exchange {
	struct exchange *next; /* under the server's lock, as the two below */
	bool is_called, is_dropped;
	struct http_server *server;
	int fd; /* owned */
	struct ucred peer;
	char *text; /* what has come; owned */
	size_t len_bytes;
	struct http_head request;
};

/* ---- answering ---- */

static const struct {
	enum exit_code code;
	const char *status;
} statuses[] = {
	{ EXIT_USAGE, "400 Bad Request" },	     { EXIT_NOT_FOUND, "404 Not Found" },
	{ EXIT_PERMISSION, "403 Forbidden" },	     { EXIT_BUSY, "409 Conflict" },
	{ EXIT_NO_ROOM, "503 Service Unavailable" }, { EXIT_FROZEN, "503 Service Unavailable" },
	{ EXIT_TIMEOUT, "504 Gateway Timeout" },
};

static const char *status_of(const struct brumate_error *err)
{
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
		if (statuses[i].code == brumate_exit_code(err))
			return statuses[i].status;
	return "500 Internal Server Error";
}

/* Waits until the client takes more. Once the program is to end, it has no longer than for hanging up. */
static bool takes_more(const struct exchange *x, uint64_t *until_ns)
{
	struct pollfd fds[] = { { .fd = x->fd, .events = POLLOUT },
				{ .fd = x->server->stop_fd, .events = POLLIN } };
	int n;

	do {
		n = poll(fds, 2, deadline_left_ms(*until_ns));
	} while (n < 0 && errno == EINTR);
	if (n > 0 && fds[1].revents) {
		const uint64_t end_ns = deadline_in_ms(HANG_UP_MS);

		*until_ns = end_ns < *until_ns ? end_ns : *until_ns;
	}
	return n > 0 && fd_wait(x->fd, POLLOUT, *until_ns) == 0 && deadline_left_ms(*until_ns);
}

/* A client that reads slowly or not at all is given up. */
static void send_text(const struct exchange *x, const char *text)
{
	uint64_t until_ns = deadline_in_ms(ANSWER_TIMEOUT_MS);
	size_t len = strlen(text);

	while (len && takes_more(x, &until_ns)) {
		ssize_t n = send(x->fd, text, len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return;
		text += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
}

static void answer(const struct exchange *x, const char *status, json_t *body)
{
	auto_free char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	auto_free char *all =
		text ? path_format("HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
				   "Content-Length: %zu\r\nConnection: close\r\n\r\n%s\n",
				   status, strlen(text) + 1, text)
		     : NULL;

	send_text(x, all ? all : "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n");
}

/* @status: NULL: as the error has it. */
static void answer_error(const struct exchange *x, const char *status,
			 const struct brumate_error *err)
{
	auto_json json_t *body = json_pack("{s:o}", "error", wire_error_to_json(err));

	answer(x, status ? status : status_of(err), body);
}

static void refuse(const struct exchange *x, const char *status, int code, const char *why)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	brumate_fail(&err, code, "%s", why);
	answer_error(x, status, &err);
}

/* ---- asking ---- */

static bool has_method(const char *name)
{
#define X(method, fn) #method,
	static const char *const methods[] = { SERVICE_METHODS(X) };
#undef X
	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
		if (!strcmp(methods[i], name))
			return true;
	return false;
}

/* The object in the body (owned); none at all is an empty one. */
static int read_parameters(json_t **ret, const struct exchange *x, struct brumate_error *err)
{
	const struct http_head *q = &x->request;

	if (q->body_bytes)
		return wire_decode(ret, x->text + q->head_bytes, (size_t)q->body_bytes, err);
	*ret = json_object();
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static void run_method(const struct exchange *x, const char *name)
{
	struct service_call call = {
		.cancel = { { { .fd = x->fd }, { .fd = x->server->stop_fd, .events = POLLIN } } },
		.uid = x->peer.uid,
		.gid = x->peer.gid,
		.pid = x->peer.pid,
	};
	auto_json json_t *parameters = NULL, *reply = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = read_parameters(&parameters, x, &err);

	if (r < 0) {
		answer_error(x, "400 Bad Request", &err);
		return;
	}
	r = service_call(name, &call, parameters, &reply, &err);
	if (r < 0)
		answer_error(x, NULL, &err);
	else
		answer(x, "200 OK", reply);
}

static void run_request(const struct exchange *x)
{
	static const char prefix[] = "/v1/";
	const char *target = x->request.target,
		   *name = !strncmp(target, prefix, strlen(prefix)) ? target + strlen(prefix) : "";

	if (!has_method(name))
		refuse(x, "404 Not Found", ENOENT,
		       "no such method: POST /v1/METHOD, with those of io.brumate");
	else if (strcmp(x->request.method, "POST") != 0)
		refuse(x, "405 Method Not Allowed", EINVAL, "methods are called by POST");
	else
		run_method(x, name);
}

/* ---- receiving ---- */

/* Waits for more, or for the end of the program. -ENODATA: nothing comes any more; -ETIMEDOUT, -ECANCELED. */
static int receive_some(struct exchange *x, size_t most_bytes, uint64_t until_ns)
{
	struct pollfd fds[] = { { .fd = x->fd, .events = POLLIN },
				{ .fd = x->server->stop_fd, .events = POLLIN } };
	const int ready = poll(fds, 2, deadline_left_ms(until_ns));

	if (ready <= 0)
		return ready < 0 && errno != EINTR  ? -errno
		       : deadline_left_ms(until_ns) ? 0
						    : -ETIMEDOUT;
	if (!deadline_left_ms(until_ns))
		return -ETIMEDOUT; /* a client that sends without end keeps no thread */
	if (fds[1].revents)
		return -ECANCELED;
	const ssize_t n = recv(x->fd, x->text + x->len_bytes, most_bytes, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	x->len_bytes += (size_t)n;
	return n ? 0 : -ENODATA;
}

static int receive_head(struct exchange *x, uint64_t until_ns)
{
	int r = 0;

	x->text = malloc(HTTP_HEAD_BYTES_MAX);
	if (!x->text)
		return -ENOMEM;
	while (r == 0 && (r = http_head_parse(&x->request, x->text, x->len_bytes)) == 0)
		r = receive_some(x, HTTP_HEAD_BYTES_MAX - x->len_bytes, until_ns);
	return r < 0 ? r : 0;
}

static int receive_body(struct exchange *x, uint64_t until_ns)
{
	const struct http_head *q = &x->request;
	int r = 0;

	if (q->body_bytes > BODY_BYTES_MAX)
		return -EFBIG;
	const size_t whole = q->head_bytes + (size_t)q->body_bytes;
	char *more = realloc(x->text, whole > HTTP_HEAD_BYTES_MAX ? whole : HTTP_HEAD_BYTES_MAX);
	if (!more)
		return -ENOMEM;
	x->text = more;
	if (q->expects && x->len_bytes < whole)
		send_text(x, "HTTP/1.1 100 Continue\r\n\r\n");
	while (r == 0 && x->len_bytes < whole)
		r = receive_some(x, whole - x->len_bytes, until_ns);
	return r;
}

static void refuse_request(const struct exchange *x, int r)
{
	static const struct {
		int code;
		const char *status, *why;
	} known[] = {
		{ EBADMSG, "400 Bad Request", "this is no request of HTTP/1.1" },
		{ EMSGSIZE, "431 Request Header Fields Too Large", "the head is too large" },
		{ EFBIG, "413 Content Too Large", "the body is too large" },
		{ EOPNOTSUPP, "501 Not Implemented", "a body needs a Content-Length" },
		{ ETIMEDOUT, "408 Request Timeout", "the request did not come in time" },
		{ ENOMEM, "503 Service Unavailable", "there is no memory for it" },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].code == -r)
			refuse(x, known[i].status, -r, known[i].why);
}

static bool may_ask(struct exchange *x)
{
	return fd_peer(x->fd, &x->peer) == 0 && (x->peer.uid == geteuid() || x->peer.uid == 0);
}

/* What comes after the request is read, as otherwise the kernel would drop the answer. */
static void read_rest(struct exchange *x)
{
	const uint64_t until_ns = deadline_in_ms(HANG_UP_MS);
	int r = shutdown(x->fd, SHUT_WR);

	while (r == 0 && x->text) {
		x->len_bytes = 0;
		r = receive_some(x, HTTP_HEAD_BYTES_MAX, until_ns);
	}
}

/* -EPIPE: it was dropped meanwhile. */
static int note_called(struct exchange *x, bool is_called)
{
	pthread_mutex_lock(&x->server->lock);
	const bool is_dropped = x->is_dropped;
	x->is_called = is_called;
	pthread_mutex_unlock(&x->server->lock);
	return is_dropped ? -EPIPE : 0;
}

/* Frees it. */
static void end_exchange(struct exchange *x)
{
	struct http_server *s = x->server;
	struct exchange **at = &s->exchanges;

	read_rest(x);
	pthread_mutex_lock(&s->lock);
	while (*at != x)
		at = &(*at)->next;
	*at = x->next;
	s->n--;
	close(x->fd); /* so that nobody drops a number that is another's */
	pthread_cond_broadcast(&s->ended);
	pthread_mutex_unlock(&s->lock);
	free(x->text);
	free(x);
}

static void *serve_exchange(void *arg)
{
	struct exchange *x = arg;
	const uint64_t until_ns = deadline_in_ms(REQUEST_TIMEOUT_MS);
	int r = receive_head(x, until_ns);

	if (r == 0)
		r = receive_body(x, until_ns);
	if (r == 0)
		r = note_called(x, true);
	if (r < 0)
		refuse_request(x, r);
	else
		run_request(x);
	note_called(x, false);
	end_exchange(x);
	return NULL;
}

/* How many are of process @pid. Under the lock. */
static unsigned count_of(const struct http_server *s, pid_t pid)
{
	unsigned n = 0;

	for (const struct exchange *x = s->exchanges; x; x = x->next)
		n += x->peer.pid == pid && !x->is_dropped;
	return n;
}

/* Hangs up on the oldest whose request is not there yet, or whose answer is not read: it keeps no other out. @pid: of this process; 0: of any.
 * Under the lock. */
static void drop_oldest_of(struct http_server *s, pid_t pid)
{
	struct exchange *oldest = NULL;

	for (struct exchange *x = s->exchanges; x; x = x->next)
		if (!x->is_called && !x->is_dropped && (!pid || x->peer.pid == pid))
			oldest = x;
	if (!oldest)
		return;
	oldest->is_dropped = true;
	shutdown(oldest->fd, SHUT_RDWR);
}

/* Beyond as many as may be it waits for a moment, and those after it wait in the kernel. -EAGAIN: its process has enough; -EBUSY: all are calls,
 * which may last for ever. */
static int add_exchange(struct http_server *s, struct exchange *x)
{
	int r = 0;

	pthread_mutex_lock(&s->lock);
	if (x->peer.pid && count_of(s, x->peer.pid) >= SHARE_MAX) {
		drop_oldest_of(s, x->peer.pid);
		r = count_of(s, x->peer.pid) >= SHARE_MAX ? -EAGAIN : 0;
	}
	if (s->n < REQUESTS_MAX)
		s->full_until_ns = 0;
	else if (!s->full_until_ns) /* those after it do not wait once more */
		s->full_until_ns = deadline_in_ms(PLACE_TIMEOUT_MS);
	while (r == 0 && s->n == REQUESTS_MAX) {
		const struct timespec until = deadline_timespec(s->full_until_ns);

		drop_oldest_of(s, 0);
		pthread_cond_timedwait(&s->ended, &s->lock, &until);
		r = s->n == REQUESTS_MAX && !deadline_left_ms(s->full_until_ns) ? -EBUSY : 0;
	}
	if (r == 0) {
		x->next = s->exchanges;
		s->exchanges = x;
		s->n++;
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* Frees it. Its connection is kept for a while, without a place: a client that is hung up on while it sends does not read the answer. */
static void turn_away(struct http_server *s, struct exchange *x, const char *status, int code,
		      const char *why)
{
	struct refused *kept = &s->refused[s->n_refused++ % REFUSED_KEPT];

	refuse(x, status, code, why);
	shutdown(x->fd, SHUT_WR);
	cleanup_close(&kept->fd);
	*kept = (struct refused){ x->fd, deadline_in_ms(HANG_UP_MS) };
	free(x);
}

/* Throws away what it sends, and hangs up at the end of that, or of its time. */
static void hear_out(struct refused *r)
{
	char bytes[4096];
	ssize_t n = 1;

	/* So few at a time that it holds nobody up. */
	for (int i = 0; i < 64 && n > 0; i++)
		n = recv(r->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	const bool goes_on = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
	if (goes_on && deadline_left_ms(r->until_ns))
		return;
	cleanup_close(&r->fd);
}

/* Returns how long to wait for more of what they send, as poll(2) takes it. */
static int hear_refused(struct http_server *s)
{
	int wait_ms = -1;

	for (size_t i = 0; i < REFUSED_KEPT; i++) {
		struct refused *r = &s->refused[i];

		if (r->fd >= 0)
			hear_out(r);
		if (r->fd >= 0)
			wait_ms = HEAR_MS;
	}
	return wait_ms;
}

static void take_connection(struct http_server *s, int listen_fd)
{
	auto_close int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	struct exchange *x = fd >= 0 ? calloc(1, sizeof(*x)) : NULL;
	int r;

	if (!x)
		return;
	*x = (struct exchange){ .server = s, .fd = take_fd(&fd) };
	if (!may_ask(x)) { /* nor has it a place here */
		turn_away(s, x, "403 Forbidden", EACCES, "this is another user's");
		return;
	}
	r = add_exchange(s, x);
	if (r < 0) {
		turn_away(s, x, "503 Service Unavailable", -r,
			  r == -EBUSY
				  ? "as many requests are under way as there may be"
				  : "this process has as many requests under way as it may have");
		return;
	}
	if (thread_start_detached(serve_exchange, x, STACK_BYTES) == 0)
		return;
	refuse(x, "503 Service Unavailable", EAGAIN, "there is no thread for it");
	end_exchange(x);
}

static void wait_for_all(struct http_server *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->n)
		pthread_cond_wait(&s->ended, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static int serve_until_stopped(struct http_server *s, int listen_fd, struct brumate_error *err)
{
	struct pollfd fds[] = { { .fd = listen_fd, .events = POLLIN },
				{ .fd = s->stop_fd, .events = POLLIN } };

	while (!interrupt_seen()) {
		if (poll(fds, 2, hear_refused(s)) < 0 && errno != EINTR)
			return brumate_fail(err, errno, "poll: %m");
		if (fds[0].revents && !fds[1].revents)
			take_connection(s, listen_fd);
	}
	return 0;
}

/* The socket of the service manager, or one at @path; owned. */
static int open_socket(const char *path, struct brumate_error *err)
{
	auto_free char *usual = path ? NULL : path_format("%s/http.sock", path_runtime_dir());
	int r = path ? 0 : mkdir_parents(path_runtime_dir(), 0755);

	if (start_take_sockets() > 0)
		return START_SOCKETS;
	if (r < 0 || (!path && !usual))
		return brumate_fail(err, r < 0 ? -r : ENOMEM, "%s: %m", path_runtime_dir());
	return wire_listen(path ? path : usual, 0600, err);
}

int verb_http(const struct invocation *in, struct brumate_error *err)
{
	struct http_server s = { .stop_fd = interrupt_watch(true),
				 .lock = PTHREAD_MUTEX_INITIALIZER };
	auto_close int fd = open_socket(in->values[OPT_SOCKET], err);

	condition_init(&s.ended);
	for (size_t i = 0; i < REFUSED_KEPT; i++)
		s.refused[i].fd = -1;
	if (fd < 0)
		return fd;
	if (s.stop_fd < 0)
		return brumate_fail(err, -s.stop_fd, "pipe: %m");
	int r = serve_until_stopped(&s, fd, err);
	wait_for_all(&s);
	for (size_t i = 0; i < REFUSED_KEPT; i++)
		cleanup_close(&s.refused[i].fd);
	return r;
}
