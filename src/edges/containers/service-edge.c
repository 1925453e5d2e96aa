// SPDX-License-Identifier: MIT
/* What this edge gives the methods and brumated: containers found by their names, and memory kept ready for them. */
#include <stdio.h>

#include "base/conf.h"
#include "edges/containers/find.h"
#include "edges/containers/prepare.h"
#include "service/service.h"

static int find(struct service_found *ret, const char *word, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct service_container found = { .init = PROC_ID_NONE };
	int r = conf_load(&conf, err);

	if (r == 0)
		r = service_find_container(&found, word, conf.container_state, err);
	if (r < 0)
		return r;
	ret->pid = found.init.pid;
	snprintf(ret->name, sizeof(ret->name), "%s", found.name);
	return 0;
}

extern const struct service_edge containers_service_edge;
const struct service_edge containers_service_edge = { .find = find,
						      .start = container_prepare_start };
