// SPDX-License-Identifier: MIT
/* Work that a child does: its answer, what it writes, what it has open, and that one that hangs is left behind in time. */
#include "process/aside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"

struct work {
	int open; /* descriptors that it has */
	char path[64];
};

static int succeed(void *arg)
{
	struct work *w = arg;

	for (int fd = 0; fd < 1024; fd++)
		w->open += fcntl(fd, F_GETFD) >= 0;
	return 0;
}

static int refuse(void *arg)
{
	(void)arg;
	return ENOTDIR;
}

static int die(void *arg)
{
	(void)arg;
	abort();
}

/* Nobody writes to it. */
static int open_fifo(void *arg)
{
	struct work *w = arg;

	return open(w->path, O_RDONLY) < 0 ? errno : 0;
}

int main(void)
{
	struct work *w = aside_memory(sizeof(*w));

	CHECK(w && w->open == 0);
	CHECK(aside_run(succeed, w, -1, 10000) == 0 && w->open == 0);
	CHECK(aside_run(succeed, w, 1, 10000) == 0 && w->open == 1);
	CHECK(aside_run(refuse, NULL, -1, 10000) == -ENOTDIR);
	CHECK(aside_run(die, NULL, -1, 10000) == -EIO);

	snprintf(w->path, sizeof(w->path), "/tmp/brumate-aside-%d", getpid());
	CHECK(mkfifo(w->path, 0600) == 0);
	uint64_t start_ns = clock_now_ns();
	CHECK(aside_run(open_fifo, w, -1, 200) == -ETIMEDOUT);
	CHECK(clock_since_s(start_ns) < 5);
	CHECK(unlink(w->path) == 0);
	aside_free(w, sizeof(*w));
	aside_free(NULL, sizeof(*w));
	return 0;
}
