// SPDX-License-Identifier: MIT
/* Starting and calling a job's keeper. See keeper.h. */
#include "client/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/packet.h"
#include "base/paths.h"
#include "base/start.h"
#include "job/job.h"

enum { CALL_TIMEOUT_MS = 10000, SOCKET_FD = 3, TRIES = 3 };

static const char socket_name[] = "keeper.sock";

/* ---- packets ---- */

int keeper_send(int socket_fd, const struct keeper_message *m, const int *fds, size_t n_fds)
{
	ssize_t n = packet_send(socket_fd, m, sizeof(*m), fds, n_fds, DEADLINE_NEVER);

	return n < 0 ? (int)n : 0;
}

int keeper_receive(int socket_fd, struct keeper_message *ret, int *ret_fds, size_t *ret_n_fds)
{
	struct packet_fds fds = { ret_fds, KEEPER_FDS_MAX };
	ssize_t n = packet_receive(socket_fd, ret, sizeof(*ret), &fds, DEADLINE_NEVER);

	*ret_n_fds = fds.n;
	if (n < 0)
		return (int)n;
	bool right = n == (ssize_t)sizeof(*ret) && ret->n <= KEEPER_FDS_MAX;

	if (right && fds.state != PACKET_LOST_FDS)
		return 0;
	packet_close_fds(ret_fds, fds.n);
	*ret_n_fds = 0;
	return right ? -EMFILE : -EBADMSG;
}

/* ---- the connection ---- */

void keeper_close(struct keeper *k)
{
	cleanup_close(&k->fd);
	*k = KEEPER_EMPTY;
}

static void address_of(struct sockaddr_un *ret, int dir_fd)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(ret->sun_path, sizeof(ret->sun_path), "/proc/self/fd/%d/%s", dir_fd, socket_name);
}

/* The process that holds the lock, from the text in the lock's file. The kernel only knows which process made the
 * socket. */
static struct peer find_peer(int dir_fd)
{
	auto_close int fd = RESERVE_TRY(openat(dir_fd, JOB_KEEPER_LOCK, O_RDONLY | O_CLOEXEC));
	struct peer p = PEER_NONE;
	unsigned long long start;
	char text[64] = "";

	if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && read(fd, text, sizeof(text) - 1) > 0 &&
	    sscanf(text, "%d %llu", &p.id.pid, &start) == 2)
		p.id.start_ticks = start;
	else
		p = PEER_NONE;
	return p;
}

