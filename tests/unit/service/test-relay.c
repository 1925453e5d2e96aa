// SPDX-License-Identifier: MIT
/* Calls passed on to another program: their replies, their errors, and cancelling one that hangs. */
#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "job/scratch.h"
#include "service/service.h"

static int hung_fd, stop_fd; /* eventfds: a call hangs now; the test is over */

static int method_answer(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	wire_reply_more(call, parameters);
	return wire_reply(call, parameters);
}

static int method_refuse(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	return brumate_fail(err, EBUSY, "not now");
}

/* Until the caller hangs up. */
static int method_hang(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct pollfd p = { .fd = wire_call_fd(call), .events = POLLRDHUP };

	eventfd_write(hung_fd, 1);
	while (!wire_call_is_cancelled(call))
		poll(&p, 1, -1);
	return brumate_fail(err, ECANCELED, "cancelled");
}

static const struct wire_method methods[] = {
	{ "io.brumate.test.Answer", method_answer },
	{ "io.brumate.test.Refuse", method_refuse },
	{ "io.brumate.test.Hang", method_hang },
};
static const struct wire_service service = { .interface_name = "io.brumate.test",
					     .description = "interface io.brumate.test\n",
					     .methods = methods,
					     .n_methods = sizeof(methods) / sizeof(methods[0]) };

static void *accept_calls(void *server)
{
	struct pollfd fds[] = { { .fd = wire_server_fd(server), .events = POLLIN },
				{ .fd = stop_fd, .events = POLLIN } };

	while (poll(fds, 2, -1) >= 0 && !fds[1].revents)
		wire_server_accept(server);
	return NULL;
}

static char path[PATH_MAX + 16];

static int relay(const char *method, json_t *parameters, wire_reply_fn on_reply, void *arg,
		 const struct cancel *cancel, json_t **ret, struct brumate_error *err)
{
	const struct service_call call = { .on_reply = on_reply, .arg = arg, .cancel = *cancel };
	struct wire w;

	CHECK(wire_connect(&w, path, NULL) == 0);
	*err = BRUMATE_ERROR_NONE;
	int r = relay_call(&w, method, parameters, &call, 0, ret, err);
	wire_fini(&w);
	return r;
}

static void count_reply(void *arg, json_t *parameters)
{
	++*(int *)arg;
}

static void test_answers(void)
{
	auto_json json_t *p = json_pack("{s:i}", "a", 5), *reply = NULL;
	struct brumate_error err;
	int n_streamed = 0;

	CHECK(relay("io.brumate.test.Answer", p, count_reply, &n_streamed, &CANCEL_NEVER, &reply,
		    &err) == 0);
	CHECK(json_equal(reply, p) && n_streamed == 1);
	CHECK(relay("io.brumate.test.Refuse", NULL, NULL, NULL, &CANCEL_NEVER, NULL, &err) ==
	      -EBUSY);
	CHECK_STR(err.text, "not now");
}

static void *cancel_when_it_hangs(void *arg)
{
	eventfd_t n;

	CHECK(eventfd_read(hung_fd, &n) == 0);
	CHECK(eventfd_write(*(int *)arg, 1) == 0);
	return NULL;
}

static void test_cancelled(void)
{
	auto_close int cancel_fd = eventfd(0, EFD_CLOEXEC);
	const struct cancel cancel = {
		{ { .fd = -1 }, { .fd = cancel_fd, .events = POLLIN } },
	};
	struct brumate_error err;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, cancel_when_it_hangs, &cancel_fd) == 0);
	CHECK(relay("io.brumate.test.Hang", NULL, NULL, NULL, &cancel, NULL, &err) == -ECANCELED);
	CHECK_STR(err.text, "cancelled");
	pthread_join(thread, NULL);
	/* It was cancelled before it began. */
	CHECK(relay("io.brumate.test.Hang", NULL, NULL, NULL, &cancel, NULL, &err) == -ECANCELED);
}

/* A call that is over when the cancellation comes keeps its result. */
static void test_refusal_is_no_cancellation(void)
{
	auto_close int cancel_fd = eventfd(0, EFD_CLOEXEC);
	const struct cancel cancel = { { { .fd = cancel_fd, .events = POLLIN }, { .fd = -1 } } };
	struct brumate_error err;

	CHECK(relay("io.brumate.test.Refuse", NULL, NULL, NULL, &cancel, NULL, &err) == -EBUSY);
}

/* ---- what the service does itself ---- */

static void keep_reply(void *arg, json_t *parameters)
{
	json_decref(*(json_t **)arg);
	*(json_t **)arg = json_incref(parameters);
}

static void test_meter(void)
{
	auto_close int cancel_fd = eventfd(0, EFD_CLOEXEC);
	auto_json json_t *told = NULL;
	const struct service_call call = {
		.on_reply = keep_reply,
		.arg = &told,
		.cancel = { { { .fd = cancel_fd, .events = POLLIN }, { .fd = -1 } } },
	};
	struct meter m = meter_of(&call, "verify", 2);

	meter_step(&m);
	CHECK(meter_progress(&m, 5, 10) == 0);
	json_t *o = json_object_get(told, "progress");
	CHECK_STR(json_string_value(json_object_get(o, "phase")), "verify");
	CHECK(json_integer_value(json_object_get(o, "step")) == 1);
	CHECK(json_integer_value(json_object_get(o, "bytes")) == 5);
	CHECK(meter_progress(&m, 6, 10) == 0); /* too soon to tell again */
	o = json_object_get(told, "progress");
	CHECK(json_integer_value(json_object_get(o, "bytes")) == 5);
	meter_step(&m);
	CHECK(!call_is_cancelled(&call) && eventfd_write(cancel_fd, 1) == 0);
	CHECK(call_is_cancelled(&call) && meter_progress(&m, 7, 10) == -ECANCELED);
}

int main(void)
{
	struct wire_server *server;
	pthread_t thread;

	new_scratch();
	hung_fd = eventfd(0, EFD_CLOEXEC);
	stop_fd = eventfd(0, EFD_CLOEXEC);
	snprintf(path, sizeof(path), "%s/socket", scratch);
	int fd = wire_listen(path, 0600, NULL);
	CHECK(fd >= 0 && wire_server_new(&server, &service, fd, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, accept_calls, server) == 0);
	test_answers();
	test_cancelled();
	test_refusal_is_no_cancellation();
	test_meter();
	eventfd_write(stop_fd, 1);
	pthread_join(thread, NULL);
	wire_server_free(server);
	remove_scratch();
	return 0;
}
