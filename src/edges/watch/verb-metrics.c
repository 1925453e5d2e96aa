// SPDX-License-Identifier: MIT
/*
 * `brumate metrics`: looks, and writes to standard output, to a file for node_exporter, or as the answer to one HTTP
 * request whose connection is standard input and output. A client that is not known to be the owner gets no names of
 * jobs.
 */
#include "cli/client.h"
#include "cli/command.h"
#include "edges/watch/metrics.h"
#include "cli/output.h"
#include "edges/watch/options.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "job/counts.h"
#include "job/job.h"
#include "service/access.h"
#include "wire/wire.h"

enum { REQUEST_BYTES_MAX = 8192, REQUEST_TIMEOUT_MS = 10000 };

/* ---- looking ---- */

/* What a suspended or saved job needs again stands in its record. Others are asked. */
static json_t *device_memory(const struct job *j)
{
	auto_json json_t *reply = NULL;
	json_int_t bytes = 0;
	json_t *process;
	size_t i;

	for (i = 0; i < j->n_gpus; i++)
		bytes += (json_int_t)j->gpus[i].bytes;
	if (j->state == JOB_SUSPENDED || j->state == JOB_CHECKPOINTED)
		return json_integer(bytes);
	if (j->state != JOB_RUNNING || j->data_path != JOB_DATA_BROKER)
		return NULL;
	auto_json json_t *p = json_pack("{s:s,s:s}", "what", j->id, "kind", "job");
	if (!p || client_ask("Inspect", p, &reply, NULL) < 0)
		return NULL;
	json_t *memory = json_object_get(reply, "memory");
	bytes = 0;
	json_array_foreach (memory, i, process)
		bytes += json_integer_value(json_object_get(process, "data_bytes")) +
			 json_integer_value(json_object_get(process, "driver_bytes"));
	return memory ? json_integer(bytes) : NULL;
}

/* One whose record cannot be read, or that is gone meanwhile, has no counts. */
static void add_counts(json_t *job)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *id = json_string_value(json_object_get(job, "id"));

	if (!id || job_load(&j, id, NULL) < 0)
		return;
	json_t *memory = device_memory(&j);
	if (memory)
		json_object_set_new(job, "device_memory_bytes", memory);
	json_object_set_new(job, "counts", job_counts(&j.target));
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

/* The list @key that @method replies with (owned), NULL where it could not be made. */
static json_t *ask_list(const char *method, const char *key)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_json json_t *reply = NULL;

	if (client_ask(method, NULL, &reply, &err) < 0) {
		log_warn("%s could not be looked at: reason=\"%s\"", key, err.text);
		return NULL;
	}
	return json_incref(json_object_get(reply, key));
}

/* All of it as text (owned), NULL without memory. */
static char *collect_metrics(bool names, size_t *ret_bytes)
{
	auto_json json_t *jobs = ask_list("List", "jobs");
	auto_json json_t *checkpoints = ask_list("Checkpoints", "checkpoints");
	auto_json json_t *pods = pod_counts();
	char *text = NULL;
	json_t *job;
	size_t i;

	json_array_foreach (jobs, i, job)
		add_counts(job);
	struct metrics m = { .jobs = jobs,
			     .checkpoints = checkpoints,
			     .pods = pods,
			     .names = names,
			     .boot_ns = clock_boot_ns() };

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

/* ---- one HTTP request ---- */

/* Whether the peer of a Unix socket is our user, or root; a peer by another way is not known. */
static bool is_owner(int fd)
{
	struct sockaddr_un address;
	socklen_t len = sizeof(address);
	struct ucred peer;

	if (getsockname(fd, (struct sockaddr *)&address, &len) < 0 ||
	    address.sun_family != AF_UNIX || fd_peer(fd, &peer) < 0)
		return false;
	return peer.uid == geteuid() || peer.uid == 0;
}

/* Reads up to the empty line that ends the head of a request; a body is not looked at. -EMSGSIZE, -ETIMEDOUT, -EPIPE where
 * the peer hung up before. */
static int read_head(int fd, char ret[static REQUEST_BYTES_MAX + 1])
{
	uint64_t deadline_ns = deadline_in_ms(REQUEST_TIMEOUT_MS);
	size_t len = 0;

	while (len < REQUEST_BYTES_MAX) {
		int r = fd_wait(fd, POLLIN, deadline_ns);
		if (r < 0)
			return r;
		ssize_t n = read(fd, ret + len, REQUEST_BYTES_MAX - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EPIPE;
		len += (size_t)n;
		ret[len] = '\0';
		if (strstr(ret, "\r\n\r\n") || strstr(ret, "\n\n") || strlen(ret) < len)
			return 0; /* a NUL is in no request: what stands before it is looked at */
	}
	return -EMSGSIZE;
}

static int write_all(int fd, const char *text, size_t len)
{
	uint64_t deadline_ns = deadline_in_ms(REQUEST_TIMEOUT_MS);

	while (len) {
		int r = fd_wait(fd, POLLOUT, deadline_ns);
		if (r < 0)
			return r;
		ssize_t n = send(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == ENOTSOCK)
			n = write(fd, text, len);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (n > 0) {
			text += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

struct answer {
	const char *status, *type;
	char *body; /* owned */
	size_t len;
	bool head; /* the body is not sent */
};

static int send_answer(int fd, const struct answer *a)
{
	char head[256];
	int n = snprintf(head, sizeof(head),
			 "HTTP/1.0 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
			 "Connection: close\r\n\r\n",
			 a->status, a->type, a->len);
	int r = write_all(fd, head, (size_t)n);

	return r < 0 || a->head ? r : write_all(fd, a->body, a->len);
}

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

static int answer_request(int in, int out, bool names, struct brumate_error *err)
{
	char head[REQUEST_BYTES_MAX + 1];
	struct answer a = { .type = "text/plain; charset=utf-8" };
	int r = read_head(in, head);

	if (r < 0 && r != -EMSGSIZE) {
		brumate_fail(err, -r, "request: %m");
		brumate_hint(err, "--listen answers one HTTP request on standard input; "
				  "brumate-metrics.socket starts it");
		return r;
	}
	a.status = r < 0 ? "431 Request Header Fields Too Large" : check_request(head, &a.head);
	if (!a.status) {
		a.body = collect_metrics(names, &a.len);
		a.status = a.body ? "200 OK" : "503 Service Unavailable";
		a.type = "text/plain; version=0.0.4; charset=utf-8";
	}
	r = send_answer(out, &a);
	free(a.body);
	return r < 0 ? brumate_fail(err, -r, "answer: %m") : 0;
}

/* ---- the command ---- */

static int write_file(const char *path, bool names, struct brumate_error *err)
{
	size_t len;
	auto_free char *text = collect_metrics(names, &len);

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

static int print_metrics(struct brumate_error *err)
{
	size_t len;
	auto_free char *text = collect_metrics(true, &len);

	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	fwrite(text, 1, len, stdout);
	return 0;
}

int verb_metrics(const struct invocation *in, struct brumate_error *err)
{
	const char *path = in->values[OPT_TEXTFILE];
	bool names = in->values[OPT_NAMES];

	if (path && in->values[OPT_LISTEN])
		return brumate_fail(err, EINVAL, "--textfile and --listen cannot be combined");
	if (path)
		return write_file(path, names, err);
	if (in->values[OPT_LISTEN])
		return answer_request(STDIN_FILENO, STDOUT_FILENO, names || is_owner(STDIN_FILENO),
				      err);
	return print_metrics(err);
}
