// SPDX-License-Identifier: MIT
/* Finding, starting and calling the broker. See broker.h. */
#include "client/broker.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/start.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	START_TIMEOUT_MS = 20000,
	HELLO_TIMEOUT_MS = 5000,
	DRIVER_TIMEOUT_MS = 60000, /* initialising the driver of a machine with many GPUs */
	READY_FD = 3,
};

struct start {
	char *argv[7];
	int null_fd, log_fd, ready_fd;
};

/* Runs in the child: async-signal-safe calls only, the parent may have threads. */
static void exec_broker(const void *arg)
{
	const struct start *s = arg;
	const int fds[] = { s->null_fd, s->null_fd, s->log_fd, s->ready_fd };

	if (spawn_leave(fds, READY_FD + 1) < 0)
		_exit(EXIT_NOT_EXECUTABLE);
	if (chdir("/") == 0)
		execv(s->argv[0], s->argv);

	static const char failed[] = "Ecannot be executed";
	if (write(READY_FD, failed, sizeof(failed) - 1) < 0)
		_exit(EXIT_NOT_EXECUTABLE);
	_exit(EXIT_NO_COMMAND);
}

/* Where the broker's messages go: its log, or nowhere where there can be none. */
static int open_log(void)
{
	auto_free char *path = path_format("%s/broker.log", path_log_dir());

	mkdir_parents(path_log_dir(), 0755);
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600)
		      : -1;
	return fd >= 0 ? fd : open("/dev/null", O_WRONLY | O_CLOEXEC);
}

static int wait_ready(int fd, const char *program, uint64_t deadline_ns, struct brumate_error *err)
{
	char text[512] = "";

	if (fd_wait(fd, POLLIN, deadline_ns) == -ETIMEDOUT)
		return brumate_fail(err, ETIMEDOUT, "start of %s: not ready in time", program);
	ssize_t len = read(fd, text, sizeof(text) - 1);
	if (len > 0 && text[0] == 'R')
		return 0;
	int r = brumate_fail(err, EIO, "start of %s: %s", program,
			     len > 1 ? text + 1 : "it ended at once");
	brumate_hint(err, "its messages are in %s/broker.log", path_log_dir());
	return r;
}

static int start_broker(const struct gpu_kind *kind, uint64_t deadline_ns,
			struct brumate_error *err)
{
	auto_free char *program = path_find_helper("brumate-broker");
	if (!program)
		return brumate_fail(err, ENOENT, "brumate-broker is not installed");

	int ready[2];
	if (pipe2(ready, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int ready_read = ready[0], ready_write = ready[1];
	auto_close int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	auto_close int log_fd = open_log();
	if (null_fd < 0 || log_fd < 0)
		return brumate_fail(err, errno, "/dev/null: %m");

	struct start s = { { program, (char *)"--ready-fd", (char *)"3", (char *)"--vendor" },
			   null_fd,
			   log_fd,
			   ready_write };
	s.argv[4] = (char *)gpu_kind_vendor(kind)->id;
	if (kind->simulated)
		s.argv[5] = (char *)"--simulated";
	int r = spawn_detached(exec_broker, &s);
	if (r < 0)
		return brumate_fail(err, -r, "start of %s: %m", program);
	cleanup_close(&ready_write);
	return wait_ready(ready_read, program, deadline_ns, err);
}

/* Only root's broker, or our own, is trusted with a job. */
static int check_peer(struct broker_client *b, const char *path, struct brumate_error *err)
{
	struct ucred cred;
	int r = fd_peer(b->wire.fd, &cred);

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path);
	if (cred.uid != 0 && cred.uid != geteuid())
		return brumate_fail(err, EPERM, "%s is served by user %u, not by root", path,
				    cred.uid);
	b->pid = cred.pid;
	peer_set(&b->peer, cred.pid);
	return 0;
}

static int look_at_peer(void *arg)
{
	return peer_look(arg);
}

/* The client may have been copied since its last call. */
int broker_client_call(struct broker_client *b, const char *method, json_t *parameters, int fd,
		       json_t **ret, uint64_t deadline_ns, struct brumate_error *err)
{
	b->wire.look = look_at_peer;
	b->wire.look_arg = &b->peer;
	b->wire.look_ms = PEER_LOOK_MS;
	b->peer.still = 0;
	return wire_call(&b->wire, method, parameters, &fd, fd >= 0, NULL, NULL, ret, deadline_ns,
			 err);
}

/* A connection to a broker that is just ending may be accepted by nobody: an answer proves it. */
static int connect_broker(struct broker_client *b, const char *path, struct brumate_error *err)
{
	int r = wire_connect(&b->wire, path, err);
	if (r < 0)
		return r;

	r = check_peer(b, path, err);
	if (r == 0 && b->patience_ms && peer_stands_still(&b->peer))
		r = brumate_fail(err, EHOSTDOWN, "broker: process %d stands still", b->pid);
	if (r == 0)
		r = broker_client_call(
			b, "org.varlink.service.GetInfo", NULL, -1, NULL,
			deadline_in_ms(b->patience_ms ? b->patience_ms : HELLO_TIMEOUT_MS), err);
	if (r < 0)
		broker_client_close(b);
	return r;
}

static bool is_absent(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED || r == -EPIPE;
}

static char *socket_path(const struct gpu_kind *kind)
{
	auto_free char *name = gpu_kind_broker(kind);

	return name ? path_format("%s/%s.sock", path_runtime_dir(), name) : NULL;
}

int broker_client_find(struct broker_client *ret, const struct gpu_kind *kind, uint32_t patience_ms,
		       struct brumate_error *err)
{
	struct broker_client b = { .wire = { .fd = -1 },
				   .kind = *kind,
				   .patience_ms = patience_ms };
	auto_free char *path = socket_path(kind);
	int r = path ? connect_broker(&b, path, err) : brumate_fail(err, ENOMEM, "broker: %m");

