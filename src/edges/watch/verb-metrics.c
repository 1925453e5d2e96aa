// SPDX-License-Identifier: MIT
/*
 * `brumate metrics`: looks, and writes to standard output, to a file for node_exporter, or as the answer to each HTTP
 * request. Where others can read it, it has no names of jobs, unless that is asked for.
 */
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/users.h"
#include "edges/watch/metrics.h"
#include "edges/watch/options.h"
#include "edges/watch/seen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/paths.h"
#include "job/counts.h"
#include "service/access.h"
#include "wire/wire.h"

enum {
	REQUEST_BYTES_MAX = 8192,
	REQUEST_TIMEOUT_MS = 10000,
	ANSWER_TIMEOUT_MS = 2000,
	REQUESTS_MAX = 16,
	LOOK_AGAIN_MS = 1000, /* what those who may ask cost us has a bound */
	JOBS_OF_USER_MAX = 512,
};

/* ---- looking ---- */

/* What brokers that run have ready for the next copies. */
static uint64_t prepared_bytes(void)
{
	uint64_t bytes = 0;

	for (int simulated = 0; simulated <= 1; simulated++) {
		auto_free struct broker_info *b = broker_seen(simulated);

		bytes += b ? b->room.free_bytes : 0;
	}
	return bytes;
}

/* The file system of the store, with what users other than root can still write there. */
static void look_at_store(struct metrics *m)
{
	auto_free char *dir = NULL;
	struct statvfs fs;

	if (access_store(&dir, NULL, NULL) < 0 || statvfs(dir, &fs) < 0)
		return;
	m->store_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
	m->store_free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* The list @key of a reply (owned), NULL where it could not be made. */
static json_t *list_of(json_t *reply, const char *key, int result, const struct brumate_error *why)
{
	if (result < 0)
		log_warn("%s could not be looked at: reason=\"%s\"", key, why->text);
	return result < 0 ? NULL : json_incref(json_object_get(reply, key));
}

/* Those that count (owned): each is some 40 series, and who scrapes more than is allowed has none of anybody's. */
static json_t *limit_jobs(json_t *jobs)
{
	auto_json json_t *n_of = json_object();
	json_t *some = json_array(), *job;
	size_t i;

	json_array_foreach (jobs, i, job) {
		const char *user = text_of(job, "user");
		const json_int_t n = json_integer_value(json_object_get(n_of, user)) + 1;

		json_object_set_new(n_of, user, json_integer(n));
		if (n <= JOBS_OF_USER_MAX || !strcmp(user, "root"))
			json_array_append(some, job);
		else if (n == JOBS_OF_USER_MAX + 1)
			log_warn("user %s has more than %d jobs: the others are left out", user,
				 JOBS_OF_USER_MAX);
	}
	return some;
}

static json_t *jobs_seen(bool all_users)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_json json_t *p = json_pack("{s:b}", "counts", 1), *reply = NULL;
	int r = all_users ? users_list(&reply, p, USERS_LOOK_MS, NULL, &err)
			  : client_ask("List", p, &reply, &err);

	json_t *jobs = list_of(reply, "jobs", r, &err);
	if (!jobs || !all_users)
		return jobs;
	auto_json json_t *all = jobs;
	return limit_jobs(all);
}

static json_t *checkpoints_seen(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_json json_t *reply = NULL;
	int r = client_ask("Checkpoints", NULL, &reply, &err);

	return list_of(reply, "checkpoints", r, &err);
}

struct wanted {
	bool names, all_users;
};

