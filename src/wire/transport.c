// SPDX-License-Identifier: MIT
/* Connections: sockets by path, messages on them with framing, fds and deadlines, and varlink calls. */
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/packet.h"

enum {
	CONNECT_TIMEOUT_MS = 5000,
	ROOM_FIRST_BYTES = 4096,
	ROOM_KEPT_BYTES = 64 << 10, /* of buffer that a connection keeps between messages */
};

/* ---- sockets ---- */

/* A Unix address of any length: a long path is reached through its directory's fd. */
struct address {
	struct sockaddr_un sun;
	int dir_fd; /* -1 if the path fits */
};

static void address_fini(struct address *a)
{
	cleanup_close(&a->dir_fd);
}
DEFINE_AUTO_FINI(struct address, address_fini)

/* Returns 0 or -errno. */
static int address_init(struct address *ret, const char *path)
{
	struct address a = { .sun = { .sun_family = AF_UNIX }, .dir_fd = -1 };

	if (strlen(path) < sizeof(a.sun.sun_path)) {
		strcpy(a.sun.sun_path, path);
		*ret = a;
		return 0;
	}

	auto_free char *dir = strdup(path);
	if (!dir)
		return -ENOMEM;
	char *slash = strrchr(dir, '/');
	if (!slash || strlen(slash) > sizeof(a.sun.sun_path) - sizeof("/proc/self/fd/2147483647"))
		return -ENAMETOOLONG;
	*slash = '\0';

	a.dir_fd = RESERVE_TRY(open(*dir ? dir : "/", O_PATH | O_DIRECTORY | O_CLOEXEC));
	if (a.dir_fd < 0)
		return -errno;
	snprintf(a.sun.sun_path, sizeof(a.sun.sun_path), "/proc/self/fd/%d/%s", a.dir_fd,
		 slash + 1);
	*ret = a;
	return 0;
}

/* Removes a socket left by an earlier server, and nothing that is not a socket. */
static int remove_old(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

/* Sets the mode before bind(2), so that the socket is never more accessible than it should be, and again after it,
 * because bind(2) applies the umask. */
static int bind_and_listen(int fd, const char *path, mode_t mode)
{
	auto_(address_fini) struct address a = { .dir_fd = -1 };
	int r = address_init(&a, path);
	if (r < 0)
		return r;
	if (fchmod(fd, mode) < 0 || bind(fd, (struct sockaddr *)&a.sun, sizeof(a.sun)) < 0 ||
	    chmod(a.sun.sun_path, mode) < 0 || listen(fd, SOMAXCONN) < 0)
		return -errno;
	return 0;
}

int wire_listen(const char *path, mode_t mode, struct brumate_error *err)
{
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return brumate_fail(err, errno, "socket: %m");

	int r = remove_old(path);
	if (r == 0)
		r = bind_and_listen(fd, path, mode);
	if (r < 0)
		return brumate_fail(err, -r, "listen on %s: %m", path);
	return take_fd(&fd);
}

/* connect(2) waits if the server's backlog is full: limit that. */
static int set_send_timeout(int fd, int timeout_ms)
{
	struct timeval tv = { timeout_ms / 1000, timeout_ms % 1000 * 1000 };

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0 ? -errno : 0;
}

static int connect_path(int fd, const char *path)
{
	auto_(address_fini) struct address a = { .dir_fd = -1 };
	int r = address_init(&a, path);
	if (r < 0)
		return r;
	r = set_send_timeout(fd, CONNECT_TIMEOUT_MS);
	if (r < 0)
		return r;
	while (connect(fd, (struct sockaddr *)&a.sun, sizeof(a.sun)) < 0)
		if (errno != EINTR)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
	return set_send_timeout(fd, 0);
}

int wire_connect(struct wire *ret, const char *path, struct brumate_error *err)
{
	auto_close int fd = RESERVE_TRY(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	if (fd < 0)
		return brumate_fail(err, errno, "socket: %m");

	int r = connect_path(fd, path);
	if (r < 0)
		return brumate_fail(err, -r, "connect to %s: %m", path);
	wire_init(ret, take_fd(&fd));
	return 0;
}

/* ---- messages ---- */

void wire_init(struct wire *w, int fd)
{
	*w = (struct wire){ .fd = fd };
}

void wire_fini(struct wire *w)
{
	for (size_t i = 0; i < w->n_fds; i++)
		close(w->fds[i]);
	cleanup_close(&w->fd);
	free(w->buf);
	*w = (struct wire){ .fd = -1 };
}

static bool is_gone(int code)
{
	return code == EPIPE || code == EBADF;
}

static int send_frame(struct wire *w, const char *text, size_t len, const int *fds, size_t n_fds,
		      uint64_t deadline_ns)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = packet_send(w->fd, text + done, len - done, fds, done ? 0 : n_fds,
					deadline_ns);

		if (n < 0) {
			if (done) /* half a message: the peer could not make sense of the rest */
				shutdown(w->fd, SHUT_RDWR);
			return (int)n;
		}
		done += (size_t)n;
	}
	return 0;
}

