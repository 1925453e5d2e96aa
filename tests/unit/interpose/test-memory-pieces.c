// SPDX-License-Identifier: MIT
/*
 * How large the pieces of an allocation are, on a large GPU and on small ones; and that those side by side are let in
 * by one call of the driver, or by one each where it wants that.
 */
#include "job.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

/* One allocation in a process and on a machine of its own: its pieces, the last of which may be smaller. */
static void check_pieces(const char *vram_mib, uint64_t mib, uint64_t piece_mib, size_t n_pieces)
{
	struct agent_piece *pieces;
	CUdeviceptr ptr;
	uint64_t sum = 0;
	size_t n;
	int conn;

	job_start(vram_mib);
	CHECK(!cuMemAlloc_v2(&ptr, mib * MIB));
	conn = agent_connect();
	pieces = agent_list(conn, &n);
	CHECK(n == n_pieces);
	for (size_t i = 0; i < n; i++) {
		CHECK(pieces[i].va == ptr + sum);
		CHECK(pieces[i].len_bytes == piece_mib * MIB || i == n - 1);
		sum += pieces[i].len_bytes;
	}
	CHECK(sum == mib * MIB);
	free(pieces);
	close(conn);
	CHECK(!cuMemFree_v2(ptr));
}

static size_t count_pieces(void)
{
	int conn = agent_connect();
	size_t n;

	free(agent_list(conn, &n));
	close(conn);
	return n;
}

/* An allocation of two pieces is granted, goes and comes: its copies and their places take a call each. Where the next call
 * is refused, the next allocation is the driver's own. */
static void check_grants(const char *fault, size_t n_pieces)
{
	CUdeviceptr ptr, next;

	job_prepare("4096");
	setenv("BRUMATE_SIM_FAULT", fault, 1);
	CHECK(job_enter());
	CHECK(!cuMemAlloc_v2(&ptr, 258 * MIB));
	fill(ptr, 258 * MIB, 1);
	agent_cycle();
	CHECK(holds(ptr, 258 * MIB, 1));
	CHECK(!cuMemAlloc_v2(&next, 4 * MIB));
	CHECK(count_pieces() == n_pieces);
	CHECK(!cuMemFree_v2(ptr));
}

static void wait_for(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && !status);
}

static void run(const char *vram_mib, uint64_t mib, uint64_t piece_mib, size_t n_pieces)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		check_pieces(vram_mib, mib, piece_mib, n_pieces);
		exit(0);
	}
	wait_for(child);
}

static void run_grants(const char *fault, size_t n_pieces)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		check_grants(fault, n_pieces);
		exit(0);
	}
	wait_for(child);
}

int main(void)
{
	run("143771", 1024, 1024, 1);
	run("143771", 2562, 1024, 3);
	run("24576", 1000, 384, 3);
	run("4096", 514, 256, 3);
	run_grants("cuMemSetAccess:4:error=999", 2);
	run_grants("cuMemSetAccess:3:error=999", 3);
	return 0;
}
