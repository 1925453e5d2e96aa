// SPDX-License-Identifier: MIT
/*
 * The vendor's tool for the simulated driver, reduced to what only the tool can do: "cuda-checkpoint --launch-job
 * COMMAND..." makes the file of a job and runs the command as its first member.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "job_file.h"

static int make_job_file(void)
{
	struct sim_job_file content = { .magic = JOB_FILE_MAGIC };
	int fd = memfd_create("job-file", 0);

	while (!content.identity)
		if (getrandom(&content.identity, sizeof(content.identity), 0) < 0)
			return -1;
	return fd >= 0 && write(fd, &content, sizeof(content)) == sizeof(content) ? fd : -1;
}

int main(int argc, char **argv)
{
	char path[32];
	int fd;

	if (argc < 3 || strcmp(argv[1], "--launch-job") != 0) {
		fprintf(stderr, "usage: cuda-checkpoint --launch-job COMMAND...\n");
		return 2;
	}
	fd = make_job_file();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd < 0 || setenv("CUDA_CHECKPOINT_JOB_FILE", path, 1) < 0) {
		perror("cuda-checkpoint: job file");
		return 1;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