	if (r == 0)
		*ret = b;
	return r;
}

int broker_client_open(struct broker_client *ret, const struct gpu_kind *kind,
		       struct brumate_error *err)
{
	struct broker_client b = { .wire = { .fd = -1 }, .kind = *kind };
	uint64_t deadline_ns = deadline_in_ms(START_TIMEOUT_MS);
	auto_free char *path = socket_path(kind);
	if (!path)
		return brumate_fail(err, ENOMEM, "broker: %m");

	int r = connect_broker(&b, path, err);
	while (is_absent(r) && deadline_left_ms(deadline_ns) > 0) {
		r = start_broker(kind, deadline_ns, err);
		if (r < 0)
			return r;
		r = connect_broker(&b, path, err);
	}
	if (r < 0)
		return brumate_wrap(err, r, "broker");
	*ret = b;
	return 0;
}

void broker_client_close(struct broker_client *b)
{
	wire_fini(&b->wire);
	b->pid = 0;
	b->peer = PEER_NONE;
}

int broker_client_reopen(struct broker_client *b, struct brumate_error *err)
{
	const struct gpu_kind kind = b->kind;

	broker_client_close(b);
	return broker_client_open(b, &kind, err);
}

pid_t broker_client_pid(const struct broker_client *b)
{
	return b->pid;
}

/* Takes @parameters. @fd goes along (borrowed); -1: none. */
static int call_with_fd(struct broker_client *b, const char *method, json_t *parameters, int fd,
			uint64_t timeout_ms, json_t **ret, struct brumate_error *err)
{
	auto_json json_t *owned = parameters;

	if (!owned)
		return brumate_fail(err, ENOMEM, "broker: %m");
	if (b->wire.fd < 0)
		return brumate_fail(err, EPIPE, "broker: not connected");
	return broker_client_call(b, method, owned, fd, ret, deadline_in_ms(timeout_ms), err);
}

static int call_broker(struct broker_client *b, const char *method, json_t *parameters,
		       uint64_t timeout_ms, json_t **ret, struct brumate_error *err)
{
	return call_with_fd(b, method, parameters, -1, timeout_ms, ret, err);
}

static uint64_t driver_timeout_ms(const struct broker_client *b)
{
	return b->patience_ms ? b->patience_ms : DRIVER_TIMEOUT_MS;
}

/* Makes a call that changes nothing; where the broker dies over it, once more, to another one. */
static int ask_broker(struct broker_client *b, const char *method, json_t **ret,
		      struct brumate_error *err)
{
	int r = call_broker(b, method, json_object(), driver_timeout_ms(b), ret, err);

	if (r == -EPIPE && !b->patience_ms && (r = broker_client_reopen(b, err)) == 0)
		r = call_broker(b, method, json_object(), DRIVER_TIMEOUT_MS, ret, err);
	return r;
}

static int fail_reply(const char *what, struct brumate_error *err)
{
	return brumate_fail(err, EPROTO, "broker: its answer has no proper '%s'", what);
}

static int decode_answer(enum broker_answer what, void *ret, json_t *reply,
			 struct brumate_error *err)
{
	int r = broker_answer_decode(what, ret, reply, err);

	if (r == -EBADMSG && err)
		err->code = EPROTO;
	return r < 0 ? brumate_wrap(err, r == -EBADMSG ? -EPROTO : r, "broker: its answer") : 0;
}

/* A number of bytes; one that is missing is 0. */
static int get_bytes(json_t *o, const char *key, uint64_t *ret, struct brumate_error *err)
{
	int64_t bytes = 0;
	int r = wire_get_int(o, key, 0, INT64_MAX, &bytes, err);

	*ret = (uint64_t)bytes;
	return r;
}

int broker_client_info(struct broker_client *b, struct broker_info *ret, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = ask_broker(b, "io.brumate.broker.Info", &reply, err);

	*ret = (struct broker_info){ 0 };
	return r == 0 ? decode_answer(BROKER_INFO, ret, reply, err) : r;
}

int broker_client_gpus(struct broker_client *b, struct dev_gpu *ret, size_t *ret_n,
		       struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	struct broker_info info = { 0 };
	int r = ask_broker(b, "io.brumate.broker.Gpus", &reply, err);

	if (r == 0)
		r = decode_answer(BROKER_GPUS, &info, reply, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < info.n_gpus; i++)
		ret[i] = info.gpus[i].gpu;
	*ret_n = info.n_gpus;
	return 0;
}

static json_t *pids_to_json(const pid_t *pids, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer(pids[i]));
	return list;
}

