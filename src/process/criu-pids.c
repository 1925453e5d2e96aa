// SPDX-License-Identifier: MIT
/* CRIU says only that some number is taken; this says which, and by whom, before anything starts. */
#include "base/cleanup.h"
#include "base/fd.h"
#include "process/criu-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static int refuse_taken(pid_t pid, struct brumate_error *err)
{
	char path[32];
	auto_free char *comm = NULL;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	if (file_read(AT_FDCWD, path, 4096, &comm, NULL) < 0)
		return 0;
	comm[strcspn(comm, "\n")] = '\0';
	brumate_fail(err, EEXIST, "process id %d of the checkpoint is in use (%s)", pid, comm);
	brumate_hint(err, "%s", criu_hint_for("Can't fork for"));
	return -EEXIST;
}

int criu_pids_are_free(const struct criu_image_tree *t, struct brumate_error *err)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct criu_image_process *p = &t->items[i];
		int r = refuse_taken(p->pid, err);

		for (size_t k = 0; r >= 0 && k < p->n_threads; k++)
			r = refuse_taken(p->threads[k], err);
		if (r < 0)
			return r;
	}
	return 0;
}
