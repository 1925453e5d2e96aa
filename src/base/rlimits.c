// SPDX-License-Identifier: MIT
/* See rlimits.h. */
#include "base/rlimits.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct rlimit files; /* as we found it; hard limit 0: not known */
static char score[16];	    /* of oom_score_adj, as we found it; empty: not known, or not changed */

/* proc(5): who has not CAP_SYS_RESOURCE may go down to the least that one who had it has set, at first 0. */
static const char *const scores[] = { "-900", "0" };
static const char score_path[] = "/proc/self/oom_score_adj";

static int write_score(const char *text)
{
	int fd = open(score_path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n < 0 ? -1 : 0;
}

static void read_score(void)
{
	int fd = open(score_path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, score, sizeof(score) - 1);

	if (fd >= 0)
		close(fd);
	score[n > 0 ? n : 0] = '\0';
}

void limits_lower_score(void)
{
	read_score();
	for (size_t i = 0; *score && i < sizeof(scores) / sizeof(scores[0]); i++)
		if (atoi(scores[i]) < atoi(score) && write_score(scores[i]) == 0)
			return;
	score[0] = '\0';
}

void limits_raise_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	files = limit;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

void limits_restore(void)
{
	if (*score)
		write_score(score);
	if (files.rlim_max)
		setrlimit(RLIMIT_NOFILE, &files);
}