int wire_send(struct wire *w, json_t *json, const int *fds, size_t n_fds, uint64_t deadline_ns,
	      struct brumate_error *err)
{
	if (n_fds > WIRE_FDS_MAX)
		return brumate_fail(err, EINVAL, "send: %zu fds, more than %d", n_fds,
				    WIRE_FDS_MAX);

	auto_free char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15));
	if (!text)
		return brumate_fail(err, ENOMEM, "send: message cannot be encoded");

	size_t len = strlen(text);
	if (len > WIRE_MESSAGE_BYTES_MAX)
		return brumate_fail(err, EMSGSIZE, "send: message of %zu bytes, more than %d", len,
				    WIRE_MESSAGE_BYTES_MAX);

	int r = send_frame(w, text, len + 1, fds, n_fds, deadline_ns);
	w->unheard = r < 0;
	if (r < 0 && is_gone(-r))
		return brumate_fail(err, EPIPE, "the peer closed the connection");
	if (r == -ETIMEDOUT)
		return brumate_fail(err, ETIMEDOUT, "the peer did not take the message in time");
	return r < 0 ? brumate_fail(err, -r, "send: %m") : 0;
}

/* Waits until there is something to read, looking meanwhile. */
static int await(const struct wire *w, uint64_t deadline_ns)
{
	int r = 0;

	while (w->look && w->fd >= 0 && r == 0) {
		const uint64_t look_ns = deadline_in_ms((uint64_t)w->look_ms);
		const bool is_last = look_ns >= deadline_ns;

		r = fd_wait(w->fd, POLLIN, is_last ? deadline_ns : look_ns);
		if (r != -ETIMEDOUT || is_last)
			return r;
		r = w->look(w->look_arg);
	}
	return r;
}

/* Reads what is available. Fds belong to the message that holds the last byte they were read with: the kernel ends a
 * read at the data that carried them, and senders attach them to the first byte of their message. Returns 0 or
 * -errno. */
static int receive_some(struct wire *w, uint64_t deadline_ns)
{
	struct packet_fds fds = { w->fds + w->n_fds, WIRE_FDS_MAX - w->n_fds };
	ssize_t n = packet_receive(w->fd, w->buf + w->len, w->room - w->len, &fds, deadline_ns);

	w->unheard = fds.state == PACKET_UNREAD;
	if (n < 0)
		return (int)n;
	w->len += (size_t)n;
	for (size_t i = 0; i < fds.n; i++)
		w->fd_ends[w->n_fds++] = w->taken_bytes + w->len;
	return 0;
}