int keeper_connect(struct keeper *ret, const struct target *target, struct brumate_error *err)
{
	auto_close int dir_fd = RESERVE_TRY(open(target->dir, O_PATH | O_DIRECTORY | O_CLOEXEC));
	if (dir_fd < 0)
		return brumate_fail(err, errno, "keeper of job %s: %m", target->id);
	auto_close int fd = RESERVE_TRY(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	struct sockaddr_un address;
	if (fd < 0)
		return brumate_fail(err, errno, "keeper of job %s: %m", target->id);
	address_of(&address, dir_fd);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return brumate_fail(err, errno == ECONNREFUSED ? ENOENT : errno,
				    "keeper of job %s: %m", target->id);
	ret->pid = 0;
	ret->peer = find_peer(dir_fd);
	ret->fd = take_fd(&fd);
	return 0;
}

static int fail_call(struct keeper *k, int r, struct brumate_error *err)
{
	if (r == -ETIMEDOUT)
		peer_fail(&k->peer, "keeper", err);
	else
		r = brumate_fail(err, r == -ECONNRESET ? EPIPE : -r, "keeper: %m");
	keeper_close(k);
	return r;
}

/* Sends @m with m->n fds; its reply is in @m then. */
static int ask_keeper(struct keeper *k, struct keeper_message *m, const int *fds, int *ret_fds,
		      size_t *ret_n_fds, struct brumate_error *err)
{
	size_t n_fds = 0;
	int got[KEEPER_FDS_MAX];
	int r = k->fd < 0 ? -EPIPE : keeper_send(k->fd, m, fds, fds ? m->n : 0);

	if (r == 0)
		r = peer_wait(&k->peer, k->fd, POLLIN, deadline_in_ms(CALL_TIMEOUT_MS));
	if (r == 0)
		r = keeper_receive(k->fd, m, got, &n_fds);
	if (r < 0)
		return fail_call(k, r, err);
	for (size_t i = 0; i < n_fds; i++)
		if (ret_fds)
			ret_fds[i] = got[i];
		else
			close(got[i]);
	if (ret_fds)
		*ret_n_fds = n_fds;
	return m->error < 0 ? brumate_fail(err, -m->error, "keeper: %m") : 0;
}

void keeper_dismiss(struct keeper *k)
{
	struct keeper_message m = { .op = KEEPER_WATCH };

	if (k->fd >= 0)
		ask_keeper(k, &m, NULL, NULL, NULL, NULL);
	keeper_close(k);
}

/* ---- starting it ---- */

/* It inherits a socket that listens already, so a client can connect before the keeper is up. */
static int start_keeper(const struct target *target, struct brumate_error *err)
{
	auto_free char *program = path_find_helper("brumate-shim");
	auto_close int dir_fd = RESERVE_TRY(open(target->dir, O_PATH | O_DIRECTORY | O_CLOEXEC));
	auto_close int null_fd = RESERVE_TRY(open("/dev/null", O_RDWR | O_CLOEXEC));
	auto_close int fd = RESERVE_TRY(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	struct sockaddr_un address;

	if (!program)
		return brumate_fail(err, ENOENT, "brumate-shim is not installed");
	if (dir_fd < 0 || null_fd < 0 || fd < 0)
		return brumate_fail(err, errno, "keeper of job %s: %m", target->id);
	address_of(&address, dir_fd);
	unlink(address.sun_path);
	/* Its directory is ours alone. */
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
		return brumate_fail(err, errno, "keeper of job %s: %m", target->id);
	const char *const argv[] = { program,	  "brumate-keeper",	  "--keep",
				     target->dir, target->owned_by->heir, NULL };
	/* Standard error stays: the log of the shim that starts it. */
	const int fds[] = { null_fd, null_fd, STDERR_FILENO, fd };
	int r = spawn_program(argv, fds, SOCKET_FD + 1);
	return r < 0 ? brumate_fail(err, -r, "start of the keeper of job %s: %m", target->id) : 0;
}

int keeper_start_heir(const char *name, const char *dir, struct brumate_error *err)
{
	auto_free char *program = path_find_helper(name);
	const char *const argv[] = { program, name, "--heir", dir, NULL };
	const int fds[] = { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO };

	if (!program)
		return brumate_fail(err, ENOENT, "%s is not installed", name);
	int r = spawn_program(argv, fds, STDERR_FILENO + 1);
	return r < 0 ? brumate_fail(err, -r, "start of %s: %m", name) : 0;
}

static int watch_root(struct keeper *k, const struct target *target, struct brumate_error *err)
{
	struct keeper_message m = { .op = KEEPER_WATCH, .n = 1 };
	auto_close int pid_fd = proc_open(target->root);

	if (pid_fd < 0)
		return brumate_fail(err, -pid_fd, "process %d: %m", target->root.pid);
	int r = ask_keeper(k, &m, &pid_fd, NULL, NULL, err);
	if (r < 0)
		return r;
	k->pid = (pid_t)m.tags[0].pid;
	if (k->peer.id.pid != k->pid && proc_identify(&k->peer.id, k->pid, NULL) < 0)
		k->peer.id = PROC_ID_NONE;
	return 0;
}

int keeper_open(struct keeper *ret, const struct target *target, bool is_spare,
		struct brumate_error *err)
{
	struct keeper k = KEEPER_EMPTY;
	int r = -ENOENT;

	for (int tries = 0; tries < TRIES; tries++) {
		r = keeper_connect(&k, target, err);
		if (r == -ENOENT && (r = start_keeper(target, err)) == 0)
			r = keeper_connect(&k, target, err);
		k.peer.may_end = is_spare;
		/* One that is just ending may have accepted nobody: its answer proves it. */
		if (r == 0)
			r = watch_root(&k, target, err);
		if (r == 0) {
			*ret = k;
			return 0;
		}
		keeper_close(&k);
		if (r != -EPIPE && r != -ENOENT)
			break;
	}
	return r;
}

/* ---- the calls ---- */

static int ask_in_turns(struct keeper *k, enum keeper_op op, const struct keeper_tag *tags,
			const int *fds, size_t n, struct brumate_error *err)
{
	int r = 0;

	for (size_t done = 0; r == 0 && done < n;) {
		struct keeper_message m = { .op = op };
		size_t part = n - done < KEEPER_FDS_MAX ? n - done : KEEPER_FDS_MAX;

		m.n = (uint32_t)part;
		memcpy(m.tags, tags + done, part * sizeof(*tags));
		r = ask_keeper(k, &m, fds ? fds + done : NULL, NULL, NULL, err);
		done += part;
	}
	return r;
}

int keeper_hold(struct keeper *k, const struct keeper_tag *tags, const int *fds, size_t n,
		struct brumate_error *err)
{
	return ask_in_turns(k, KEEPER_HOLD, tags, fds, n, err);
}

int keeper_drop(struct keeper *k, const struct keeper_tag *tags, size_t n,
		struct brumate_error *err)
{
	return ask_in_turns(k, KEEPER_DROP, tags, NULL, n, err);
}

int keeper_give(struct keeper *k, void (*fn)(void *arg, struct keeper_tag tag, int fd), void *arg,
		struct brumate_error *err)
{
	struct keeper_message m = { .op = KEEPER_GIVE };
	int fds[KEEPER_FDS_MAX];
	size_t n_fds = 0;
	int r = ask_keeper(k, &m, NULL, fds, &n_fds, err);

	while (r == 0) {
		for (size_t i = 0; i < n_fds; i++)
			if (i < m.n)
				fn(arg, m.tags[i], fds[i]);
			else
				close(fds[i]);
		if (!m.more)
			return 0;
		r = peer_wait(&k->peer, k->fd, POLLIN, deadline_in_ms(CALL_TIMEOUT_MS));
		if (r == 0)
			r = keeper_receive(k->fd, &m, fds, &n_fds);
		if (r < 0)
			return fail_call(k, r, err);
	}
	return r;
}
