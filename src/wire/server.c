// SPDX-License-Identifier: MIT
/*
 * A server accepts connections and runs each in a thread of its own. It owns the threads; a thread that has ended is
 * joined at the next accept, count or free. A connection closes its fd itself, under the lock, so that no other
 * thread shuts down a number that has been reused.
 *
 * Every call gets an answer, or its connection is closed; a oneway call gets no answer.
 */
#include "wire/wire.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	CONNECTIONS_MAX = 512,
	SHARE_MAX = CONNECTIONS_MAX / 2, /* of one process */
	REPLY_TIMEOUT_MS = 10000,	 /* for a peer to read its reply */
	MESSAGE_TIMEOUT_MS = 10000,	 /* for a peer to finish a message it began */
};

/* ---- one call ---- */

struct wire_call_context {
	struct connection *connection;
	struct wire *wire;
	const struct wire_service *service;
	const atomic_bool *stopping; /* the server is being freed */
	struct wire_message *message;
	bool more, oneway, replied;
	int broken; /* -errno of a reply that could not be sent */
};

static const char service_interface[] = "org.varlink.service";
static const char service_description[] =
	"# What every varlink service offers\n"
	"interface org.varlink.service\n"
	"method GetInfo() -> (vendor: string, product: string, version: string, url: string, "
	"interfaces: []string)\n"
	"method GetInterfaceDescription(interface: string) -> (description: string)\n"
	"error InterfaceNotFound (interface: string)\n"
	"error MethodNotFound (method: string)\n"
	"error MethodNotImplemented (method: string)\n"
	"# text: what is wrong with it, from services of brumate\n"
	"error InvalidParameter (parameter: string, text: ?string)\n"
	"error PermissionDenied ()\n"
	"error ExpectedMore ()\n";

/* Takes @reply; NULL: out of memory. Then closes the connection, as otherwise the caller would wait for an answer
 * that never comes. */
static int send_reply(struct wire_call_context *call, json_t *reply, const int *fds, size_t n_fds)
{
	auto_json json_t *owned = reply;

	if (!owned && call->broken == 0)
		call->broken = -ENOMEM;
	if (!owned)
		return -ENOMEM;
	if (call->oneway)
		return 0;
	if (call->broken == 0)
		call->broken = wire_send(call->wire, owned, fds, n_fds,
					 deadline_in_ms(REPLY_TIMEOUT_MS), NULL);
	return call->broken;
}

int wire_reply_fds(struct wire_call_context *call, json_t *parameters, const int *fds, size_t n_fds)
{
	json_t *reply = parameters ? json_pack("{s:O}", "parameters", parameters)
				   : json_pack("{s:{}}", "parameters");

	call->replied = true;
	return send_reply(call, reply, fds, n_fds);
}

int wire_reply(struct wire_call_context *call, json_t *parameters)
{
	return wire_reply_fds(call, parameters, NULL, 0);
}

void wire_reply_more(struct wire_call_context *call, json_t *parameters)
{
	struct pollfd p = { .fd = call->wire->fd, .events = POLLOUT };

	if (!call->more || call->replied || poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT))
		return;
	json_t *reply = json_pack("{s:O, s:b}", "parameters", parameters, "continues", 1);
	if (reply) /* else there is no reply */
		send_reply(call, reply, NULL, 0);
}

bool wire_call_is_cancelled(const struct wire_call_context *call)
{
	return atomic_load(call->stopping) || wire_is_hung_up(call->wire);
}

int wire_call_fd(const struct wire_call_context *call)
{
	return call->wire->fd;
}

void wire_call_peer(const struct wire_call_context *call, uid_t *ret_uid, gid_t *ret_gid,
		    pid_t *ret_pid)
{
	struct ucred cred = { .pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1 };

	fd_peer(call->wire->fd, &cred);
	*ret_uid = cred.uid;
	*ret_gid = cred.gid;
	*ret_pid = cred.pid;
}

int wire_call_take_fd(struct wire_call_context *call, size_t i)
{
	return i < call->message->n_fds ? take_fd(&call->message->fds[i]) : -1;
}

