// SPDX-License-Identifier: MIT
/* A small service on a socket of its own, for the tests of client and server. */
#pragma once

#include "check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

struct service {
	char dir[64];
	char *path;
	struct wire_server *server;
	pthread_t thread;
	atomic_bool ending;
	int wake[2];
	atomic_int calls, cancelled;
};

static int method_echo(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct service *s = arg;

	atomic_fetch_add(&s->calls, 1);
	return wire_reply(call, parameters);
}

static int method_count(void *arg, struct wire_call_context *call, json_t *parameters,
			struct brumate_error *err)
{
	int64_t n = 0;
	int r = wire_get_int(parameters, "n", 0, 1000, &n, err);

	if (r < 0)
		return r;
	for (int64_t i = 0; i < n; i++) {
		auto_json json_t *p = json_pack("{s:I}", "i", (json_int_t)i);

		wire_reply_more(call, p);
	}
	auto_json json_t *p = json_pack("{s:b}", "done", 1);
	return wire_reply(call, p);
}

static int method_fail(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	int r = brumate_fail(err, ENOSPC, "store: disk full");

	brumate_hint(err, "free some");
	brumate_error_exit(err, EXIT_STILL_RUNNING);
	return brumate_wrap(err, r, "checkpoint job-7");
}

/* Returns once its caller is gone. */
static int method_hang(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct service *s = arg;
	struct pollfd p = { .fd = wire_call_fd(call) };

	atomic_fetch_add(&s->calls, 1);
	while (!wire_call_is_cancelled(call))
		poll(&p, 1, 20);
	atomic_fetch_add(&s->cancelled, 1);
	return brumate_fail(err, ECANCELED, "cancelled");
}

/* The same, of one that says that it only waits. */
static int method_wait(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	wire_call_wait(call, true);
	return method_hang(arg, call, parameters, err);
}

/* Answers with the fds it was given. */
static int method_pass(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	auto_close int first = wire_call_take_fd(call, 0);

	CHECK(wire_call_take_fd(call, 0) == -1 && wire_call_take_fd(call, 999) == -1);
	return first < 0 ? wire_fail_parameter(err, "fd", "is missing")
			 : wire_reply_fds(call, NULL, &first, 1);
}

static int method_silent(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	return 0;
}

static const struct wire_method service_methods[] = {
	{ "io.brumate.test.Echo", method_echo }, { "io.brumate.test.Count", method_count },
	{ "io.brumate.test.Fail", method_fail }, { "io.brumate.test.Hang", method_hang },
	{ "io.brumate.test.Pass", method_pass }, { "io.brumate.test.Silent", method_silent },
	{ "io.brumate.test.Wait", method_wait },
};

static void *service_run(void *arg)
{
	struct service *s = arg;
	struct pollfd p[] = {
		{ .fd = wire_server_fd(s->server), .events = POLLIN },
		{ .fd = s->wake[0], .events = POLLIN },
	};

	while (!atomic_load(&s->ending))
		if (poll(p, 2, -1) > 0 && p[0].revents)
			wire_server_accept(s->server);
	return NULL;
}

static void service_start(struct service *s)
{
	struct wire_service service = { "io.brumate.test", "interface io.brumate.test\n",
					service_methods,
					sizeof(service_methods) / sizeof(service_methods[0]), s };

	memset(s, 0, sizeof(*s));
	strcpy(s->dir, "/tmp/brumate-wire-XXXXXX");
	CHECK(mkdtemp(s->dir));
	s->path = path_format("%s/socket", s->dir);
	int fd = wire_listen(s->path, 0600, NULL);
	CHECK(fd >= 0);
	CHECK(wire_server_new(&s->server, &service, fd, NULL) == 0);
	CHECK(pipe2(s->wake, O_CLOEXEC) == 0);
	CHECK(pthread_create(&s->thread, NULL, service_run, s) == 0);
}

/* Stops accepting; the connections go on. */
static void service_pause(struct service *s)
{
	if (atomic_exchange(&s->ending, true))
		return;
	CHECK(write(s->wake[1], "x", 1) == 1);
	pthread_join(s->thread, NULL);
}

static void service_end(struct service *s)
{
	service_pause(s);
	wire_server_free(s->server);
	close(s->wake[0]);
	close(s->wake[1]);
	free(s->path);
	CHECK(remove_tree(AT_FDCWD, s->dir) == 0);
}