/* All of it as text (owned), NULL without memory. */
static char *collect_metrics(const struct wanted *wanted, size_t *ret_bytes)
{
	auto_json json_t *jobs = jobs_seen(wanted->all_users);
	auto_json json_t *checkpoints = checkpoints_seen();
	auto_json json_t *pods = pod_counts();
	char *text = NULL;
	struct metrics m = { .jobs = jobs,
			     .checkpoints = checkpoints,
			     .pods = pods,
			     .names = wanted->names,
			     .boot_ns = clock_boot_ns(),
			     .prepared_bytes = prepared_bytes() };

	look_at_store(&m);
	FILE *f = open_memstream(&text, ret_bytes);
	if (!f)
		return NULL;
	metrics_print(&m, f);
	if (fclose(f) == EOF) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- HTTP ---- */

struct metrics_server {
	struct loop loop;
	struct loop_source connections;
	int fd;
	struct wanted wanted;
	size_t n;	       /* requests under way */
	struct scrape *oldest; /* of them */
	char *text;	       /* owned: what the last look found; NULL: none yet */
	size_t text_len;
	uint64_t looked_ns;
};

/* Is freed when it is answered, or has taken too long. */
struct scrape {
	struct metrics_server *server;
	struct scrape *newer;
	struct loop_source source;
	int fd;
	char head[REQUEST_BYTES_MAX + 1];
	size_t len;
	char *answer; /* owned; NULL: the request is not whole yet */
	size_t answer_len, sent;
};

/* "GET /metrics HTTP/1.1": only this is answered, and HEAD of the same. What follows '?' does not count. */
static const char *check_request(const char *head, bool *ret_head)
{
	char method[16], path[256];

	if (sscanf(head, "%15s %255s HTTP/1.%*[0-9]", method, path) != 2 ||
	    !memchr(head, '\n', strlen(head)) || !strstr(head, " HTTP/1."))
		return "400 Bad Request";
	*ret_head = !strcmp(method, "HEAD");
	if (!*ret_head && strcmp(method, "GET") != 0)
		return "405 Method Not Allowed";
	path[strcspn(path, "?")] = '\0';
	return strcmp(path, "/metrics") ? "404 Not Found" : NULL;
}

/* Whether there is something to answer with. */
static bool look(struct metrics_server *s)
{
	const uint64_t now_ns = clock_now_ns();
	size_t len;

	if (s->text && now_ns - s->looked_ns < LOOK_AGAIN_MS * NS_PER_MS)
		return true;
	char *text = collect_metrics(&s->wanted, &len);
	if (!text)
		return false;
	free(s->text);
	s->text = text;
	s->text_len = len;
	s->looked_ns = now_ns;
	return true;
}

/* Returns 0 or -ENOMEM. */
static int make_answer(struct scrape *q)
{
	struct metrics_server *s = q->server;
	bool is_head = false;
	const char *type = "text/plain; charset=utf-8", *body = "";
	const char *status = q->len == REQUEST_BYTES_MAX ? "431 Request Header Fields Too Large"
							 : check_request(q->head, &is_head);
	size_t len = 0;

	if (!status && look(s)) {
		status = "200 OK";
		type = "text/plain; version=0.0.4; charset=utf-8";
		body = s->text;
		len = s->text_len;
	} else if (!status) {
		status = "503 Service Unavailable";
	}
	q->answer = path_format("HTTP/1.0 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
				"Connection: close\r\n\r\n%s",
				status, type, len, is_head ? "" : body);
	q->answer_len = q->answer ? strlen(q->answer) : 0;
	return q->answer ? 0 : -ENOMEM;
}

/* Up to the empty line that ends the head of a request; a body is not looked at. A NUL is in no request: the text
 * before it is looked at. */
static bool is_whole(const struct scrape *q)
{
	return q->len == REQUEST_BYTES_MAX || strlen(q->head) < q->len ||
	       strstr(q->head, "\r\n\r\n") || strstr(q->head, "\n\n");
}

static void end_scrape(struct scrape *q)
{
	const struct linger at_once = { .l_onoff = 1 };
	struct scrape **at = &q->server->oldest;

	while (*at != q)
		at = &(*at)->newer;
	*at = q->newer;
	/* The kernel is not to keep the rest for one who does not read. */
	if (q->sent < q->answer_len)
		setsockopt(q->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	loop_remove(&q->source);
	close(q->fd);
	q->server->n--;
	free(q->answer);
	free(q);
}

/* Room for more of the answer, or the time is up: who does not read delays nobody else. */
static void send_more(void *arg)
{
	struct scrape *q = arg;
	ssize_t n = send(q->fd, q->answer + q->sent, q->answer_len - q->sent,
			 MSG_DONTWAIT | MSG_NOSIGNAL);

	q->sent += n > 0 ? (size_t)n : 0;
	if (n <= 0 || q->sent == q->answer_len || !loop_has_time(&q->source))
		end_scrape(q);
}

/* Something came, or the time is up. */
static void take_request(void *arg)
{
	struct scrape *q = arg;
	ssize_t n = recv(q->fd, q->head + q->len, REQUEST_BYTES_MAX - q->len, MSG_DONTWAIT);

	q->len += n > 0 ? (size_t)n : 0;
	if (n > 0 && !is_whole(q))
		return;
	if (n <= 0 || make_answer(q) < 0) {
		end_scrape(q);
		return;
	}
	loop_remove(&q->source);
	loop_add(&q->server->loop, &q->source, send_more, q);
	loop_watch(&q->source, q->fd, POLLOUT);
	loop_after(&q->source, ANSWER_TIMEOUT_MS);
}

static void take_connection(void *arg)
{
	struct metrics_server *s = arg;
	int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
	struct scrape *q = fd >= 0 ? calloc(1, sizeof(*q)) : NULL;

	if (!q) {
		cleanup_close(&fd);
		return;
	}
	/* Clients that hold all of them and ask for nothing keep nobody out. */
	if (s->n == REQUESTS_MAX)
		end_scrape(s->oldest);
	struct scrape **at = &s->oldest;
	while (*at)
		at = &(*at)->newer;
	*at = q;
	s->n++;
	q->server = s;
	q->fd = fd;
	loop_add(&s->loop, &q->source, take_request, q);
	loop_watch(&q->source, fd, POLLIN);
	loop_after(&q->source, REQUEST_TIMEOUT_MS);
}

/* getaddrinfo(3) takes what is left of a larger number modulo 65536. */
static bool is_port(const char *text)
{
	const unsigned long port = strtoul(text, NULL, 10);

	return port > 0 && port <= UINT16_MAX;
}

/* @where: ADDRESS:PORT, in numbers; an IPv6 address is in brackets. Returns a descriptor (owned). */
static int listen_at(const char *where, struct brumate_error *err)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
					.ai_socktype = SOCK_STREAM };
	auto_free char *address = strdup(where);
	struct addrinfo *found;

	if (!address)
		return brumate_fail(err, ENOMEM, "%m");
	char *host = address + (*address == '['), *port = strrchr(address, ':');
	char *end = port > address && port[-1] == ']' ? port - 1 : port;
	if (port)
		*port++ = *end = '\0';
	const bool is_bare = port && *address != '[' && strchr(host, ':');
	if (!port || !*host || is_bare || !is_port(port) ||
	    getaddrinfo(host, port, &hints, &found) != 0)
		return brumate_fail(err, EINVAL,
				    "--listen: '%s' is not ADDRESS:PORT, such as 127.0.0.1:9857",
				    where);
	const int one = 1;
	auto_close int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
				bind(fd, found->ai_addr, found->ai_addrlen) < 0 ||
				listen(fd, SOMAXCONN) < 0
			? brumate_fail(err, errno, "--listen %s: %m", where)
			: 0;
	freeaddrinfo(found);
	return r < 0 ? r : take_fd(&fd);
}

