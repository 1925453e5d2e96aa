// SPDX-License-Identifier: MIT
/* The agent: memory goes and comes back, and whatever the peer does the job is not harmed. */
#include "job.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/packet.h"

enum { MIB = 1 << 20 };

struct kept {
	CUdeviceptr ptr;
	size_t bytes;
};

static const size_t sizes[] = { 1,   8,		  512,	   4096,    100000,
				MIB, 2 * MIB - 8, 2 * MIB, 5 * MIB, 514 * MIB };
enum { N = sizeof(sizes) / sizeof(*sizes) };

static void make(struct kept kept[N])
{
	for (size_t i = 0; i < N; i++) {
		kept[i].bytes = sizes[i];
		CHECK(cuMemAlloc_v2(&kept[i].ptr, sizes[i]) == CUDA_SUCCESS);
		fill(kept[i].ptr, sizes[i], (unsigned int)i);
	}
}

static void verify(const struct kept kept[N])
{
	for (size_t i = 0; i < N; i++)
		CHECK(holds(kept[i].ptr, kept[i].bytes, (unsigned int)i));
}

static void let_go(struct kept kept[N])
{
	for (size_t i = 0; i < N; i++)
		CHECK(cuMemFree_v2(kept[i].ptr) == CUDA_SUCCESS);
}

static void test_hello(void)
{
	int conn = agent_connect();
	struct agent_reply reply;

	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	CHECK(reply.gate == AGENT_GATE_OPEN);
	CHECK(reply.managed_bytes >= 514 * MIB);
	CHECK(reply.driver_bytes == 0);
	close(conn);
}

/* What may not be done with an open gate, or with memory away. */
static void test_order(const struct kept kept[N])
{
	int conn = agent_connect();
	struct agent_reply reply;
	struct parked parked;

	CHECK(agent_do(conn, AGENT_UNMAP, &reply) == -EPERM);
	CHECK(agent_do(conn, AGENT_MAP, &reply) == -EPERM);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == -EPERM);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	parked = agent_park(conn);
	CHECK(parked.n >= 5); /* slabs, 2 MiB, 5 MiB, 514 MiB in two */
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == -EBUSY);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == -EBUSY);
	agent_unpark(conn, &parked);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	verify(kept);
	close(conn);
}

/* A peer that is gone leaves an open gate, or one that the next peer finds closed. */
static void test_hang_up(const struct kept kept[N])
{
	struct agent_reply reply;
	struct parked parked;
	int conn;

	for (int detach = 0; detach < 2; detach++) {
		conn = agent_connect();
		CHECK(agent_gate(conn, &reply) == 0);
		if (detach)
			CHECK(agent_do(conn, AGENT_DETACH, &reply) == 0);
		close(conn);
		conn = agent_connect();
		CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
		CHECK(reply.gate == (detach ? AGENT_GATE_CLOSED : AGENT_GATE_OPEN));
		CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
		close(conn);
		verify(kept);
	}
	conn = agent_connect();
	parked = agent_park(conn);
	close(conn);
	conn = agent_connect();
	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	CHECK(reply.gate == AGENT_GATE_UNMAPPED);
	agent_unpark(conn, &parked);
	close(conn);
	verify(kept);
}

static enum agent_gate gate_now(void)
{
	int conn = agent_connect();
	struct agent_reply reply;

	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	CHECK(agent_do(conn, AGENT_DETACH, &reply) == 0);
	close(conn);
	return (enum agent_gate)reply.gate;
}

static bool is_of_neighbour(enum agent_op op)
{
	return op == AGENT_LEND || op == AGENT_TAKE_BACK || op == AGENT_LEND_EVENT ||
	       op == AGENT_TAKE_EVENT_BACK;
}

/* A neighbour asks once, and whenever it hangs up the gate is as it was. */
static void test_neighbours(void)
{
	int conn = agent_connect();
	struct agent_reply reply;

	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_DETACH, &reply) == 0);
	close(conn);
	for (enum agent_op op = AGENT_HELLO; op <= AGENT_COPY; op++) {
		if (!is_of_neighbour(op))
			continue;
		conn = agent_connect();
		CHECK(agent_do(conn, op, &reply) == -EBADMSG);
		CHECK(recv(conn, &reply, sizeof(reply), 0) == 0);
		close(conn);
		CHECK(gate_now() == AGENT_GATE_CLOSED);
	}
	conn = agent_connect();
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
}

/* In the middle of bringing memory back: the next peer goes on where this one was. */
static void test_hang_up_later(const struct kept kept[N])
{
	int conn = agent_connect();
	struct parked parked = agent_park(conn);
	struct parked first = { parked.pieces, parked.fds, 1 };
	struct agent_reply reply;

	agent_map(conn, &first);
	close(conn);
	CHECK(gate_now() == AGENT_GATE_UNMAPPED);
	conn = agent_connect();
	agent_map(conn, &parked);
	close(conn);
	/* All is there, if not its own yet: the program goes on, and the peer after makes it so. */
	verify(kept);
	CHECK(gate_now() == AGENT_GATE_OPEN);
	conn = agent_connect();
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == 0 && reply.n == 0);
	close(conn);
	CHECK(gate_now() == AGENT_GATE_OPEN);
	parked_free(&parked);
	verify(kept);
}

