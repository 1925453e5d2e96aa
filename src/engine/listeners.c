// SPDX-License-Identifier: MIT
/* Ports that are held; see listeners.h. */
#include "engine/listeners.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "criu/carry.h"
#include "engine/externals.h"

static int need_plugin(struct brumate_error *err)
{
	auto_free char *plugin = criu_plugin_dir();

	if (plugin)
		return 0;
	brumate_fail(err, EOPNOTSUPP,
		     "the plugin of CRIU that gives a job its ports back is not "
		     "installed (brumate-criu.so)");
	brumate_hint(err, "without --wake it can be saved; `brumate restore` brings it back");
	return -EOPNOTSUPP;
}

int op_listeners_look(struct op *op, struct brumate_error *err)
{
	int r = op->request->wake ? need_plugin(err) : 1;

	if (r != 0)
		return r < 0 ? r : 0;
	if (op->request->leave_running)
		return brumate_fail(err, EINVAL, "--wake cannot be combined with --leave-running");
	if (!op->was_suspended) {
		brumate_fail(err, EBUSY,
			     "job %s is not suspended, and may be in use: --wake saves "
			     "one that is asleep",
			     op->target->id);
		brumate_hint(err, "brumate suspend %s", op->target->id);
		return -EBUSY;
	}
	return listeners_prepare(&op->tree, err);
}

int op_listeners_take(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	if (!op->request->wake || !op->listeners)
		return 0;
	int r = proc_tree_read(&tree, op->target->root, err);
	if (r < 0 || (r = listeners_take(op->listeners, &tree, err)) < 0)
		return r;
	listeners_names(op->target->ports, op->listeners);
	return target_save(op->target, err);
}

int op_listeners_give(struct op *op, struct criu_inherit **inherits, size_t *n,
		      struct brumate_error *err)
{
	const struct listeners *l = op->listeners;
	int r = 0;

	for (size_t i = 0; l && i < l->n && r == 0; i++) {
		char key[CRIU_LISTENER_KEY_BYTES];
		const int fd = fcntl(l->items[i].fd, F_DUPFD_CLOEXEC, 3);

		criu_listener_key(key, l->items[i].name);
		r = externals_give(inherits, n, key, fd < 0 ? -errno : fd);
		if (r < 0)
			brumate_fail(err, -r, "%s: %s", l->items[i].name, strerror(-r));
	}
	return r;
}

void op_listeners_drop(struct op *op)
{
	if (op->listeners)
		listeners_fini(op->listeners);
	op->target->ports[0] = '\0';
}