/* Takes @parameters. */
static void reply_error(struct wire_call_context *call, const char *interface, const char *name,
			json_t *parameters)
{
	char full[128];

	snprintf(full, sizeof(full), "%s.%s", interface, name);
	call->replied = true;
	send_reply(call, json_pack("{s:s, s:o}", "error", full, "parameters", parameters), NULL, 0);
}

void wire_reply_failed(struct wire_call_context *call, const struct brumate_error *err)
{
	if (err->parameter[0])
		reply_error(call, service_interface, "InvalidParameter",
			    json_pack("{s:o, s:o}", "parameter", wire_string(err->parameter),
				      "text", wire_string(err->text)));
	else
		reply_error(call, call->service->interface_name, "Failed", wire_error_to_json(err));
}

static int get_info(struct wire_call_context *call)
{
	auto_json json_t *info =
		json_pack("{s:s, s:s, s:s, s:s, s:[s, s]}", "vendor", "brumate", "product",
			  "brumate", "version", BRUMATE_VERSION, "url", "", "interfaces",
			  service_interface, call->service->interface_name);

	return info ? wire_reply(call, info) : -ENOMEM;
}

static int get_description(struct wire_call_context *call, json_t *parameters,
			   struct brumate_error *err)
{
	const char *name, *text = NULL;
	int r = wire_need_string(parameters, "interface", &name, err);

	if (r < 0)
		return r;
	if (!strcmp(name, service_interface))
		text = service_description;
	else if (!strcmp(name, call->service->interface_name))
		text = call->service->description;
	if (!text) {
		reply_error(call, service_interface, "InterfaceNotFound",
			    json_pack("{s:s}", "interface", name));
		return 0;
	}
	auto_json json_t *reply = json_pack("{s:s}", "description", text);
	return reply ? wire_reply(call, reply) : -ENOMEM;
}

static void reply_not_found(struct wire_call_context *call, const char *name)
{
	const char *dot = strrchr(name, '.');
	size_t len = dot ? (size_t)(dot - name) : 0;
	const char *known[] = { service_interface, call->service->interface_name };

	for (size_t i = 0; i < 2; i++) {
		if (strlen(known[i]) != len || strncmp(known[i], name, len))
			continue;
		reply_error(call, service_interface, "MethodNotFound",
			    json_pack("{s:s}", "method", name));
		return;
	}
	reply_error(call, service_interface, "InterfaceNotFound",
		    json_pack("{s:s%}", "interface", name, len));
}

static int run_method(struct wire_call_context *call, const char *name, json_t *parameters,
		      struct brumate_error *err)
{
	if (!strcmp(name, "org.varlink.service.GetInfo"))
		return get_info(call);
	if (!strcmp(name, "org.varlink.service.GetInterfaceDescription"))
		return get_description(call, parameters, err);

	const struct wire_service *s = call->service;
	for (size_t i = 0; i < s->n_methods; i++)
		if (!strcmp(name, s->methods[i].name))
			return s->methods[i].run(s->arg, call, parameters, err);
	reply_not_found(call, name);
	return 0;
}

/* Serves the call in @m. Returns 0, or <0 if the connection has to be closed. */
static int serve_call(struct connection *c, struct wire *w, const struct wire_service *service,
		      const atomic_bool *stopping, struct wire_message *m)
{
	const char *name = json_string_value(json_object_get(m->json, "method"));
	json_t *given = json_object_get(m->json, "parameters");
	struct wire_call_context call = {
		.connection = c,
		.wire = w,
		.service = service,
		.stopping = stopping,
		.message = m,
		.more = json_is_true(json_object_get(m->json, "more")),
		.oneway = json_is_true(json_object_get(m->json, "oneway")),
	};

	if (!name)
		return -EBADMSG;
	if (service->drops_abandoned && wire_is_hung_up(w))
		return -EPIPE;
	if (given && !json_is_object(given) && !json_is_null(given)) {
		reply_error(&call, service_interface, "InvalidParameter",
			    json_pack("{s:s}", "parameter", "parameters"));
		return call.broken;
	}

	auto_json json_t *parameters = json_is_object(given) ? json_incref(given) : json_object();
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = parameters ? run_method(&call, name, parameters, &err) : -ENOMEM;

	if (call.replied)
		return call.broken;
	if (r < 0 && !err.code)
		brumate_fail(&err, -r, "%m");
	if (r < 0)
		wire_reply_failed(&call, &err);
	else
		wire_reply(&call, NULL);
	return call.broken;
}

