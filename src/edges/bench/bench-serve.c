// SPDX-License-Identifier: MIT
/*
 * `brumate bench --serve`: the synthetic job as a server of `run --wake`. What is measured is what a client waits for, from its
 * connection to the answer, for which the server checks all of its device memory.
 */
#include "edges/bench/bench.h"
#include "cli/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

enum { ANSWER_MS = 300000 };

enum waited_for { COLD_START, AWAKE, FROM_MEMORY, FROM_DISK, BY_SWAP, WAITED_FOR__MAX };

static const struct {
	const char *key, *title;
} waits[] = {
	[COLD_START] = { "cold_start", "cold start, to the first answer" },
	[AWAKE] = { "awake", "an answer while it is awake" },
	[FROM_MEMORY] = { "wake_from_memory", "wake from host memory" },
	[FROM_DISK] = { "wake_from_disk", "wake from disk" },
	[BY_SWAP] = { "swap", "swap with another server, to the answer" },
};

struct serve_bench {
	struct bench *b;
	struct {
		double first, fastest;
		unsigned n;
	} measured[WAITED_FOR__MAX];
};

struct bench_server {
	struct bench_job job;
	unsigned port;
};
#define BENCH_SERVER_EMPTY ((struct bench_server){ .job = BENCH_JOB_EMPTY })

static void bench_server_fini(struct bench_server *s)
{
	bench_job_fini(&s->job);
}
DEFINE_AUTO_FINI(struct bench_server, bench_server_fini)

static void note(struct serve_bench *s, enum waited_for what, uint64_t start_ns)
{
	const double seconds = clock_since_s(start_ns);

	if (!s->measured[what].n++)
		s->measured[what].first = s->measured[what].fastest = seconds;
	else if (seconds < s->measured[what].fastest)
		s->measured[what].fastest = seconds;
}

/* ---- a client ---- */

