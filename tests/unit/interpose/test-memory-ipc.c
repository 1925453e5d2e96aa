// SPDX-License-Identifier: MIT
/* IPC handles of our memory and of events, between two processes of one job. */
#include "job.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

enum { MIB = 1 << 20, N = 3 };

static const size_t sizes[N] = { 5000, 3 * MIB, 300 * MIB };

static void tell(int peer, const void *what, size_t len)
{
	CHECK(fd_write_full(peer, what, len) == 0);
}

static void hear(int peer, void *ret, size_t len)
{
	CHECK(fd_read_full(peer, ret, len) == (ssize_t)len);
}

static void pass(int peer)
{
	tell(peer, "x", 1);
}

static void await(int peer)
{
	char c;

	hear(peer, &c, 1);
}

static int gate_says(void)
{
	struct agent_reply reply;
	int conn = agent_connect(), r = agent_gate(conn, &reply);

	close(conn);
	return r;
}

static void check_opened(CUdeviceptr ptr, size_t bytes)
{
	CUdeviceptr base;
	size_t size;

	CHECK(!cuMemGetAddressRange_v2(&base, &size, ptr + bytes / 2));
	CHECK(base == ptr && size == bytes);
	CHECK(cuMemFree_v2(ptr) == CUDA_ERROR_INVALID_VALUE);
}

/* By the descriptor that the agent of its maker gives. */
static void bring_alias(int conn, const struct agent_alias *alias)
{
	struct agent_request export = { .op = AGENT_EXPORT, .n = 1, .ids = { alias->piece } };
	struct agent_request map = { .op = AGENT_MAP, .n = 1, .ids = { alias->id } };
	struct agent_reply reply;
	int maker = agent_connect_to(alias->pid), fd;

	CHECK(alias->pid == getppid());
	CHECK(agent_ask(maker, &export, &reply, &fd, 1) == 0);
	CHECK(agent_ask(conn, &map, &reply, &fd, 1) == 0);
	close(maker);
	close(fd);
}

/* As many as there are pieces, none of which is told as this process's own. They go and come, and are what they
 * were. */
static void check_aliases(const CUdeviceptr ptr[N])
{
	struct agent_request unmap = { .op = AGENT_UNMAP, .n = 1 };
	struct agent_reply reply, told;
	int conn = agent_connect();
	size_t n = 0;

	CHECK(agent_gate(conn, &reply) == 0);
	free(agent_list(conn, &n));
	CHECK(n == 0);
	CHECK(agent_do(conn, AGENT_ALIASES, &told) == 0 && told.n >= N && told.token);
	CHECK(agent_ask(conn, &unmap, &reply, NULL, 0) == 0);
	CHECK(reply.gate == AGENT_GATE_UNMAPPED);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == -EBUSY);
	for (unsigned int i = 0; i < told.n; i++)
		bring_alias(conn, &told.aliases[i]);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
	for (unsigned int i = 0; i < N; i++)
		CHECK(holds(ptr[i], sizes[i], i + 10));
}

static bool shares(void)
{
	struct agent_reply reply;
	int conn = agent_connect();

	CHECK(agent_do(conn, AGENT_HELLO, &reply) == 0);
	close(conn);
	return reply.n & AGENT_SHARES;
}

