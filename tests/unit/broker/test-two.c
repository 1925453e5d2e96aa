// SPDX-License-Identifier: MIT
/* Two brokers in one process: each has its own pool, GPUs, sessions and end. The driver they share. */
#include "base/loop.h"
#include "pieces.h"
#include "broker/broker.h"

enum { BROKERS = 2, PIECES = 5 };

struct served {
	struct broker *broker;
	struct wire_server *server;
	struct broker_client client;
	char *libraries[2];
	pthread_t thread;
	int stop_fd;	  /* closed at the end */
	struct loop loop; /* of an owner that looks at nothing */
};

/* Accepts connections until it is told to stop. */
static void *accept_all(void *arg)
{
	struct served *s = arg;
	struct pollfd fds[] = { { .fd = wire_server_fd(s->server), .events = POLLIN },
				{ .fd = s->stop_fd, .events = POLLIN } };

	while (poll(fds, 2, -1) > 0 && !fds[1].revents)
		wire_server_accept(s->server);
	return NULL;
}

static int start(struct served *s, const char *name, uint64_t pool_bytes)
{
	struct broker_options o = { .pool_bytes = pool_bytes, .digests = true, .loop = &s->loop };
	auto_free char *path = path_format("%s/%s", node_dir, name);
	struct brumate_error err;
	int ends[2];

	s->libraries[0] = path_find_helper("sim/libcuda.so.1");
	s->libraries[1] = path_find_helper("sim/libnvidia-ml.so.1");
	o.libraries = (struct dev_libraries){ s->libraries[0], s->libraries[1], .simulated = true };
	CHECK(loop_init(&s->loop) == 0);
	must(broker_new(&s->broker, &o, &err), &err);
	struct wire_service service = broker_service(s->broker);
	int listen_fd = wire_listen(path, 0600, &err);
	must(listen_fd, &err);
	must(wire_server_new(&s->server, &service, listen_fd, &err), &err);
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	s->stop_fd = ends[0];
	CHECK(pthread_create(&s->thread, NULL, accept_all, s) == 0);
	s->client = BROKER_CLIENT_EMPTY;
	must(wire_connect(&s->client.wire, path, &err), &err);
	return ends[1];
}

static void stop(struct served *s, int stop_fd)
{
	broker_client_close(&s->client);
	close(stop_fd);
	pthread_join(s->thread, NULL);
	close(s->stop_fd);
	wire_server_free(s->server);
	CHECK(broker_drain(s->broker, 10000) == 0);
	broker_free(s->broker);
	loop_fini(&s->loop);
	free(s->libraries[0]);
	free(s->libraries[1]);
}

/* As session() and pool_bytes(), which ask the broker of this name. */
static void use(const struct served *s)
{
	b = s->client;
}

static uint64_t two(size_t i)
{
	return (i % 2 + 1) * 2 * MIB;
}

/* One that has looked meanwhile sees the other's segments as nobody's of its own. */
static void test_apart(struct served *s)
{
	struct set sets[BROKERS];

	for (int i = 0; i < BROKERS; i++) {
		use(&s[i]);
		if (i == 0)
			learn_gpus();
		auto_(transfer_client_close) struct transfer_client *client = session();
		sets[i] = set_make(PIECES, two, 2);
		CHECK(pool_bytes("leased_bytes") == 0);
		sets[i].request.digests = true;
		out(client, &sets[i]);
		set_check_copy(&sets[i]);
		set_check_digests(&sets[i]);
		CHECK(pool_bytes("leased_bytes") > 0);
		CHECK(pool_bytes("limit_bytes") == (int64_t)((i + 1) * 64 * MIB));
	}
	/* What one has copied out, the other takes in. */
	for (int i = 0; i < BROKERS; i++) {
		use(&s[!i]);
		auto_(transfer_client_close) struct transfer_client *client = session();
		set_close_fds(&sets[i]);
		in(client, &sets[i]);
		CHECK(sets[i].compared);
		set_check_device(&sets[i]);
		set_free(&sets[i]);
	}
}

/* The end of one is not the other's. */
static void test_end(struct served *s, const int *stop_fds)
{
	CHECK(wire_call(&s[0].client.wire, "io.brumate.broker.Quit", NULL, NULL, 0, NULL, NULL,
			NULL, deadline_in_ms(5000), NULL) == 0);
	uint64_t deadline_ns = deadline_in_ms(10000);
	while (!broker_is_unwanted(s[0].broker) && deadline_left_ms(deadline_ns))
		poll(NULL, 0, 5); /* the call is answered before it is wanted to end */
	CHECK(broker_is_unwanted(s[0].broker) && !broker_is_unwanted(s[1].broker));
	use(&s[1]);
	auto_(transfer_client_close) struct transfer_client *client = session();
	stop(&s[0], stop_fds[0]);
	driver_open(); /* closing GPUs takes this thread's context away */
	struct set set = set_make(PIECES, two, 2);
	out(client, &set);
	set_close_fds(&set);
	in(client, &set);
	set_check_device(&set);
	set_free(&set);
	transfer_client_close(take_ptr(&client));
	stop(&s[1], stop_fds[1]);
}

int main(void)
{
	struct served s[BROKERS];
	int stop_fds[BROKERS];

	node_start();
	driver_open();
	for (int i = 0; i < BROKERS; i++) {
		struct broker_info info;

		stop_fds[i] = start(&s[i], i ? "second" : "first", (i + 1) * 64 * MIB);
		CHECK(broker_client_info(&s[i].client, &info, NULL) == 0 && info.n_gpus == 2);
	}
	test_apart(s);
	test_end(s, stop_fds);
	node_end();
	return 0;
}
