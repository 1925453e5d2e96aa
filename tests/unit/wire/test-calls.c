// SPDX-License-Identifier: MIT
/* Calls from our client to our server: replies, streams, errors, fds, deadlines, foreign peers. */
#include "service.h"

#include <sys/socket.h>

static struct service s;

static int call(struct wire *w, const char *method, json_t *p, json_t **ret,
		struct brumate_error *err)
{
	return wire_call(w, method, p, NULL, 0, NULL, NULL, ret, deadline_in_ms(5000), err);
}

static void test_replies(void)
{
	struct wire w;
	auto_json json_t *p = json_pack("{s:i}", "x", 7), *reply = NULL, *none = NULL;

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	for (int i = 0; i < 3; i++) {
		auto_json json_t *r = NULL;

		CHECK(call(&w, "io.brumate.test.Echo", p, &r, NULL) == 0);
		CHECK(json_equal(r, p));
	}
	CHECK(call(&w, "io.brumate.test.Echo", NULL, &reply, NULL) == 0);
	CHECK(json_object_size(reply) == 0);
	CHECK(call(&w, "io.brumate.test.Silent", NULL, &none, NULL) == 0);
	wire_fini(&w);
}

static void count_reply(void *arg, json_t *parameters)
{
	int *n = arg;

	CHECK(json_integer_value(json_object_get(parameters, "i")) == *n);
	(*n)++;
}

static void test_stream(void)
{
	struct wire w;
	auto_json json_t *p = json_pack("{s:i}", "n", 50), *reply = NULL, *plain = NULL;
	int n = 0;

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(wire_call(&w, "io.brumate.test.Count", p, NULL, 0, count_reply, &n, &reply,
			deadline_in_ms(5000), NULL) == 0);
	CHECK(n == 50 && json_is_true(json_object_get(reply, "done")));
	CHECK(call(&w, "io.brumate.test.Count", p, &plain, NULL) == 0); /* without "more" */
	CHECK(json_is_true(json_object_get(plain, "done")));
	wire_fini(&w);
}

static void test_errors(void)
{
	struct wire w;
	struct brumate_error err;
	auto_json json_t *bad = json_pack("{s:s}", "n", "many"),
			 *range = json_pack("{s:i}", "n", -1);

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(call(&w, "io.brumate.test.Fail", NULL, NULL, &err) == -ENOSPC);
	CHECK_STR(err.text, "checkpoint job-7: store: disk full");
	CHECK_STR(err.hint, "free some");
	CHECK(brumate_exit_code(&err) == EXIT_STILL_RUNNING);
	CHECK(call(&w, "io.brumate.test.Count", bad, NULL, &err) == -EINVAL);
	CHECK(strstr(err.text, "'n': must be an integer"));
	CHECK(call(&w, "io.brumate.test.Count", range, NULL, &err) == -EINVAL);
	CHECK(strstr(err.text, "-1 is not between"));
	CHECK(call(&w, "io.brumate.test.Nothing", NULL, NULL, &err) == -EOPNOTSUPP);
	CHECK(call(&w, "com.example.Nothing", NULL, NULL, &err) == -EOPNOTSUPP);
	CHECK(call(&w, "Nothing", NULL, NULL, &err) == -EOPNOTSUPP);
	CHECK(call(&w, "io.brumate.test.Echo", NULL, NULL, &err) == 0); /* the connection is fine */
	wire_fini(&w);
}

static void test_introspection(void)
{
	struct wire w;
	auto_json json_t *info = NULL, *text = NULL, *own = NULL;
	auto_json json_t *ours = json_pack("{s:s}", "interface", "io.brumate.test");
	auto_json json_t *base = json_pack("{s:s}", "interface", "org.varlink.service");
	auto_json json_t *other = json_pack("{s:s}", "interface", "com.example");

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(call(&w, "org.varlink.service.GetInfo", NULL, &info, NULL) == 0);
	CHECK_STR(json_string_value(json_object_get(info, "product")), "brumate");
	CHECK(json_array_size(json_object_get(info, "interfaces")) == 2);
	CHECK(call(&w, "org.varlink.service.GetInterfaceDescription", ours, &text, NULL) == 0);
	CHECK_STR(json_string_value(json_object_get(text, "description")),
		  "interface io.brumate.test\n");
	CHECK(call(&w, "org.varlink.service.GetInterfaceDescription", base, &own, NULL) == 0);
	CHECK(call(&w, "org.varlink.service.GetInterfaceDescription", other, NULL, NULL) ==
	      -EOPNOTSUPP);
	CHECK(call(&w, "org.varlink.service.GetInterfaceDescription", NULL, NULL, NULL) == -EINVAL);
	wire_fini(&w);
}