/* What the other one has of it is told by that one alone. */
static void give_event(int peer)
{
	CUipcEventHandle handle, again;
	CUevent event, plain;

	CHECK(!cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	CHECK(cuIpcGetEventHandle(&handle, plain) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(!cuEventDestroy_v2(plain));
	CHECK(!cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	CHECK(cuIpcGetEventHandle(NULL, event) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuIpcGetEventHandle(&handle, event) && !cuIpcGetEventHandle(&again, event));
	CHECK(!memcmp(&handle, &again, sizeof(handle)));
	CHECK(!shares());
	agent_cycle();
	CHECK(!cuEventRecord(event, NULL));
	tell(peer, &handle, sizeof(handle));
	await(peer);
	CHECK(!shares());
	CHECK(!cuEventDestroy_v2(event));
	CHECK(cuEventDestroy_v2(event) == CUDA_ERROR_INVALID_HANDLE);
	pass(peer);
	await(peer);
}

/* The driver gives names of events that were closed anew; the program is not to have one for two events. */
static void make_others(const CUevent *event, const CUevent *again)
{
	CUevent others[64];

	for (int i = 0; i < 64; i++) {
		CHECK(!cuEventCreate(&others[i], CU_EVENT_DISABLE_TIMING));
		CHECK(others[i] != *event && others[i] != *again);
	}
	for (int i = 0; i < 64; i++)
		CHECK(!cuEventDestroy_v2(others[i]));
}

/* What is noted where a graph takes it in; the simulated driver has no such nodes. */
static void stays_in_a_graph(CUipcEventHandle handle)
{
	CUevent event;
	CUstream stream;
	CUgraph graph;

	CHECK(!cuIpcOpenEventHandle(&event, handle) && !shares());
	CHECK(!cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(!cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	cuStreamWaitEvent(stream, event, 0);
	cuStreamEndCapture(stream, &graph);
	CHECK(shares());
	CHECK(!cuStreamDestroy_v2(stream) && !cuEventDestroy_v2(event) && !shares());
}

static void take_event(int peer)
{
	CUipcEventHandle handle, none;
	CUevent event, again;

	hear(peer, &handle, sizeof(handle));
	CHECK(cuIpcOpenEventHandle(NULL, handle) == CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 2; i++) {
		CHECK(!cuIpcOpenEventHandle(&event, handle));
		CHECK(!shares());
		CHECK(!cuStreamWaitEvent(NULL, event, 0) && !cuEventSynchronize(event));
		CHECK(!cuEventDestroy_v2(event));
	}
	CHECK(!cuIpcOpenEventHandle(&event, handle) && !cuIpcOpenEventHandle(&again, handle));
	for (int i = 0; i < 2; i++) {
		agent_cycle();
		make_others(&event, &again);
		CHECK(!cuStreamWaitEvent(NULL, event, 0) && !cuEventSynchronize(event));
		CHECK(!cuEventRecord(event, NULL) && !cuEventSynchronize(event) &&
		      !cuEventQuery(event));
		CHECK(cuIpcGetEventHandle(&none, event) == CUDA_ERROR_INVALID_HANDLE);
	}
	/* One is closed while it is away, the other once it is back. */
	agent_cycle();
	CHECK(!cuEventDestroy_v2(again) && !cuEventSynchronize(event) && !cuEventDestroy_v2(event));
	CHECK(cuEventDestroy_v2(event) == CUDA_ERROR_INVALID_HANDLE);
	stays_in_a_graph(handle);
	CHECK(!cuIpcOpenEventHandle(&event, handle));
	agent_cycle();
	pass(peer);
	await(peer);
	CHECK(cuIpcOpenEventHandle(&event, handle) == CUDA_ERROR_INVALID_VALUE);
	memset(&none, 7, sizeof(none));
	CHECK(cuIpcOpenEventHandle(&event, none) == CUDA_ERROR_INVALID_VALUE);
	/* Its maker has destroyed it: there is nothing to wait for, and nobody to tell. */
	CHECK(!cuStreamWaitEvent(NULL, event, 0) && !cuEventSynchronize(event));
	CHECK(cuEventRecord(event, NULL) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(!cuDevicePrimaryCtxReset_v2(0));
	CHECK(!shares());
	pass(peer);
}

static void importer(int peer)
{
	CUipcMemHandle handles[N];
	CUdeviceptr ptr[N], again;

	job_enter();
	hear(peer, handles, sizeof(handles));
	for (unsigned int i = 0; i < N; i++) {
		CHECK(!cuIpcOpenMemHandle_v2(&ptr[i], handles[i],
					     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		CHECK(!cuIpcOpenMemHandle_v2(&again, handles[i],
					     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		CHECK(again == ptr[i]);
		check_opened(ptr[i], sizes[i]);
		CHECK(holds(ptr[i], sizes[i], i));
		fill(ptr[i], sizes[i], i + 10);
	}
	CHECK(gate_says() == 0);
	pass(peer);
	await(peer);
	check_aliases(ptr);
	for (unsigned int i = 0; i < N; i++)
		CHECK(!cuIpcCloseMemHandle(ptr[i]) && !cuIpcCloseMemHandle(ptr[i]));
	CHECK(cuIpcCloseMemHandle(ptr[0]) == CUDA_ERROR_INVALID_VALUE);
	CHECK(gate_says() == 0);
	agent_cycle();
	pass(peer);
	/* The memory is gone. */
	await(peer);
	CHECK(cuIpcOpenMemHandle_v2(&again, handles[0], 1) == CUDA_ERROR_INVALID_VALUE);
	memset((char *)&handles[0] + 8, 0xff, sizeof(handles[0]) - 8);
	CHECK(cuIpcOpenMemHandle_v2(&again, handles[0], 1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(gate_says() == 0);
	take_event(peer);
	exit(0);
}

static void exporter(int peer)
{
	CUipcMemHandle handles[N], inner;
	CUdeviceptr ptr[N], own;

	job_enter();
	for (unsigned int i = 0; i < N; i++) {
		CHECK(!cuMemAlloc_v2(&ptr[i], sizes[i]));
		fill(ptr[i], sizes[i], i);
		CHECK(!cuIpcGetMemHandle(&handles[i], ptr[i]));
		CHECK(!cuIpcGetMemHandle(&inner, ptr[i] + 100));
		CHECK(!memcmp(&inner, &handles[i], sizeof(inner)));
	}
	CHECK(cuIpcOpenMemHandle_v2(&own, handles[0], 1) == CUDA_ERROR_INVALID_CONTEXT);
	/* Handles nobody opened are no obstacle, and good afterwards. */
	agent_cycle();
	tell(peer, handles, sizeof(handles));
	await(peer);
	for (unsigned int i = 0; i < N; i++)
		CHECK(holds(ptr[i], sizes[i], i + 10));
	CHECK(gate_says() == 0);
	pass(peer);
	await(peer);
	CHECK(gate_says() == 0);
	agent_cycle();
	for (unsigned int i = 0; i < N; i++)
		CHECK(holds(ptr[i], sizes[i], i + 10) && !cuMemFree_v2(ptr[i]));
	pass(peer);
	give_event(peer);
}

int main(void)
{
	int pair[2], status;
	pid_t child;

	job_prepare("1024");
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	CHECK(child >= 0);
	if (!child)
		importer(pair[1]);
	close(pair[1]);
	exporter(pair[0]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
