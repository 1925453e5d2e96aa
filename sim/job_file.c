// SPDX-License-Identifier: MIT
/*
 * Jobs (driver 590): processes that CUDA_CHECKPOINT_JOB_FILE gives the same file. Each opens it when it initialises
 * the driver, and keeps it open. The members of a job share memory by legacy IPC over checkpoints (driver 610).
 *
 * What the vendor's tool writes into such a file is not published. Ours has an identity, which is kept in copies of
 * the file, and a count that every checkpoint raises: as with the vendor's, a copy from before a checkpoint cannot be
 * used for the restore.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "job_file.h"
#include "sim.h"

static int job_fd = -1;
static uint64_t identity, seen_saves;

static bool read_content(struct sim_job_file *ret)
{
	return pread(job_fd, ret, sizeof(*ret), 0) == sizeof(*ret) &&
	       !memcmp(ret->magic, JOB_FILE_MAGIC, sizeof(ret->magic));
}

void sim_job_file_open(void)
{
	const char *path = getenv("CUDA_CHECKPOINT_JOB_FILE");
	struct sim_job_file content;

	if (config_get()->driver < 590 || !path)
		return;
	job_fd = open(path, O_RDWR | O_CLOEXEC);
	if (job_fd >= 0 && read_content(&content))
		identity = content.identity;
	else
		cleanup_close(&job_fd);
}

void sim_job_file_close(void)
{
	cleanup_close(&job_fd);
	identity = 0;
}

uint64_t sim_job_file_identity(void)
{
	return identity;
}

/* By others: of two members of a job whose restores overlap, one fails. Whether it could be tried again is not known: not
 * here. Other calls wait for each other. */
CUresult sim_job_file_begin(bool restores)
{
	if (job_fd < 0)
		return CUDA_SUCCESS;
	while (flock(job_fd, LOCK_EX | (restores ? LOCK_NB : 0)) < 0)
		if (errno != EINTR)
			return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

void sim_job_file_end(void)
{
	if (job_fd >= 0)
		flock(job_fd, LOCK_UN);
}

CUresult sim_job_file_note_save(void)
{
	struct sim_job_file content;

	if (job_fd < 0)
		return CUDA_SUCCESS;
	if (!read_content(&content))
		return CUDA_ERROR_OPERATING_SYSTEM;
	seen_saves = ++content.saves;
	return pwrite(job_fd, &content, sizeof(content), 0) == sizeof(content)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_OPERATING_SYSTEM;
}

bool sim_job_file_is_current(void)
{
	struct sim_job_file content;

	return job_fd < 0 || (read_content(&content) && content.identity == identity &&
			      content.saves >= seen_saves);
}