/* Each piece comes while the next is still away; the gate waits for the last. */
static void test_one_by_one(const struct kept kept[N])
{
	int conn = agent_connect();
	struct parked parked = agent_park(conn);
	struct agent_reply reply;

	for (size_t i = 0; i < parked.n; i++) {
		struct parked one = { parked.pieces + i, parked.fds + i, 1 };

		CHECK(agent_do(conn, AGENT_OPEN, &reply) == -EBUSY);
		CHECK(agent_do(conn, AGENT_OWN, &reply) == -EBUSY);
		agent_map(conn, &one);
	}
	parked_free(&parked);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == 0 && reply.n == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
	verify(kept);
}

/* Keeps the GPU busy. */
static void spin(uint64_t ns)
{
	static const char image[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
				    ".visible .entry brumate_spin_ns(.param .u64 n) { ret; }\n";
	void *params[] = { &ns };
	CUmodule module;
	CUfunction fn;

	CHECK(!cuModuleLoadData(&module, image));
	CHECK(!cuModuleGetFunction(&fn, module, "brumate_spin_ns"));
	CHECK(!cuLaunchKernel(fn, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

/* Work that outlasts the deadline goes on, and so does the program. */
static void test_busy(void)
{
	struct agent_request request = { .op = AGENT_GATE, .timeout_ms = 20 };
	struct agent_reply reply;
	int conn = agent_connect();

	spin(400000000);
	CHECK(agent_ask(conn, &request, &reply, NULL, 0) == -ETIMEDOUT);
	CHECK(reply.gate == AGENT_GATE_OPEN);
	CHECK_STR(reply.text, "work on the GPU did not end in time");
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
}

/* A client that dies while it waits for work to end keeps the program back no longer. */
static void test_dead_client(void)
{
	struct agent_request request = { .op = AGENT_GATE, .timeout_ms = 60000 };
	const uint64_t soon_ns = deadline_in_ms(8000);
	int conn = agent_connect();

	spin(10000000000);
	agent_send(conn, &request);
	close(conn);
	CHECK(gate_now() == AGENT_GATE_OPEN);
	CHECK(deadline_left_ms(soon_ns) > 0);
	CHECK(!cuCtxSynchronize());
}

/* Requests that are not: the agent hangs up, and serves the next peer. */
static void test_garbage(void)
{
	struct agent_request request = { .version = AGENT_VERSION, .op = AGENT_EXPORT };
	struct agent_reply reply;
	char buf[sizeof(request) + 64];
	int conn = agent_connect();

	for (size_t len = 1; len < sizeof(buf); len += 37) {
		memset(buf, 0xff, sizeof(buf));
		CHECK(send(conn, buf, len, MSG_NOSIGNAL) == (ssize_t)len);
		CHECK(recv(conn, &reply, sizeof(reply), 0) == 0);
		close(conn);
		conn = agent_connect();
	}
	request.op = 77;
	CHECK(agent_ask(conn, &request, &reply, NULL, 0) == -EOPNOTSUPP);
	request.op = AGENT_EXPORT;
	request.n = 1;
	request.ids[0] = 1ull << 60;
	CHECK(agent_ask(conn, &request, &reply, NULL, 1) == -ENOENT);
	request.op = AGENT_MAP;
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_ask(conn, &request, &reply, NULL, 0) == -EBADMSG);
	close(conn);
}

/* Sound packets with any operation, but the one that lets memory go, and any numbers in them. */
static void test_random(const struct kept kept[N])
{
	unsigned int state = 4711;
	struct agent_reply reply;
	int conn = agent_connect();

	for (int i = 0; i < 2000; i++) {
		struct agent_request request = { .version = AGENT_VERSION,
						 .op = (uint32_t)rand_r(&state) % 16,
						 .n = (uint32_t)rand_r(&state) % 6,
						 .timeout_ms = (uint32_t)rand_r(&state) };
		int items[AGENT_PIECES_MAX];
		struct packet_fds fds = { items, AGENT_PIECES_MAX };

		for (int k = 0; k < 6; k++)
			request.ids[k] = (uint64_t)rand_r(&state) % (k % 2 ? 40 : UINT64_MAX);
		if (request.op == AGENT_UNMAP)
			continue;
		CHECK(send(conn, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request));
		CHECK(packet_receive(conn, &reply, sizeof(reply), &fds, DEADLINE_NEVER) ==
		      sizeof(reply));
		CHECK(reply.gate != AGENT_GATE_UNMAPPED && !reply.more);
		packet_close_fds(items, fds.n);
		if (request.op != AGENT_DETACH && !is_of_neighbour((enum agent_op)request.op))
			continue;
		close(conn);
		conn = agent_connect();
	}
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
	verify(kept);
}

int main(void)
{
	struct kept kept[N];

	job_start("2048");
	make(kept);
	test_hello();
	test_order(kept);
	test_hang_up(kept);
	test_neighbours();
	test_hang_up_later(kept);
	test_one_by_one(kept);
	test_busy();
	test_dead_client();
	test_garbage();
	test_random(kept);
	agent_cycle();
	verify(kept);
	CHECK(cuMemFree_v2(kept[N - 1].ptr) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&kept[N - 1].ptr, kept[N - 1].bytes = MIB) == CUDA_SUCCESS);
	fill(kept[N - 1].ptr, MIB, N - 1);
	for (int i = 0; i < 50; i++) {
		agent_cycle();
		verify(kept);
	}
	let_go(kept);
	agent_cycle();
	return 0;
}
