// SPDX-License-Identifier: MIT
/* A state directory of its own, removed at the end, for tests that keep jobs. */
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"

static char scratch[PATH_MAX];

static inline void remove_scratch(void)
{
	CHECK(remove_tree(AT_FDCWD, scratch) == 0);
}

static inline void set_dir(const char *variable, const char *name)
{
	char path[PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/%s", scratch, name);
	CHECK(mkdir(path, 0700) == 0);
	CHECK(setenv(variable, path, 1) == 0);
}

static inline void new_scratch(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(scratch, sizeof(scratch), "%s/brumate-engine-XXXXXX", tmp ? tmp : "/tmp");
	CHECK(mkdtemp(scratch));
	set_dir("BRUMATE_STATE_DIR", "state");
	set_dir("BRUMATE_LOG_DIR", "log");
	set_dir("BRUMATE_RUNTIME_DIR", "run");
}

static inline bool is_there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}