/* ---- connections ---- */

struct connection {
	struct connection *next;
	struct wire_server *server;
	pthread_t thread;
	struct wire wire;
	pid_t pid;		 /* of the process that connected; 0: it is not known */
	uint64_t waits_since_ns; /* for a whole call, or in one; 0: one is being served */
	bool has_called;
	bool dropped;
	bool ended; /* the thread uses nothing from here on */
};

struct wire_server {
	struct wire_service service;
	int listen_fd;
	int spare_fd; /* closed to accept and refuse connections when fds run out */
	atomic_bool stopping;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t ended; /* a connection has ended */
	struct connection *connections;
	size_t n_open;
	uint64_t last_end_ns;
};

int wire_server_new(struct wire_server **ret, const struct wire_service *service, int listen_fd,
		    struct brumate_error *err)
{
	struct wire_server *s = calloc(1, sizeof(*s));

	if (!s) {
		close(listen_fd);
		return brumate_fail(err, ENOMEM, "server: %m");
	}
	s->service = *service;
	s->listen_fd = listen_fd;
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	s->last_end_ns = clock_now_ns();
	pthread_mutex_init(&s->lock, NULL);
	condition_init(&s->ended);
	*ret = s;
	return 0;
}

int wire_server_fd(const struct wire_server *s)
{
	return s->listen_fd;
}

/* Waits for the next call without a limit; once it has begun, it must be complete within MESSAGE_TIMEOUT_MS. */
static int receive_call(struct wire *w, struct wire_message *ret)
{
	struct pollfd p = { .fd = w->fd, .events = POLLIN };

	while (w->len == 0 && poll(&p, 1, -1) < 0)
		if (errno != EINTR)
			return -errno;
	return wire_receive(w, ret, deadline_in_ms(MESSAGE_TIMEOUT_MS), NULL);
}

static void note_wait(struct connection *c)
{
	pthread_mutex_lock(&c->server->lock);
	c->waits_since_ns = clock_now_ns();
	pthread_mutex_unlock(&c->server->lock);
}

void wire_call_wait(const struct wire_call_context *call, bool waits)
{
	struct connection *c = call->connection;

	pthread_mutex_lock(&c->server->lock);
	c->waits_since_ns = waits ? clock_now_ns() : 0;
	pthread_mutex_unlock(&c->server->lock);
}

/* -EPIPE: it was dropped in the meantime, so that nobody would get the answer. */
static int note_call(struct connection *c)
{
	pthread_mutex_lock(&c->server->lock);
	int r = c->dropped ? -EPIPE : 0;
	c->has_called = true;
	c->waits_since_ns = 0;
	pthread_mutex_unlock(&c->server->lock);
	return r;
}

