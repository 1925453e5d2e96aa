// SPDX-License-Identifier: MIT
/*
 * The driver refuses any one call, at any point of taking memory away and bringing it back: what was
 * done is undone or done again, and in the end every byte is where it was.
 */
#include "job.h"
#include "sanitized.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	MIB = 1 << 20,
	N = 4,
	TRIES = 4,
	CYCLES = 3,
	NTH_MAX = 8,
	NTH_MAP_MAX = 18, /* of all pieces, of their copies, and of what these replace */
	NTH_STEP = SANITIZED_THREADS ? 3 : 1, /* which call it is is no matter of threads */
	STACK_BYTES = 4096
};

static const size_t sizes[N] = { 3000, MIB / 2, 3 * MIB, 4 * MIB };

static const char *const calls[] = {
	"cuMemUnmap",
	"cuMemRelease",
	"cuMemMap",
	"cuMemSetAccess",
	"cuMemCreate",
	"cuMemAddressReserve",
	"cuMemAddressFree",
	"cuMemcpyDtoDAsync_v2",
	"cuCtxSynchronize",
	"cuCtxPushCurrent_v2",
	"cuCtxGetLimit",
	"cuCtxSetLimit",
	"cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle",
};

/* Asks until it is done; the fault comes once. */
static int insist(int conn, enum agent_op op, struct agent_reply *reply)
{
	int r = -EIO;

	for (int i = 0; i < TRIES && r < 0; i++)
		r = op == AGENT_GATE ? agent_gate(conn, reply) : agent_do(conn, op, reply);
	return r;
}

static bool move(int conn, enum agent_op op, struct parked *parked)
{
	struct agent_request request = { .op = op, .n = (uint32_t)parked->n };
	struct agent_reply reply;

	for (size_t i = 0; i < parked->n; i++)
		request.ids[i] = parked->pieces[i].id;
	return agent_ask(conn, &request, &reply, parked->fds, parked->n) == 0;
}

static void bring_back(int conn, struct parked *parked)
{
	struct agent_reply reply;
	int tries = 0;

	while (!move(conn, AGENT_MAP, parked))
		CHECK(++tries < TRIES);
	/* One that failed in the middle of an exchange may be away again. */
	while (insist(conn, AGENT_OWN, &reply) < 0 || reply.gate == AGENT_GATE_UNMAPPED ||
	       reply.n) {
		CHECK(++tries < 2 * TRIES);
		move(conn, AGENT_MAP, parked);
	}
	CHECK(insist(conn, AGENT_OPEN, &reply) == 0);
	CHECK(reply.gate == AGENT_GATE_OPEN);
}

/* One cycle; on any failure what the engine does: back as it was. True if it went through. */
static bool cycle(void)
{
	int conn = agent_connect();
	struct agent_reply reply;
	struct parked parked = { 0 };
	bool unmapped = false;

	CHECK(insist(conn, AGENT_GATE, &reply) == 0);
	parked.pieces = agent_list(conn, &parked.n);
	CHECK(parked.n <= AGENT_PIECES_MAX);
	parked.fds = calloc(parked.n + 1, sizeof(int));
	CHECK(parked.fds);
	if (move(conn, AGENT_EXPORT, &parked)) {
		unmapped = agent_do(conn, AGENT_UNMAP, &reply) == 0;
		bring_back(conn, &parked);
	} else {
		parked.n = 0;
		CHECK(insist(conn, AGENT_OPEN, &reply) == 0);
	}
	parked_free(&parked);
	close(conn);
	return unmapped;
}

static CUdeviceptr allocate(size_t bytes)
{
	CUdeviceptr ptr = 0;

	for (int i = 0; i < TRIES && cuMemAlloc_v2(&ptr, bytes); i++)
		;
	CHECK(ptr);
	return ptr;
}

/* One handle mapped twice, as a program of its own does; in part, so that a copy needs a place. */
static CUdeviceptr allocate_aliased(size_t bytes)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemAccessDesc desc = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va = 0;
	int tries = 0;

	while (cuMemCreate(&handle, bytes, &prop, 0))
		CHECK(++tries < TRIES);
	while (cuMemAddressReserve(&va, bytes, 0, 0, 0))
		CHECK(++tries < TRIES);
	for (size_t at = 0; at < bytes; at += bytes / 2)
		while (cuMemMap(va + at, bytes / 2, at, handle, 0))
			CHECK(++tries < TRIES);
	while (cuMemSetAccess(va, bytes, &desc, 1))
		CHECK(++tries < TRIES);
	return va;
}

static void set_stack_limit(void)
{
	int tries = 0;

	while (cuCtxSetLimit(CU_LIMIT_STACK_SIZE, STACK_BYTES))
		CHECK(++tries < TRIES);
}

static size_t stack_limit(void)
{
	size_t limit = 0;
	int tries = 0;

	while (cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE))
		CHECK(++tries < TRIES);
	return limit;
}

static void run(const char *call, int nth)
{
	CUdeviceptr ptr[N];
	char fault[96];
	int done = 0;

	snprintf(fault, sizeof(fault), "%s:%d:error=%d", call, nth,
		 nth % 2 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY);
	job_prepare("512");
	setenv("BRUMATE_SIM_FAULT", fault, 1);

	CUcontext ctx = job_enter();

	CHECK(ctx);
	set_stack_limit();
	for (unsigned int i = 0; i < N; i++) {
		ptr[i] = i + 1 < N ? allocate(sizes[i]) : allocate_aliased(sizes[i]);
		fill(ptr[i], sizes[i], i);
	}
	for (int i = 0; i < CYCLES; i++)
		done += cycle();
	CHECK(done);
	CHECK(stack_limit() == STACK_BYTES);
	for (unsigned int i = 0; i < N; i++)
		CHECK(holds(ptr[i], sizes[i], i));
}

int main(void)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		const int most = strcmp(calls[i], "cuMemMap") ? NTH_MAX : NTH_MAP_MAX;

		for (int nth = 1; nth <= most; nth += NTH_STEP) {
			int status;
			pid_t child = fork();

			CHECK(child >= 0);
			if (!child) {
				run(calls[i], nth);
				exit(0);
			}
			CHECK(waitpid(child, &status, 0) == child);
			if (status)
				fprintf(stderr, "%s, call %d\n", calls[i], nth);
			CHECK(status == 0);
		}
	}
	return 0;
}
