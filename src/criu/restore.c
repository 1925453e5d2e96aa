// SPDX-License-Identifier: MIT
/* Restores: what CRIU is told, and what is left to take down when it fails. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "criu/session.h"
#include "process/net-lock.h"
#include "process/reap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KILL_TIMEOUT_MS = 10000 };

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

/* CRIU says only that some number is taken; this says which, and by whom, before anything starts. */
static int check_pids(const struct criu_image_tree *t, struct brumate_error *err)
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

static int add_inherits(Criu__Opts *opts, Criu__InheritFd *items, Criu__InheritFd **pointers,
			struct criu_fds *fds, const struct criu_options *o,
			struct brumate_error *err)
{
	for (size_t i = 0; i < o->n_inherits; i++) {
		int fd = criu_fds_add(fds, o->inherits[i].fd, o->inherits[i].key, err);

		if (fd < 0)
			return fd;
		criu__inherit_fd__init(&items[i]);
		items[i].key = (char *)o->inherits[i].key;
		items[i].fd = fd;
		pointers[i] = &items[i];
	}
	opts->inherit_fd = pointers;
	opts->n_inherit_fd = o->n_inherits;
	return 0;
}

static int start_restore(struct session *s, Criu__Opts *opts, struct criu_fds *fds,
			 Criu__InheritFd *items, Criu__InheritFd **pointers,
			 struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	int r = criu_image_tree_read(&s->tree, o->images_dir_fd);

	if (r < 0)
		return brumate_fail(err, r == -ENOENT ? EBADMSG : -r, "CRIU's image pstree.img: %s",
				    strerror(-r));
	if (!o->enter_ns_of)
		r = check_pids(&s->tree, err);
	if (r >= 0)
		r = session_set_common(opts, o, net_lock_is_possible(), fds, err);
	if (r < 0)
		return r;
	/* In another namespace the root is to be a child of its init, which CRIU's end makes it. */
	opts->has_rst_sibling = true;
	opts->rst_sibling = !o->enter_ns_of;
	opts->has_tcp_established = opts->has_tcp_close = true;
	opts->tcp_established = !o->tcp_close;
	opts->tcp_close = o->tcp_close;
	return add_inherits(opts, items, pointers, fds, o, err);
}

static void remove_half_built(const struct session *s)
{
	struct proc_id root = session_half_built_root(s);
	int status;

	if (s->outcome == DIED) {
		auto_close int log_fd = criu_log_open(s->options);
		heal_restore(log_fd);
	}
	if (!root.pid)
		return;
	proc_tree_kill(root, deadline_in_ms(KILL_TIMEOUT_MS));
	if (!s->options->enter_ns_of)
		reap_poll(root.pid, &status);
}

int criu_restore(const struct criu_program *program, const struct criu_options *options,
		 struct criu_result *ret, struct brumate_error *err)
{
	struct session s = SESSION_EMPTY;
	auto_(criu_fds_fini) struct criu_fds fds = { .n = 0 };
	auto_free Criu__InheritFd *items = calloc(options->n_inherits + 1, sizeof(*items));
	auto_free Criu__InheritFd **pointers = calloc(options->n_inherits + 1, sizeof(*pointers));
	Criu__Opts opts = CRIU__OPTS__INIT;
	uint64_t start_ns = clock_now_ns();

	if (!items || !pointers)
		return brumate_fail(err, ENOMEM, "%m");
	s.options = options;
	s.type = CRIU__REQ_TYPE__RESTORE;
	int status = start_restore(&s, &opts, &fds, items, pointers, err);
	if (status >= 0)
		status = session_start(&s, program, &opts, &fds, err);
	if (status >= 0)
		status = session_run(&s);
	if (s.outcome != UNDECIDED && s.outcome != SUCCEEDED) {
		remove_half_built(&s);
		status = session_explain(&s, status, err);
	}
	criu_image_tree_fini(&s.tree);
	if (s.outcome != SUCCEEDED)
		return status;
	*ret = (struct criu_result){ .root_pid = s.root_pid, .seconds = clock_since_s(start_ns) };
	return 0;
}