static void *run_connection(void *arg)
{
	struct connection *c = arg;
	struct wire_server *s = c->server;
	int r = 0;

	while (r == 0 && !atomic_load(&s->stopping)) {
		auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;

		note_wait(c);
		r = receive_call(&c->wire, &m);
		if (r == 0)
			r = note_call(c);
		if (r == 0)
			r = serve_call(c, &c->wire, &s->service, &s->stopping, &m);
	}

	pthread_mutex_lock(&s->lock);
	wire_fini(&c->wire);
	c->ended = true;
	s->n_open--;
	s->last_end_ns = clock_now_ns();
	pthread_cond_broadcast(&s->ended);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Takes ended connections out of the list, joins and frees them. */
static void join_ended(struct wire_server *s)
{
	struct connection *ended = NULL;

	pthread_mutex_lock(&s->lock);
	for (struct connection **p = &s->connections; *p;) {
		struct connection *c = *p;

		if (!c->ended) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		c->next = ended;
		ended = c;
	}
	pthread_mutex_unlock(&s->lock);

	while (ended) {
		struct connection *c = ended;

		ended = c->next;
		pthread_join(c->thread, NULL);
		free(c);
	}
}

/* Out of fds: a connection that stays in the queue would make the caller's poll loop spin. */
static void turn_away(struct wire_server *s)
{
	cleanup_close(&s->spare_fd);
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		close(fd);
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* How many connections process @pid has. Under the lock. */
static size_t count_of(const struct wire_server *s, pid_t pid)
{
	size_t n = 0;

	for (const struct connection *c = s->connections; c; c = c->next)
		n += c->pid == pid && !c->ended && !c->dropped;
	return n;
}

static bool is_needed_less(const struct connection *a, const struct connection *b)
{
	return a->has_called != b->has_called ? !a->has_called
					      : a->waits_since_ns < b->waits_since_ns;
}

/* A client that holds connections keeps no other out: of those that wait, for a call or in one, one of the process that has most is dropped; among
 * them one that never made a call, or the one that has waited for longest. @pid: only of this process; 0: of any. Returns whether there is one,
 * whose thread then ends. Under the lock. */
static bool drop_one(struct wire_server *s, pid_t pid)
{
	struct connection *least = NULL;
	size_t n = 0, n_least = 0;
	pid_t counted = -1;

	for (struct connection *c = s->connections; c; c = c->next) {
		if (c->ended || c->dropped || !c->waits_since_ns || (pid && c->pid != pid))
			continue;
		if (c->pid != counted) /* most of one process follow each other */
			n = count_of(s, c->pid);
		counted = c->pid;
		if (least && (n < n_least || (n == n_least && !is_needed_less(c, least))))
			continue;
		least = c;
		n_least = n;
	}
	if (!least)
		return false;
	least->dropped = true;
	shutdown(least->wire.fd, SHUT_RDWR);
	return true;
}

/* Under the lock. */
static bool make_place(struct wire_server *s, pid_t pid)
{
	if (pid && count_of(s, pid) >= SHARE_MAX)
		return drop_one(s, pid);
	return s->n_open < CONNECTIONS_MAX || drop_one(s, 0);
}

void wire_server_accept(struct wire_server *s)
{
	join_ended(s);
	auto_close int fd =
		RESERVE_TRY(accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			turn_away(s);
		return;
	}

	struct connection *c = calloc(1, sizeof(*c));
	struct ucred peer = { 0 };
	if (!c)
		return;
	fd_peer(fd, &peer);
	pthread_mutex_lock(&s->lock);
	if (make_place(s, peer.pid)) {
		c->pid = peer.pid;
		wire_init(&c->wire, take_fd(&fd));
		c->server = s;
		c->waits_since_ns = clock_now_ns();
		if (thread_start(&c->thread, run_connection, c) == 0) {
			c->next = s->connections;
			s->connections = c;
			s->n_open++;
			c = NULL;
		} else {
			wire_fini(&c->wire);
		}
	}
	pthread_mutex_unlock(&s->lock);
	free(c);
}

size_t wire_server_connections(struct wire_server *s, uint64_t *ret_last_end_ns)
{
	join_ended(s);
	pthread_mutex_lock(&s->lock);
	size_t n = s->n_open;
	if (ret_last_end_ns)
		*ret_last_end_ns = s->last_end_ns;
	pthread_mutex_unlock(&s->lock);
	return n;
}

void wire_server_drain(struct wire_server *s, uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);
	int r = 0;

	cleanup_close(&s->listen_fd);
	pthread_mutex_lock(&s->lock);
	while (s->n_open && r != ETIMEDOUT)
		r = pthread_cond_timedwait(&s->ended, &s->lock, &until);
	pthread_mutex_unlock(&s->lock);
}

void wire_server_free(struct wire_server *s)
{
	if (!s)
		return;

	cleanup_close(&s->listen_fd);
	atomic_store(&s->stopping, true);
	pthread_mutex_lock(&s->lock);
	for (struct connection *c = s->connections; c; c = c->next)
		if (!c->ended)
			shutdown(c->wire.fd, SHUT_RD); /* replies can still be sent */
	struct connection *c = s->connections;
	s->connections = NULL;
	pthread_mutex_unlock(&s->lock);

	while (c) {
		struct connection *next = c->next;

		pthread_join(c->thread, NULL);
		free(c);
		c = next;
	}
	cleanup_close(&s->spare_fd);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->ended);
	free(s);
}
