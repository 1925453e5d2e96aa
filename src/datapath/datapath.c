// SPDX-License-Identifier: MIT
/* What a data path owns. See datapath.h. */
#include "datapath/datapath.h"

#include <stdlib.h>

void datapath_agent_fini(struct datapath_agent *a)
{
	for (size_t i = 0; a->fds && i < a->n_pieces; i++)
		cleanup_close(&a->fds[i]);
	free(a->fds);
	free(a->pieces);
	a->fds = NULL;
	a->pieces = NULL;
	a->n_pieces = 0;
}

void datapath_agent_unshare(struct datapath_agent *a)
{
	for (size_t i = 0; i < a->n_loans; i++)
		cleanup_close(&a->loans[i].fd);
	free(take_ptr(&a->loans));
	free(take_ptr(&a->aliases));
	a->n_loans = a->n_aliases = 0;
}

void datapath_drop_agents(struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++) {
		agent_detach(&d->agents[i].agent);
		datapath_agent_fini(&d->agents[i]);
		datapath_agent_unshare(&d->agents[i]);
	}
	free(d->agents);
	d->agents = NULL;
	d->n_agents = 0;
	free(d->gone);
	d->gone = NULL;
	d->n_gone = 0;
}

void datapath_fini(struct datapath *d)
{
	datapath_drop_agents(d);
	host_copy_fini(&d->saved);
	free(d->agent_dir);
	d->agent_dir = NULL;
}
