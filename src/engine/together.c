// SPDX-License-Identifier: MIT
/* Meetings of operations; see together.h. */
#include "engine/together.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/paths.h"
#include "process/socket-hold.h"
#include "store/set.h"

enum { TICK_MS = 100, PACKET_BYTES = SET_PATH_BYTES + 16 };
static const char go[] = "go", again[] = "again";

bool together_is_wanted(const struct op *op)
{
	return op->request->together[0] != '\0';
}

static int open_connection(struct op *op, struct brumate_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (strlen(op->request->together) >= sizeof(address.sun_path))
		return brumate_fail(err, ENAMETOOLONG, "%s: %m", op->request->together);
	strcpy(address.sun_path, op->request->together);
	op->together_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (op->together_fd < 0 ||
	    connect(op->together_fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return brumate_fail(err, errno, "the others of its set: %m");
	return 0;
}

/* Waits for the answer, which is a word and what follows it. 0: "go"; 1: "again"; -ECANCELED: the connection has ended; else as progress_check(). */
static int await_go(struct op *op, char ret[static PACKET_BYTES], struct brumate_error *err)
{
	for (;;) {
		struct pollfd p = { .fd = op->together_fd, .events = POLLIN };
		int r = progress_check(&op->progress, err);

		if (r < 0)
			return r;
		if (poll(&p, 1, TICK_MS) <= 0)
			continue;
		ssize_t n = recv(op->together_fd, ret, PACKET_BYTES - 1, 0);
		ret[n > 0 ? n : 0] = '\0';
		if (n > 0 && !strncmp(ret, go, strlen(go)))
			return 0;
		if (n > 0 && !strcmp(ret, again))
			return 1;
		if (n < 0 && errno == EINTR)
			continue;
		return brumate_fail(err, ECANCELED,
				    "another member of the set has failed, or its "
				    "coordinator has gone");
	}
}

static int meet(struct op *op, const char *at, char answer[static PACKET_BYTES],
		struct brumate_error *err)
{
	char point[64];

	snprintf(point, sizeof(point), "%s.at-%s", op->kind, at);
	int r = fault_point(point);
	if (r < 0)
		return brumate_fail(err, -r, "injected where the set is %s: %m", at);
	progress_wait_for(&op->progress, "the other members of the set");
	if (op->together_fd < 0 || send(op->together_fd, at, strlen(at), MSG_NOSIGNAL) < 0)
		return brumate_fail(err, ECANCELED, "the coordinator of the set has gone");
	return await_go(op, answer, err);
}

/* ---- connections ---- */

/* Where CRIU may not save them. */
static bool drains(const struct op *op)
{
	return together_is_wanted(op) && !connections_may_be_repaired();
}

static int read_members(struct proc_tree *ret, const struct op *op, struct brumate_error *err)
{
	const struct proc_members members = target_members(op->target);

	return proc_members_read(ret, &members, err);
}

/* Tells what the job is connected to, in packets of whole lines: the coordinator looks for the other ends. */
static int send_connections(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_free char *all = NULL;
	if (op->restore.image.manifest.set[0]) /* it has none yet */
		return 0;
	int r = read_members(&tree, op, err);
	if (r < 0)
		return r;
	if (sockets_list(&all, &tree) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	auto_free char *lines = path_format("%s%s", drains(op) ? SET_DRAINS : "", all);
	if (!lines)
		return brumate_fail(err, ENOMEM, "%m");
	for (const char *rest = lines; *rest;) {
		size_t len = strlen(rest);

		if (len > SET_LINES_BYTES) {
			len = SET_LINES_BYTES;
			while (rest[len - 1] != '\n')
				len--;
		}
		auto_free char *packet = path_format("%s%.*s", SET_CONNECTIONS, (int)len, rest);
		if (!packet)
			return brumate_fail(err, ENOMEM, "%m");
		if (op->together_fd < 0 ||
		    send(op->together_fd, packet, strlen(packet), MSG_NOSIGNAL) < 0)
			return brumate_fail(err, ECANCELED, "the coordinator of the set has gone");
		rest += len;
	}
	return 0;
}

static int look(struct op *op, char answer[static PACKET_BYTES], struct brumate_error *err)
{
	int r = 1;

	while (r == 1) {
		r = send_connections(op, err);
		if (r == 0)
			r = meet(op, "ready", answer, err);
	}
	return r;
}

int together_begin(struct op *op, struct brumate_error *err)
{
	char answer[PACKET_BYTES], name[MANIFEST_ID_BYTES], *path = op->target->op.together;

	if (!together_is_wanted(op))
		return 1;
	int r = open_connection(op, err);
	if (r == 0)
		r = look(op, answer, err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(op->target->op.together), "%s", answer[2] ? answer + 3 : "");
	if (set_name_of(name, path) && access(path, F_OK) == 0) {
		const struct manifest *m = &op->restore.image.manifest;

		if (m->set[0] && (r = set_closes(&op->together_closes, path, m->id, err)) < 0)
			return r;
		snprintf(op->checkpoint.manifest.set, sizeof(name), "%s", name);
		/* The shim that takes over reads it. */
		return target_save(op->target, err);
	}
	r = brumate_fail(err, errno ? errno : EINVAL,
			 "the record of the set, %s, is not seen here: %m", path);
	brumate_hint(err, "the nodes of a set share the store, at the same path");
	*path = '\0';
	return r;
}

int together_meet(struct op *op, const char *at, struct brumate_error *err)
{
	char answer[PACKET_BYTES];

	return together_is_wanted(op) ? meet(op, at, answer, err) : 0;
}

static int meet_drained(void *op, struct brumate_error *err)
{
	return together_meet(op, "drained", err);
}

const struct connection_others *together_others(struct op *op)
{
	if (!together_is_wanted(op))
		return NULL;
	op->together_others = (struct connection_others){ meet_drained, op, op->together_fd,
							  op->target->op.together };
	return &op->together_others;
}

int together_all_idle(void *arg, struct brumate_error *err)
{
	char answer[PACKET_BYTES];
	struct op *op = arg;
	int r = meet(op, "idle", answer, err);

	op->together_idle = r == 0;
	return r;
}

/* A store that does not answer may have the others go on or not: nobody can tell, and to guess would be to lose one. */
static int ask_store(struct op *op)
{
	bool told = false;
	int r;

	while ((r = set_give_up(op->target->op.together)) < 0) {
		if (!told)
			log_warn("the decision about the set cannot be read, trying again: job=%s "
				 "path=%s "
				 "reason=\"%s\"",
				 op->target->id, op->target->op.together, strerror(-r));
		told = true;
		nanosleep(&(struct timespec){ .tv_nsec = TICK_MS * NS_PER_MS }, NULL);
	}
	return r;
}

int together_decide(struct op *op, const char *at, struct brumate_error *err)
{
	char answer[PACKET_BYTES];

	if (!together_is_wanted(op))
		return 0;
	int r = meet(op, at, answer, err);
	if (r < 0 && ask_store(op))
		return r;
	*err = BRUMATE_ERROR_NONE; /* all the others go on, too, with the client or without */
	progress_settle(&op->progress);
	return 0;
}

int together_find_closes(struct op *op, struct brumate_error *err)
{
	const char *slash = strrchr(op->target->op.image_path, '/');

	return slash ? set_closes(&op->together_closes, op->target->op.together, slash + 1, err)
		     : 0;
}

int together_given_up(const struct target *target)
{
	return target->op.together[0] ? set_give_up(target->op.together) : 0;
}

int together_hold(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	size_t n = 0;

	if (!together_is_wanted(op))
		return 0;
	int r = drains(op) ? send_connections(op, err) : 1;
	if (r <= 0)
		return r < 0 ? r : together_meet(op, "frozen", err);
	r = read_members(&tree, op, err);
	if (r == 0)
		r = sockets_hold(&n, &tree, err);
	if (r == 0)
		log_info("the connections of job %s are held: n=%zu", op->target->id, n);
	return r < 0 ? r : send_connections(op, err);
}

void together_let_go(struct op *op)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	size_t n;

	if (!op->target->op.together[0] && !op->restore.image.manifest.set[0])
		return;
	if (read_members(&tree, op, &why) < 0 ||
	    (op->together_closes && sockets_close(&n, &tree, op->together_closes, &why) < 0) ||
	    sockets_let_go(&tree, &why) < 0)
		log_error("connections of job %s stay held: %s", op->target->id, why.text);
}

int together_check(const struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;

	if (!m->set[0] || together_is_wanted(op) || op->request->tcp_close || op->request->force)
		return 0;
	brumate_fail(err, EOPNOTSUPP,
		     "checkpoint %s is of the set %s: its connections come back with the others",
		     m->id, m->set);
	brumate_hint(
		err,
		"brumate set restore %s; --tcp-close restores it alone, its connections closed",
		m->set);
	return -EOPNOTSUPP;
}