static int make_room(struct wire *w)
{
	if (w->len < w->room)
		return 0;

	size_t room = w->room ? 2 * w->room : ROOM_FIRST_BYTES;
	if (room > WIRE_MESSAGE_BYTES_MAX + 1)
		room = WIRE_MESSAGE_BYTES_MAX + 1;
	if (room <= w->room)
		return -EMSGSIZE;
	char *bigger = realloc(w->buf, room);
	if (!bigger)
		return -ENOMEM;
	w->buf = bigger;
	w->room = room;
	return 0;
}

/* Waits until buf holds a whole frame. Returns 0 and its length without the NUL, or -errno. */
static int receive_frame(struct wire *w, size_t *ret_len, uint64_t deadline_ns)
{
	for (;;) {
		const char *end = w->len > w->searched
					  ? memchr(w->buf + w->searched, '\0', w->len - w->searched)
					  : NULL;

		if (end) {
			*ret_len = (size_t)(end - w->buf);
			return 0;
		}
		w->searched = w->len;

		int r = make_room(w);
		if (r == 0)
			r = await(w, deadline_ns);
		if (r == 0)
			r = receive_some(w, deadline_ns);
		if (r < 0)
			return r;
	}
}

/* Moves the fds of the message that ends at @end to @m; those of later messages stay. */
static void take_fds(struct wire *w, struct wire_message *m, uint64_t end)
{
	size_t n = 0;

	while (n < w->n_fds && w->fd_ends[n] <= end)
		n++;
	memcpy(m->fds, w->fds, n * sizeof(w->fds[0]));
	m->n_fds = n;
	w->n_fds -= n;
	memmove(w->fds, w->fds + n, w->n_fds * sizeof(w->fds[0]));
	memmove(w->fd_ends, w->fd_ends + n, w->n_fds * sizeof(w->fd_ends[0]));
}

static void drop_frame(struct wire *w, size_t frame_bytes)
{
	w->taken_bytes += frame_bytes;
	w->len -= frame_bytes;
	memmove(w->buf, w->buf + frame_bytes, w->len);
	w->searched = 0;
	if (w->len == 0 && w->room > ROOM_KEPT_BYTES) {
		free(take_ptr(&w->buf));
		w->room = 0;
	}
}

static int fail_receive(const struct wire *w, int r, struct brumate_error *err)
{
	if (is_gone(-r))
		return brumate_fail(err, EPIPE, "the peer closed the connection%s",
				    w->len ? " in the middle of a message" : "");
	if (r == -ETIMEDOUT)
		return brumate_fail(err, ETIMEDOUT, "the peer did not answer in time");
	if (r == -EMSGSIZE)
		return brumate_fail(err, EMSGSIZE, "the peer sends a message of more than %d bytes",
				    WIRE_MESSAGE_BYTES_MAX);
	return brumate_fail(err, -r, "receive: %m");
}

int wire_receive(struct wire *w, struct wire_message *ret, uint64_t deadline_ns,
		 struct brumate_error *err)
{
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	size_t len;
	int r = receive_frame(w, &len, deadline_ns);

	if (r < 0)
		return fail_receive(w, r, err);
	r = wire_decode(&m.json, w->buf, len, err);
	take_fds(w, &m, w->taken_bytes + len + 1);
	drop_frame(w, len + 1);
	if (r < 0)
		return r;
	*ret = take_struct(m, WIRE_MESSAGE_EMPTY);
	return 0;
}

bool wire_is_hung_up(const struct wire *w)
{
	/* POLLRDHUP does not count: a peer that shut down its sending side alone still waits for its answer. */
	struct pollfd p = { .fd = w->fd };

	return w->fd < 0 || (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR | POLLNVAL));
}

/* ---- calls: one at a time on a connection, streamed replies on the way ---- */

/* All our interfaces use the same name for errors: io.brumate.Failed, io.brumate.broker.Failed ... */
static bool is_ours(const char *name)
{
	const char *last = strrchr(name, '.');

	return !strncmp(name, "io.brumate.", strlen("io.brumate.")) && !strcmp(last, ".Failed");
}

