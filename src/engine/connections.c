// SPDX-License-Identifier: MIT
/* TCP connections within a job, in a checkpoint; see connections.h. */
#include "engine/connections.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/user.h"
#include "criu/carry.h"
#include "engine/externals.h"
#include "engine/together.h"

enum { LOOK_AGAIN_MS = 100 };

int op_connections_read(struct op *op, struct brumate_error *err)
{
	struct connections *c = &op->checkpoint.connections;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	connections_fini(c);
	if (connections_may_be_repaired())
		return 0;
	int r = proc_tree_read(&tree, op->target->root, err);
	if (r == 0)
		r = connections_read(c, &tree, together_others(op), err);
	if (r == 0 && (r = fault_point("checkpoint.connected")) < 0)
		return brumate_fail(err, -r, "injected with connections read: %s", strerror(-r));
	auto_free char *plugin = criu_plugin_dir();
	if (r < 0 || !c->n || plugin)
		return r;
	brumate_fail(
		err, EOPNOTSUPP,
		"the job has TCP connections, and the plugin of CRIU that restores them is not "
		"installed (brumate-criu.so)");
	return -EOPNOTSUPP;
}

int op_connections_write(struct op *op, struct brumate_error *err)
{
	struct connections *c = &op->checkpoint.connections;
	size_t len = 0;
	int r;

	if (connections_may_be_repaired())
		return 0;
	if ((r = criu_carry_connections(op->images.dir_fd, c, err)) < 0 || !c->n)
		return r;
	auto_free char *bytes = connections_encode(c, &len);
	auto_close int fd = openat(op->images.dir_fd, CONNECTIONS_FILE,
				   O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	r = !bytes ? -ENOMEM : fd < 0 ? -errno : fd_write_full(fd, bytes, len);
	return r < 0 ? brumate_fail(err, -r, "%s: %s", CONNECTIONS_FILE, strerror(-r)) : 0;
}

void op_connections_leave(struct op *op, bool has_ended)
{
	struct connections *c = &op->checkpoint.connections;

	for (size_t i = 0; has_ended && i < 2 * c->n; i++)
		connection_abort(c->items[i / 2].ends[i % 2].fd);
	connections_fini(c);
}

static int load(struct connections *ret, struct op *op, struct brumate_error *err)
{
	auto_free char *bytes = NULL;
	size_t len = 0;
	int r = file_read_plain(op->images.dir_fd, CONNECTIONS_FILE, CONNECTIONS_BYTES_MAX, &bytes,
				&len);

	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = connections_decode(ret, bytes, len);
	return r < 0 ? brumate_fail(err, -r, "checkpoint %s: criu/%s: %s",
				    op->restore.image.manifest.id, CONNECTIONS_FILE, strerror(-r))
		     : 0;
}

/* The kernel tells nobody when it forgets one. */
static int wait_for_ended(void *arg, struct brumate_error *err)
{
	struct op *op = arg;

	progress_wait_for(&op->progress, "the kernel to forget connections that ended");
	nanosleep(&(struct timespec){ .tv_nsec = LOOK_AGAIN_MS * NS_PER_MS }, NULL);
	return progress_check(&op->progress, err);
}

/* Ports that the user of the job may not have are refused to us, too. */
static int make_as_user(struct connections *c, struct op *op, bool is_apart,
			struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	int r = c->n ? user_files_enter(&user, op->target->uid, op->target->gid, err) : 0;

	return r < 0 ? r
		     : connections_make(c, is_apart, together_others(op), wait_for_ended, op, err);
}

static int load_and_make(struct connections *c, struct op *op, bool is_apart,
			 struct brumate_error *err)
{
	int r = load(c, op, err);

	if (r == 0)
		r = make_as_user(c, op, is_apart, err);
	if (r < 0)
		connections_fini(c);
	return r;
}

int op_connections_give(struct op *op, bool is_apart, struct criu_inherit **inherits, size_t *n,
			struct brumate_error *err)
{
	struct connections *c = &op->restore.connections;
	int r = c->n ? 0 : load_and_make(c, op, is_apart, err);

	if (r == 0 && (r = fault_point("restore.connected")) < 0)
		return brumate_fail(err, -r, "injected with connections made: %s", strerror(-r));
	for (size_t i = 0; i < 2 * c->n && r == 0; i++) {
		const struct connection_end *e = &c->items[i / 2].ends[i % 2];
		char key[CRIU_CONNECTION_KEY_BYTES];

		if (c->items[i / 2].elsewhere == (int)(i % 2))
			continue;
		int fd = fcntl(e->fd, F_DUPFD_CLOEXEC, 3);

		criu_connection_key(key, e->file);
		r = externals_give(inherits, n, key, fd < 0 ? -errno : fd);
		if (r < 0)
			brumate_fail(err, -r, "%s", strerror(-r));
	}
	return r;
}

void op_connections_keep(struct op *op)
{
	struct connections *c = &op->restore.connections;

	for (size_t i = 0; i < 2 * c->n; i++)
		if (c->items[i / 2].elsewhere != (int)(i % 2))
			connection_keep(c->items[i / 2].ends[i % 2].fd);
	connections_fini(c);
}

void op_connections_drop(struct op *op)
{
	connections_fini(&op->restore.connections);
}