static struct sockaddr_in address_of(unsigned port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((uint16_t)port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* One that is free now. */
static int find_port(unsigned *ret, struct brumate_error *err)
{
	auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = address_of(0);
	socklen_t len = sizeof(a);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		return brumate_fail(err, errno, "a port of 127.0.0.1: %m");
	*ret = ntohs(a.sin_port);
	return 0;
}

/* Waits for the answer, or a signal. */
static int read_answer(int fd, char *ret, size_t room, struct brumate_error *err)
{
	struct pollfd fds[] = { { .fd = fd, .events = POLLIN },
				{ .fd = interrupt_watch(true), .events = POLLIN } };
	const uint64_t until_ns = deadline_in_ms(ANSWER_MS);
	ssize_t n = -1;

	while (poll(fds, 2, deadline_left_ms(until_ns)) < 0 && errno == EINTR)
		;
	if (fds[1].revents)
		return brumate_fail(err, ECANCELED, "cancelled");
	if (fds[0].revents)
		n = recv(fd, ret, room - 1, 0);
	else
		errno = ETIMEDOUT;
	if (n <= 0)
		return brumate_fail(err, n ? errno : ECONNRESET, "the server did not answer: %m");
	ret[n] = '\0';
	return 0;
}

static int ask(const struct bench_server *s, struct brumate_error *err)
{
	auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const struct sockaddr_in a = address_of(s->port);
	char answer[8];

	if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 ||
	    send(fd, "\n", 1, MSG_NOSIGNAL) != 1)
		return brumate_fail(err, errno, "127.0.0.1:%u: %m", s->port);
	int r = read_answer(fd, answer, sizeof(answer), err);
	return r == 0 && strcmp(answer, "OK\n") != 0
		       ? brumate_fail(err, EBADMSG, "the data of the server is wrong")
		       : r;
}

/* Asks, and notes how long that has taken since @start_ns. */
static int ask_since(struct serve_bench *b, const struct bench_server *s, enum waited_for what,
		     uint64_t start_ns, struct brumate_error *err)
{
	int r = ask(s, err);

	if (r == 0)
		note(b, what, start_ns);
	return r < 0 ? brumate_wrap(err, r, "%s", waits[what].title) : 0;
}

/* ---- what is done to servers ---- */

static int call(const char *method, json_t *parameters, struct brumate_error *err)
{
	auto_json json_t *p = parameters, *reply = NULL;

	return p ? bench_call(method, p, &reply, err) : brumate_fail(err, ENOMEM, "%m");
}

/* An answer comes before the end of the operation that let it. */
static int settle(const struct bench_server *s, struct brumate_error *err)
{
	return call("Status", json_pack("{s:s,s:b}", "job", s->job.id, "settled", 1), err);
}

static int suspend(const struct bench_server *s, struct brumate_error *err)
{
	int r = settle(s, err);

	return r < 0 ? r : call("Suspend", json_pack("{s:s}", "job", s->job.id), err);
}

static int start(struct serve_bench *b, struct bench_server *ret, struct brumate_error *err)
{
	struct bench_options *o = &b->b->options;
	auto_(bench_server_fini) struct bench_server s = BENCH_SERVER_EMPTY;
	int r = find_port(&o->port, err);
	const uint64_t start_ns = clock_now_ns();

	if (r == 0)
		r = bench_job_start(&s.job, o, "broker", NULL, err);
	s.port = o->port;
	if (r == 0)
		r = ask_since(b, &s, COLD_START, start_ns, err);
	if (r == 0)
		*ret = take_struct(s, BENCH_SERVER_EMPTY);
	return r;
}

static int wake_from_memory(struct serve_bench *b, struct bench_server *s,
			    struct brumate_error *err)
{
	int r = ask_since(b, s, AWAKE, clock_now_ns(), err);

	if (r == 0)
		r = suspend(s, err);
	return r < 0 ? r : ask_since(b, s, FROM_MEMORY, clock_now_ns(), err);
}

static int wake_from_disk(struct serve_bench *b, struct bench_server *s, struct brumate_error *err)
{
	const char *dir = b->b->options.dir;
	auto_json json_t *reply = NULL;
	int r = suspend(s, err);

	if (r == 0) {
		auto_json json_t *p =
			json_pack("{s:s,s:s,s:b}", "job", s->job.id, "dir", dir, "wake", 1);

		r = p ? bench_call("Checkpoint", p, &reply, err) : brumate_fail(err, ENOMEM, "%m");
	}
	if (r == 0)
		r = ask_since(b, s, FROM_DISK, clock_now_ns(), err);
	if (r == 0)
		r = settle(s, err);
	json_t *id = json_object_get(json_object_get(reply, "summary"), "checkpoint");
	return r < 0 ? r
		     : call("Remove", json_pack("{s:O,s:s}", "checkpoint", id, "dir", dir), err);
}

/* @leaves is on the GPU, and @comes has been there. */
static int swap(struct serve_bench *b, struct bench_server *leaves, struct bench_server *comes,
		struct brumate_error *err)
{
	int r = settle(leaves, err);
	const uint64_t start_ns = clock_now_ns();

	if (r == 0)
		r = call("Swap",
			 json_pack("{s:s,s:s}", "leaves", leaves->job.id, "comes", comes->job.id),
			 err);
	return r < 0 ? r : ask_since(b, comes, BY_SWAP, start_ns, err);
}

static int measure(struct serve_bench *b, struct brumate_error *err)
{
	auto_(bench_server_fini) struct bench_server one = BENCH_SERVER_EMPTY,
						     other = BENCH_SERVER_EMPTY;
	const unsigned rounds = b->b->options.rounds;
	int r = start(b, &one, err);

	for (unsigned i = 0; r == 0 && i < rounds; i++)
		r = wake_from_memory(b, &one, err);
	for (unsigned i = 0; r == 0 && i < rounds && b->b->options.dir; i++)
		r = wake_from_disk(b, &one, err);
	if (r == 0)
		r = suspend(&one, err);
	if (r == 0)
		r = start(b, &other, err);
	for (unsigned i = 0; r == 0 && i < rounds; i++) {
		r = swap(b, &other, &one, err);
		if (r == 0)
			r = swap(b, &one, &other, err);
	}
	return r;
}

/* ---- what was found ---- */

static int print_table(const struct serve_bench *b, struct brumate_error *err)
{
	static const struct column columns[] = { { "WHAT A CLIENT WAITS FOR", false },
						 { "FIRST", true },
						 { "FASTEST", true } };
	struct table t = TABLE_OF(columns);
	char size[WORD_BYTES], text[32];

	format_bytes(size, b->b->options.size_bytes);
	printf("A server with %s of device memory, which it checks for each answer.\n\n", size);
	for (size_t i = 0; i < WAITED_FOR__MAX; i++) {
		if (!b->measured[i].n)
			continue;
		table_add(&t, waits[i].title);
		snprintf(text, sizeof(text), "%.3f s", b->measured[i].first);
		table_add(&t, text);
		snprintf(text, sizeof(text), "%.3f s", b->measured[i].fastest);
		table_add(&t, text);
	}
	return bench_print_table(&t, stdout) ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static int print_as_json(const struct serve_bench *b, struct brumate_error *err)
{
	auto_json json_t *o = json_pack("{s:I,s:b}", "bytes", (json_int_t)b->b->options.size_bytes,
					"simulated", b->b->options.gpu != NULL);

	for (size_t i = 0; o && i < WAITED_FOR__MAX; i++)
		if (b->measured[i].n)
			json_object_set_new(o, waits[i].key,
					    json_pack("{s:f,s:f,s:i}", "first_s",
						      b->measured[i].first, "fastest_s",
						      b->measured[i].fastest, "rounds",
						      (int)b->measured[i].n));
	return o ? print_json(o, err) : brumate_fail(err, ENOMEM, "%m");
}

int bench_serve(struct bench *b, bool as_json, struct brumate_error *err)
{
	struct serve_bench s = { .b = b };
	int r = measure(&s, err);

	if (r < 0)
		return r;
	return as_json ? print_as_json(&s, err) : print_table(&s, err);
}
