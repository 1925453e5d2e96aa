// SPDX-License-Identifier: MIT
/* A shim without a program around it: its job is in a scratch directory, its root may be any process. */
#pragma once

#include <errno.h>

#include "base/clock.h"
#include "check.h"
#include "job/scratch.h"
#include "shim/shim.h"

static inline void shim_of(struct shim *s, const char *name, enum job_state state)
{
	static const char *const argv[] = { "true", NULL };
	const struct job_spec spec = { .name = name, .argv = (char *const *)argv, .cwd = "/" };

	*s = (struct shim){ .lock = PTHREAD_MUTEX_INITIALIZER,
			    .vault = VAULT_EMPTY,
			    .life_fds = { -1, -1 },
			    .lock_fd = -1,
			    .need_fd = -1,
			    .loop = calloc(1, sizeof(struct loop)) };
	condition_init(&s->freed);
	CHECK(s->loop && loop_init(s->loop) == 0);
	CHECK(job_create(&s->job, &spec, NULL) == 0);
	s->job.state = state;
	CHECK(job_save(&s->job, NULL) == 0);
}

static inline void shim_of_fini(struct shim *s)
{
	loop_fini(s->loop);
	free(s->loop);
	cleanup_close(&s->life_fds[0]);
	cleanup_close(&s->life_fds[1]);
	job_fini(&s->job);
}
