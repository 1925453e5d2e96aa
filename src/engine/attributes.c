// SPDX-License-Identifier: MIT
/* What processes have in addition to memory and files, in a checkpoint; see attributes.h. */
#include "engine/attributes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/user.h"

enum { QUEUES_BYTES_MAX = 64 << 20 };

int op_attributes_read_ahead(struct op *op, struct brumate_error *err)
{
	attributes_fini(&op->checkpoint.attributes);
	int r = attributes_read_ranges(&op->checkpoint.attributes, &op->tree);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static void note(void *arg, const char *text)
{
	struct op *op = arg;

	progress_note(&op->progress, "%s", text);
}

/* Adds what our plugin in CRIU had threads tell of themselves. */
static int add_told(struct op *op)
{
	auto_free struct attributes_told *told = NULL;
	char text[320];
	size_t n = 0, n_keyrings = 0;
	int r = cpu_memory_image_told(op->images.cpu_memory, &told, &n, &n_keyrings);

	if (r < 0 && r != -ENOENT)
		return r;
	const size_t n_unknown = attributes_add_told(&op->checkpoint.attributes, told, n);
	snprintf(text, sizeof(text),
		 "the timer slack of %zu thread%s could not be read: after a restore it is that of "
		 "new threads",
		 n_unknown, n_unknown == 1 ? "" : "s");
	if (n_unknown)
		note(op, text);
	snprintf(
		text, sizeof(text),
		"%zu process%s a session keyring other than the job's shim, and its keys are in no "
		"checkpoint: a restored process has that of the shim; Kerberos tickets are there "
		"if their cache is KEYRING:persistent, FILE or KCM",
		n_keyrings, n_keyrings == 1 ? " has" : "es have");
	if (n_keyrings)
		note(op, text);
	return 0;
}

int op_attributes_read(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r = proc_tree_read(&tree, op->target->root, err);

	if (r < 0)
		return r;
	auto_(attributes_fini) struct attributes ahead =
		take_struct(op->checkpoint.attributes, ATTRIBUTES_EMPTY);
	r = attributes_read(&op->checkpoint.attributes, &tree);
	if (r == 0)
		attributes_take_ranges(&op->checkpoint.attributes, &ahead);
	socket_options_fini(&op->checkpoint.sockets);
	if (r == 0)
		r = socket_options_read(&op->checkpoint.sockets, &tree);
	file_locks_fini(&op->checkpoint.locks);
	if (r == 0 && (r = file_locks_read(&op->checkpoint.locks, &tree)) < 0)
		return brumate_fail(err, -r, "locks of files: %m");
	if (r == 0)
		r = add_told(op);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

/* All processes stand still since CRIU has read the timer, so it still waits where it did. */
int op_attributes_timer(void *arg, const struct criu_timer *timer)
{
	struct op *op = arg;
	struct op_checkpoint *c = &op->checkpoint;
	struct alarm_timer t = { .id = timer->id, .interval_ns = timer->interval_ns };

	if (!c->timer_queues &&
	    file_read(AT_FDCWD, ALARM_QUEUES, QUEUES_BYTES_MAX, &c->timer_queues, NULL) < 0)
		c->timer_queues = strdup(""); /* as for a user, who may not */
	if (!c->timer_queues)
		return -ENOMEM;
	switch (alarm_judge(c->timer_queues, timer->left_ns, clock_now_ns() - c->criu_start_ns,
			    &t.due_ns)) {
	case ALARM_OF_DAY:
		return attributes_add_timer(&c->attributes, timer->pid, &t);
	case ALARM_OF_SPAN:
		return 0;
	case ALARM_UNKNOWN:
		break;
	}
	c->n_timers_unknown++;
	return 0;
}

static void note_timers(struct op *op)
{
	const size_t n = op->checkpoint.n_timers_unknown;

	free(take_ptr(&op->checkpoint.timer_queues));
	op->checkpoint.n_timers_unknown = 0;
	if (n)
		progress_note(&op->progress,
			      "%zu timer%s (timer_create) of the time of day: whether set to a "
			      "time is not known. If so, a restored one comes later by the time "
			      "that the job was on a disk",
			      n, n == 1 ? "" : "s");
}

/* @text: owned, NULL where there was no memory for it. */
static int write_beside(struct op *op, const char *name, char *text, size_t len,
			struct brumate_error *err)
{
	auto_free char *owned = text;

	if (!owned)
		return brumate_fail(err, ENOMEM, "%m");
	auto_close int fd = openat(op->images.dir_fd, name,
				   O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : fd_write_full(fd, owned, len);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", name) : 0;
}

int op_attributes_write(struct op *op, struct brumate_error *err)
{
	struct op_checkpoint *c = &op->checkpoint;
	size_t len = 0;
	int r = 0;

	note_timers(op);
	if (c->attributes.n) {
		char *text = attributes_encode(&c->attributes, &len);

		r = write_beside(op, ATTRIBUTES_FILE, text, len, err);
	}
	if (r == 0 && c->sockets.n) {
		char *text = socket_options_encode(&c->sockets, &len);

		r = write_beside(op, SOCKET_OPTIONS_FILE, text, len, err);
	}
	if (r == 0 && c->locks.n) {
		char *text = file_locks_encode(&c->locks, &len);

		r = write_beside(op, FILE_LOCKS_FILE, text, len, err);
	}
	return r;
}

/* @ret: owned; NULL where the checkpoint has no such file. */
static int read_beside(struct op *op, const char *name, size_t most, char **ret, size_t *ret_len,
		       struct brumate_error *err)
{
	int r = file_read_plain(op->images.dir_fd, name, most, ret, ret_len);

	if (r == -ENOENT)
		*ret = NULL;
	return r < 0 && r != -ENOENT ? brumate_fail(err, -r, "checkpoint %s: criu/%s: %m",
						    op->restore.image.manifest.id, name)
				     : 0;
}

int op_attributes_load(struct op *op, struct brumate_error *err)
{
	auto_free char *attributes = NULL, *sockets = NULL;
	const char *name = ATTRIBUTES_FILE;
	size_t len = 0, sockets_len = 0;
	int r = read_beside(op, name, ATTRIBUTES_BYTES_MAX, &attributes, &len, err);

	if (r == 0)
		r = read_beside(op, SOCKET_OPTIONS_FILE, SOCKET_OPTIONS_BYTES_MAX, &sockets,
				&sockets_len, err);
	if (r < 0)
		return r;
	attributes_fini(&op->restore.attributes);
	socket_options_fini(&op->restore.sockets);
	if (attributes)
		r = attributes_decode(&op->restore.attributes, attributes, len);
	if (r == 0 && sockets) {
		name = SOCKET_OPTIONS_FILE;
		r = socket_options_decode(&op->restore.sockets, sockets, sockets_len);
	}
	return r < 0 ? brumate_fail(err, -r, "checkpoint %s: criu/%s: %m",
				    op->restore.image.manifest.id, name)
		     : 0;
}

int op_attributes_ask(struct op *op, struct brumate_error *err)
{
	auto_free struct attributes_call *calls = NULL;
	size_t n = 0;
	int r = attributes_calls(&calls, &n, &op->restore.attributes);

	if (r == 0)
		r = file_locks_add_calls(&op->restore.locks, &calls, &n);
	if (r == 0 && n)
		r = cpu_memory_image_ask(op->images.cpu_memory, calls, n);
	/* Without our plugin nobody makes them, which is noted when they are looked for. */
	return r < 0 && r != -ENOENT ? brumate_fail(err, -r, "calls of restored threads: %m") : 0;
}

int op_attributes_give(struct op *op, struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r;

	if (!op->restore.attributes.n && !op->restore.sockets.n)
		return 0;
	if ((r = proc_tree_read(&tree, op->target->root, err)) < 0)
		return r;
	r = socket_options_apply(&op->restore.sockets, &tree, op->target->uid, op->target->gid,
				 note, op);
	if (r < 0)
		return brumate_fail(err, -r, "options of sockets: %m");
	attributes_watch(&op->restore.attributes, &tree, note, op);
	if (op->target->uid != geteuid() &&
	    (r = user_files_enter(&user, op->target->uid, op->target->gid, err)) < 0)
		return r;
	attributes_apply(&op->restore.attributes, &tree, note, op);
	return 0;
}

int op_locks_load(struct op *op, struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	auto_free char *text = NULL;
	size_t len;
	int r = read_beside(op, FILE_LOCKS_FILE, FILE_LOCKS_BYTES_MAX, &text, &len, err);

	file_locks_fini(&op->restore.locks);
	if (r < 0 || !text)
		return r;
	if ((r = file_locks_decode(&op->restore.locks, text, len)) < 0)
		return brumate_fail(err, -r, "checkpoint %s: criu/%s: %m",
				    op->restore.image.manifest.id, FILE_LOCKS_FILE);
	if (op->target->uid != geteuid() &&
	    (r = user_files_enter(&user, op->target->uid, op->target->gid, err)) < 0)
		return r;
	return file_locks_can_be_had(&op->restore.locks, err);
}

int op_locks_check(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	int r = op->restore.locks.n ? proc_tree_read(&tree, op->target->root, err) : 0;

	return r < 0 ? r : file_locks_check(&op->restore.locks, &tree, err);
}