static int fail_as_told(const char *method, const char *name, json_t *parameters,
			struct brumate_error *err)
{
	if (is_ours(name)) {
		struct brumate_error told;

		wire_error_from_json(&told, parameters);
		if (err)
			*err = told;
		return -told.code;
	}
	if (!strcmp(name, "org.varlink.service.InvalidParameter")) {
		const char *text = json_string_value(json_object_get(parameters, "text"));
		const char *which = json_string_value(json_object_get(parameters, "parameter"));

		return brumate_fail(err, EINVAL, "%s: %s%s", method,
				    text ? "" : "invalid parameter ",
				    text    ? text
				    : which ? which
					    : "");
	}
	if (!strcmp(name, "org.varlink.service.MethodNotFound") ||
	    !strcmp(name, "org.varlink.service.MethodNotImplemented") ||
	    !strcmp(name, "org.varlink.service.InterfaceNotFound"))
		return brumate_fail(err, EOPNOTSUPP, "%s: the peer does not know this method",
				    method);
	return brumate_fail(err, EPROTO, "%s: %s", method, name);
}

static int send_call(struct wire *w, const char *method, json_t *parameters, const int *fds,
		     size_t n_fds, bool more, uint64_t deadline_ns, struct brumate_error *err)
{
	auto_json json_t *call =
		json_pack("{s:s, s:O*}", "method", method, "parameters", parameters);

	if (!call || (more && json_object_set_new(call, "more", json_true()) < 0))
		return brumate_fail(err, ENOMEM, "%s: %m", method);

	int r = wire_send(w, call, fds, n_fds, deadline_ns, err);
	return r < 0 ? brumate_wrap(err, r, "%s", method) : 0;
}

/* Returns 1 for a streamed reply, 0 for the final one with @ret_parameters (owned) or <0. */
static int receive_reply(struct wire *w, const char *method, bool more, json_t **ret_parameters,
			 bool *ret_is_answer, uint64_t deadline_ns, struct brumate_error *err)
{
	auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;
	int r = wire_receive(w, &m, deadline_ns, err);
	if (r < 0)
		return brumate_wrap(err, r, "%s", method);

	json_t *name = json_object_get(m.json, "error");
	json_t *parameters = json_object_get(m.json, "parameters");
	bool continues = json_is_true(json_object_get(m.json, "continues"));

	if ((name && !json_is_string(name)) ||
	    (parameters && !json_is_object(parameters) && !json_is_null(parameters)) ||
	    (continues && !more))
		return brumate_fail(err, EPROTO, "%s: the peer's reply is not varlink", method);
	if (name) {
		*ret_is_answer = true;
		return fail_as_told(method, json_string_value(name), parameters, err);
	}
	auto_json json_t *p = json_is_object(parameters) ? json_incref(parameters) : json_object();
	if (!p)
		return brumate_fail(err, ENOMEM, "%s: %m", method);
	*ret_parameters = take_ptr(&p);
	*ret_is_answer = true;
	return continues ? 1 : 0;
}

int wire_call(struct wire *w, const char *method, json_t *parameters, const int *fds, size_t n_fds,
	      wire_reply_fn on_reply, void *arg, json_t **ret_parameters, uint64_t deadline_ns,
	      struct brumate_error *err)
{
	int r = send_call(w, method, parameters, fds, n_fds, on_reply != NULL, deadline_ns, err);
	if (r < 0)
		return r;

	for (;;) {
		json_t *reply = NULL;
		bool is_answer = false;

		r = receive_reply(w, method, on_reply != NULL, &reply, &is_answer, deadline_ns,
				  err);
		if (r < 0 && !is_answer)
			shutdown(w->fd, SHUT_RDWR);
		if (r < 0)
			return r;
		if (r > 0) {
			on_reply(arg, reply);
			json_decref(reply);
			continue;
		}
		if (ret_parameters)
			*ret_parameters = reply;
		else
			json_decref(reply);
		return 0;
	}
}