static void test_fds(void)
{
	struct wire w;
	struct brumate_error err;
	int fd = STDERR_FILENO;

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(wire_call(&w, "io.brumate.test.Pass", NULL, &fd, 1, NULL, NULL, NULL,
			deadline_in_ms(5000), &err) == 0);
	CHECK(call(&w, "io.brumate.test.Pass", NULL, NULL, &err) == -EINVAL);
	wire_fini(&w);
}

static void test_deadline_ends_the_connection(void)
{
	struct wire w;
	struct brumate_error err;
	int before = atomic_load(&s.cancelled);

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(wire_call(&w, "io.brumate.test.Hang", NULL, NULL, 0, NULL, NULL, NULL,
			deadline_in_ms(50), &err) == -ETIMEDOUT);
	CHECK(call(&w, "io.brumate.test.Echo", NULL, NULL, &err) == -EPIPE);
	wire_fini(&w);
	while (atomic_load(&s.cancelled) == before)
		poll(NULL, 0, 1);
}

static void read_exactly(int fd, const char *want)
{
	char got[4096] = "";

	CHECK(fd_read_full(fd, got, strlen(want) + 1) == (ssize_t)strlen(want) + 1);
	CHECK_STR(got, want);
}

/* What a foreign client may write by hand, with the answers to the letter. */
static void test_raw(void)
{
	struct wire w;
	static const char calls[] =
		"{\"method\":\"io.brumate.test.Echo\",\"parameters\":{\"a\":1},\"oneway\":true}\0"
		"{\"method\":\"io.brumate.test.Fail\",\"oneway\":true}\0"
		"{\"method\":\"io.brumate.test.Echo\",\"parameters\":null}\0"
		"{\"method\":\"io.brumate.test.Echo\",\"parameters\":[]}\0"
		"{\"method\":\"io.brumate.test.Gone\"}\0"
		"{\"method\":\"nodot\"}";

	CHECK(wire_connect(&w, s.path, NULL) == 0);
	CHECK(fd_write_full(w.fd, calls, sizeof(calls)) == 0);
	shutdown(w.fd, SHUT_WR);
	read_exactly(w.fd, "{\"parameters\":{}}");
	read_exactly(w.fd, "{\"error\":\"org.varlink.service.InvalidParameter\","
			   "\"parameters\":{\"parameter\":\"parameters\"}}");
	read_exactly(w.fd, "{\"error\":\"org.varlink.service.MethodNotFound\","
			   "\"parameters\":{\"method\":\"io.brumate.test.Gone\"}}");
	read_exactly(w.fd, "{\"error\":\"org.varlink.service.InterfaceNotFound\","
			   "\"parameters\":{\"interface\":\"\"}}");
	char end;
	CHECK(read(w.fd, &end, 1) == 0);
	wire_fini(&w);
}

/* Connections with which nothing can be done are closed, and only they. */
static void test_hopeless_peers(void)
{
	static const char *const texts[] = { "garbage", "[]", "{}", "{\"method\":7}", "" };
	struct wire good;
	char end;

	CHECK(wire_connect(&good, s.path, NULL) == 0);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct wire w;

		CHECK(wire_connect(&w, s.path, NULL) == 0);
		CHECK(fd_write_full(w.fd, texts[i], strlen(texts[i]) + 1) == 0);
		CHECK(read(w.fd, &end, 1) == 0);
		wire_fini(&w);
	}
	CHECK(call(&good, "io.brumate.test.Echo", NULL, NULL, NULL) == 0);
	wire_fini(&good);
}

/* A server that answers nonsense must not confuse the client. */
static void *answer_nonsense(void *arg)
{
	char request[4096];
	int *fd = arg;
	static const char answer[] = "{\"parameters\":7}";

	CHECK(read(*fd, request, sizeof(request)) > 0);
	CHECK(fd_write_full(*fd, answer, sizeof(answer)) == 0);
	return NULL;
}

static void test_bad_server(void)
{
	int fds[2];
	struct wire w;
	struct brumate_error err;
	pthread_t thread;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	wire_init(&w, fds[0]);
	CHECK(pthread_create(&thread, NULL, answer_nonsense, &fds[1]) == 0);
	CHECK(call(&w, "a.B", NULL, NULL, &err) == -EPROTO);
	pthread_join(thread, NULL);
	CHECK(call(&w, "a.B", NULL, NULL, &err) == -EPIPE);
	close(fds[1]);
	wire_fini(&w);
}

int main(void)
{
	service_start(&s);
	test_replies();
	test_stream();
	test_errors();
	test_introspection();
	test_fds();
	test_deadline_ends_the_connection();
	test_raw();
	test_hopeless_peers();
	test_bad_server();
	service_end(&s);
	return 0;
}
