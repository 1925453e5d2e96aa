// SPDX-License-Identifier: MIT
/* What the checkpoints of pods came to. See pod-counts.h. */
#include "service/pod-counts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"

static char *counts_dir(void)
{
	return path_format("%s/pods", path_state_dir());
}

/* The lock keeps two commands that end at once from counting as one. */
static int add_locked(const char *dir, const struct job_outcome *outcome)
{
	int r = mkdir_parents(dir, 0700);
	auto_close int fd = r < 0 ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (r < 0)
		return r;
	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		return -errno;
	return counts_add(dir, outcome);
}

void pod_count(const struct job_outcome *outcome)
{
	auto_free char *dir = counts_dir();
	int r = dir ? add_locked(dir, outcome) : -ENOMEM;

	if (r < 0)
		log_warn("a checkpoint of a pod is not counted: reason=\"%s\"", strerror(-r));
}

json_t *pod_counts(void)
{
	auto_free char *dir = counts_dir();

	return dir ? counts_read(dir) : NULL;
}
