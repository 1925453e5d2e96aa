// SPDX-License-Identifier: MIT
/* A scratch directory for one test; the test removes it. */
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"

static char scratch[PATH_MAX];

static inline int new_scratch(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(scratch, sizeof(scratch), "%s/brumate-base-XXXXXX", tmp ? tmp : "/tmp");
	CHECK(mkdtemp(scratch));
	int fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static inline void remove_scratch(void)
{
	CHECK(remove_tree(AT_FDCWD, scratch) == 0);
	CHECK(access(scratch, F_OK) < 0);
}

static inline void put_text(int dir_fd, const char *name, const char *text)
{
	int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && fd_write_full(fd, text, strlen(text)) == 0 && close(fd) == 0);
}
