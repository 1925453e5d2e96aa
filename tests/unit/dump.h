// SPDX-License-Identifier: MIT
/* A whole dump, for tests and measurements that have nothing to do while CRIU comes up. */
#pragma once

#include "criu/criu.h"

static inline int dump_tree(const struct criu_program *program, const struct criu_options *options,
			    struct criu_result *ret, struct brumate_error *err)
{
	auto_(criu_dump_free) struct criu_dump *d = NULL;
	int r = criu_dump_start(&d, program, options, err);

	return r < 0 ? r : criu_dump_run(d, ret, err);
}
