// SPDX-License-Identifier: MIT
/* How large the pieces of an allocation are, on a large GPU and on small ones. */
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

static void run(const char *vram_mib, uint64_t mib, uint64_t piece_mib, size_t n_pieces)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		check_pieces(vram_mib, mib, piece_mib, n_pieces);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
}

int main(void)
{
	run("143771", 1024, 1024, 1);
	run("143771", 2562, 1024, 3);
	run("24576", 1000, 384, 3);
	run("4096", 514, 256, 3);
	return 0;
}