/* Until a signal ends the program. */
static int serve(const char *where, const struct wanted *wanted, struct brumate_error *err)
{
	auto_close int fd = listen_at(where, err);
	struct metrics_server s = { .fd = fd, .wanted = *wanted };
	int r = fd < 0 ? fd : loop_init(&s.loop);

	if (r < 0)
		return fd < 0 ? fd : brumate_fail(err, -r, "%m");
	loop_add(&s.loop, &s.connections, take_connection, &s);
	loop_watch(&s.connections, fd, POLLIN);
	while (r == 0)
		r = loop_turn(&s.loop, -1);
	free(s.text);
	return brumate_fail(err, -r, "%m");
}

/* ---- the command ---- */

static int write_file(const char *path, const struct wanted *wanted, struct brumate_error *err)
{
	size_t len;
	auto_free char *text = collect_metrics(wanted, &len);

	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	if (!is_special(path)) {
		int r = file_replace(AT_FDCWD, path, text, len, 0644);
		return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
	}
	auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);
	int r = fd < 0 ? -errno : fd_write_full(fd, text, len);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

static int print_metrics(const struct wanted *wanted, struct brumate_error *err)
{
	size_t len;
	auto_free char *text = collect_metrics(wanted, &len);

	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	fwrite(text, 1, len, stdout);
	return 0;
}

int verb_metrics(const struct invocation *in, struct brumate_error *err)
{
	const char *path = in->values[OPT_TEXTFILE], *where = in->values[OPT_LISTEN];
	const struct wanted wanted = { .names = in->values[OPT_NAMES] || (!path && !where),
				       .all_users = in->values[OPT_ALL_USERS] };

	if (path && where)
		return brumate_fail(err, EINVAL, "--textfile and --listen cannot be combined");
	if (wanted.all_users && users_refuse(err) < 0)
		return -EPERM;
	if (path)
		return write_file(path, &wanted, err);
	return where ? serve(where, &wanted, err) : print_metrics(&wanted, err);
}
