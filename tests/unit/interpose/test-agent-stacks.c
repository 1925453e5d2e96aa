// SPDX-License-Identifier: MIT
/*
 * The limit of the stacks of kernels is low while memory is away, and what the program had before its
 * gate opens, however that comes about.
 */
#include "job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { MIB = 1 << 20, OWN_LIMIT = 2048 };

/* Of an allocation, if somebody holds it. */
static size_t held_bytes(int dir, const char *name)
{
	auto_close int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	struct stat st;

	return fd >= 0 && !fstat(fd, &st) && flock(fd, LOCK_EX | LOCK_NB) < 0 ? (size_t)st.st_size
									      : 0;
}

/* Bytes in use on the GPU, without a call of the driver: that would wait for the gate. */
static size_t used_bytes(void)
{
	char path[128];
	struct dirent *entry;
	size_t used = 0;

	snprintf(path, sizeof(path), "%s/gpu0", getenv("BRUMATE_SIM_DIR"));
	auto_closedir DIR *dir = opendir(path);
	CHECK(dir);
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			used += held_bytes(dirfd(dir), entry->d_name);
	return used;
}

static size_t limit_of(CUcontext ctx)
{
	size_t limit = 0;

	CHECK(!cuCtxPushCurrent_v2(ctx));
	CHECK(!cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	CHECK(!cuCtxPopCurrent_v2(NULL));
	return limit;
}

/* A primary context as it is, another with a limit of the program's own, which it changes later. */
static CUcontext primary, second;

static void start(const char *fault)
{
	CUdeviceptr ptr;

	job_prepare("512");
	setenv("BRUMATE_SIM_STACKS_MIB", "16", 1);
	if (fault)
		setenv("BRUMATE_SIM_FAULT", fault, 1);
	primary = job_enter();
	CHECK(!cuCtxCreate_v2(&second, 0, 0));
	CHECK(!cuCtxSetLimit(CU_LIMIT_STACK_SIZE, OWN_LIMIT));
	CHECK(!cuCtxPopCurrent_v2(NULL));
	CHECK(!cuMemAlloc_v2(&ptr, 4 * MIB));
}

static void check_limits(size_t of_second)
{
	CHECK(limit_of(primary) == 1024);
	CHECK(limit_of(second) == of_second);
}

/* What is not in pieces: the contexts and their stacks. */
static size_t kept_bytes(const struct parked *parked)
{
	size_t used = used_bytes();

	for (size_t i = 0; i < parked->n; i++)
		used -= parked->pieces[i].len_bytes;
	return used;
}

static void test_lowered_and_back(void)
{
	size_t before, limit = OWN_LIMIT;

	start(NULL);
	before = used_bytes();
	for (int i = 0; i < 3; i++) {
		int conn = agent_connect();
		struct parked parked = agent_park(conn);
		struct agent_reply reply;

		CHECK(kept_bytes(&parked) <= 2 * 8 * MIB + 2 * MIB);
		/* Again, as for a peer that lost the answer. */
		CHECK(agent_do(conn, AGENT_UNMAP, &reply) == 0);
		agent_unpark(conn, &parked);
		CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
		close(conn);
		check_limits(limit);
		CHECK(used_bytes() == before);
		before += 16 * MIB;
		limit += 1024; /* asked for anew each time */
		CHECK(!cuCtxPushCurrent_v2(second));
		CHECK(!cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit));
		CHECK(!cuCtxPopCurrent_v2(NULL));
	}
}

/* The calls after the program's are those that lower. */
static void test_not_lowered(void)
{
	start("cuCtxSetLimit:2:error=1,cuCtxSetLimit:3:error=1");
	agent_cycle();
	check_limits(OWN_LIMIT);
}

static int map(int conn, const struct parked *parked, struct agent_reply *reply)
{
	struct agent_request request = { .op = AGENT_MAP, .n = (uint32_t)parked->n };

	for (size_t i = 0; i < parked->n; i++)
		request.ids[i] = parked->pieces[i].id;
	return agent_ask(conn, &request, reply, parked->fds, parked->n);
}

/* Parks a program that @faults will not let have its room back, and says so to MAP. Returns the connection. */
static int park_without_room(const char *faults, struct parked *ret)
{
	struct agent_reply reply;
	int conn;

	start(faults);
	conn = agent_connect();
	*ret = agent_park(conn);
	CHECK(map(conn, ret, &reply) == -ENOMEM && reply.gate == AGENT_GATE_CLOSED);
	return conn;
}

/* Calls: the first is the program's, two lower, the fourth sets one context back and fails, the fifth the
 * other; the sixth lowers that again, and so on. */
static void test_no_room(void)
{
	struct agent_reply reply;
	struct parked parked;
	int conn = park_without_room("cuCtxSetLimit:4:error=2,cuCtxSetLimit:7:error=2,"
				     "cuCtxSetLimit:9:error=2,cuCtxSetLimit:10:error=2",
				     &parked);

	/* As a resume that fails does; the next one finds no room three times. */
	CHECK(agent_do(conn, AGENT_UNMAP, &reply) == 0);
	CHECK(kept_bytes(&parked) <= 2 * 8 * MIB + 2 * MIB);
	CHECK(map(conn, &parked, &reply) == -ENOMEM);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == -ENOMEM);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == -ENOMEM);
	CHECK(reply.gate == AGENT_GATE_CLOSED);
	agent_unpark(conn, &parked);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
	check_limits(OWN_LIMIT);
}

/* Nobody is told what failed when the peer is gone: the program goes on, and the next gate puts it right. */
static void test_hung_up(void)
{
	struct agent_reply reply;
	struct parked parked;
	int conn = park_without_room("cuCtxSetLimit:4:error=2,cuCtxSetLimit:6:error=2", &parked);

	close(conn);
	CHECK(!cuCtxSynchronize()); /* waits for the gate */
	CHECK((limit_of(primary) == 1024) != (limit_of(second) == OWN_LIMIT));
	conn = agent_connect();
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
	check_limits(OWN_LIMIT);
	parked_free(&parked);
}

/* A limit that the program set meanwhile is the one that stays. */
static void test_changed_meanwhile(void)
{
	struct agent_reply reply;
	struct parked parked;
	int conn = park_without_room("cuCtxSetLimit:4:error=2,cuCtxSetLimit:5:error=2,"
				     "cuCtxSetLimit:6:error=2,cuCtxSetLimit:7:error=2",
				     &parked);

	close(conn);
	CHECK(!cuCtxSynchronize());
	for (int i = 0; i < 2; i++) {
		CHECK(!cuCtxPushCurrent_v2(i ? primary : second));
		CHECK(!cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
		CHECK(!cuCtxPopCurrent_v2(NULL));
	}
	conn = agent_connect();
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OWN, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
	agent_cycle();
	CHECK(limit_of(primary) == 4096 && limit_of(second) == 4096);
	parked_free(&parked);
}

int main(void)
{
	static void (*const tests[])(void) = { test_lowered_and_back, test_not_lowered,
					       test_no_room, test_hung_up, test_changed_meanwhile };

	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		int status;
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			tests[i]();
			exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (status)
			fprintf(stderr, "test %zu\n", i);
		CHECK(status == 0);
	}
	return 0;
}