int broker_client_state(struct broker_client *b, const pid_t *pids, size_t n,
			struct dev_process *ret, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = call_broker(b, "io.brumate.broker.State",
			    json_pack("{s:o}", "pids", pids_to_json(pids, n)), driver_timeout_ms(b),
			    &reply, err);
	if (r < 0)
		return r;

	struct broker_processes all = { 0 };
	r = decode_answer(BROKER_PROCESSES, &all, reply, err);
	for (size_t i = 0; i < n && r == 0; i++)
		if (all.n != n || all.items[i].pid != pids[i])
			r = fail_reply("processes", err);
	if (r == 0 && n)
		memcpy(ret, all.items, n * sizeof(*ret));
	free(all.items);
	return r;
}

/* An older broker opens none, and tells of none. */
static int parse_open(json_t *reply, struct broker_prepared *ret, struct brumate_error *err)
{
	json_t *list;
	int r = wire_get_array(reply, "open", &list, err);

	for (size_t i = 0; r == 0 && i < json_array_size(list) && i < DEV_GPUS_MAX; i++) {
		json_t *gpu = json_array_get(list, i);
		const char *uuid;

		r = wire_need_string(gpu, "uuid", &uuid, err);
		if (r == 0)
			r = get_bytes(gpu, "bytes", &ret->open[i].bytes, err);
		if (r == 0 && dev_uuid_parse(ret->open[i].gpu, uuid) < 0)
			r = fail_reply("open", err);
		ret->n_open++;
	}
	return r;
}

int broker_client_prepare(struct broker_client *b, const struct broker_prepare *request,
			  struct broker_prepared *ret, int *ret_fd, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int ends[2];

	*ret = (struct broker_prepared){ 0 };
	*ret_fd = -1;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int theirs = ends[0], ours = ends[1];
	json_t *parameters = json_pack(
		"{s:o, s:b, s:I, s:b}", "pids", pids_to_json(request->pids, request->n), "yields",
		request->yields, "kept", (json_int_t)request->kept_bytes, "spare", request->spare);
	int r = call_with_fd(b, "io.brumate.broker.Prepare", parameters, theirs, DRIVER_TIMEOUT_MS,
			     &reply, err);
	if (r == 0)
		r = get_bytes(reply, "bytes", &ret->bytes, err);
	if (r == 0)
		r = parse_open(reply, ret, err);
	if (r == 0 && ret->bytes)
		*ret_fd = take_fd(&ours);
	return r;
}

bool broker_has_hung_up(int fd)
{
	struct pollfd end = { .fd = fd, .events = POLLOUT };

	return fd < 0 || (poll(&end, 1, 0) > 0 && end.revents & (POLLERR | POLLHUP));
}

int broker_client_yield(struct broker_client *b, struct brumate_error *err)
{
	return call_broker(b, "io.brumate.broker.Yield", json_object(), DRIVER_TIMEOUT_MS, NULL,
			   err);
}

static json_t *act_to_json(enum dev_action action, const pid_t *pids, size_t n, uint32_t timeout_ms,
			   const struct dev_gpu_pair *pairs, size_t n_pairs)
{
	json_t *map = n_pairs ? json_array() : json_null();

	for (size_t i = 0; i < n_pairs; i++)
		json_array_append_new(
			map, json_pack("{s:s, s:s}", "from", pairs[i].from, "to", pairs[i].to));
	return json_pack("{s:s, s:o, s:I, s:o}", "action", dev_action_name(action), "pids",
			 pids_to_json(pids, n), "timeout_ms", (json_int_t)timeout_ms, "gpu_map",
			 map);
}

int broker_client_act(struct broker_client *b, enum dev_action action, const pid_t *pids, size_t n,
		      uint32_t timeout_ms, const struct dev_gpu_pair *pairs, size_t n_pairs,
		      struct broker_outcome *ret, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = call_broker(b, "io.brumate.broker.Act",
			    act_to_json(action, pids, n, timeout_ms, pairs, n_pairs),
			    (uint64_t)timeout_ms + DRIVER_TIMEOUT_MS, &reply, err);
	if (r < 0)
		return r;

	struct broker_outcomes all = { 0 };
	r = decode_answer(BROKER_OUTCOMES, &all, reply, err);
	for (size_t i = 0; i < n && r == 0; i++)
		if (all.n != n || all.items[i].pid != pids[i])
			r = fail_reply("outcomes", err);
	if (r == 0 && n)
		memcpy(ret, all.items, n * sizeof(*ret));
	free(all.items);
	return r;
}
