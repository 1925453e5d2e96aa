// SPDX-License-Identifier: MIT
/*
 * Requests to the agent of a member, its answers, and the removal of sockets whose agents have ended. See agent.h.
 */
#include "client/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/packet.h"
#include "base/paths.h"
#include "client/scout.h"

enum {
	OWN_WORDS_MS = 500,
	GRACE_MS = 5000,
	DETACH_MS = 1000,     /* to hang up, once that is promised */
	SUSPECTS_MOST = 4096, /* in one sweep */
	MOUNTS_BYTES_MAX = 4 << 20,
	SPARE_DESCRIPTORS = 8,
	PIECES_MOST = 1 << 17, /* of a process; a checkpoint has no room for more in all */
};

static const char *const op_names[] = {
	[AGENT_HELLO] = "hello",     [AGENT_GATE] = "gate",   [AGENT_LIST] = "list",
	[AGENT_EXPORT] = "export",   [AGENT_UNMAP] = "unmap", [AGENT_MAP] = "map",
	[AGENT_OWN] = "own",	     [AGENT_OPEN] = "open",   [AGENT_DETACH] = "detach",
	[AGENT_ALIASES] = "aliases", [AGENT_COPY] = "copy",   [AGENT_SNAPSHOT] = "snapshot",
};

/* ---- answers ---- */

static int check_piece(const struct agent_piece *p, struct brumate_error *err)
{
	if (!p->id || !p->len_bytes || p->va + p->len_bytes < p->va || p->len_bytes > INT64_MAX)
		return brumate_fail(err, EBADMSG, "piece %llu at %#llx of %llu bytes",
				    (unsigned long long)p->id, (unsigned long long)p->va,
				    (unsigned long long)p->len_bytes);
	return 0;
}

static int check_alias(const struct agent_alias *a, struct brumate_error *err)
{
	if (!a->id || !a->len_bytes || a->len_bytes > INT64_MAX || !a->token || !a->piece ||
	    a->pid <= 0)
		return brumate_fail(err, EBADMSG, "memory %llu of process %d",
				    (unsigned long long)a->id, a->pid);
	return 0;
}

int agent_check_reply(const struct agent_reply *reply, size_t len_bytes, enum agent_op op,
		      struct brumate_error *err)
{
	if (len_bytes != sizeof(*reply))
		return brumate_fail(err, EBADMSG, "answer of %zu bytes, expected %zu", len_bytes,
				    sizeof(*reply));
	if (reply->version != AGENT_VERSION)
		return brumate_fail(err, EPROTONOSUPPORT, "agent of version %u, expected %d",
				    reply->version, AGENT_VERSION);
	if (reply->gate > AGENT_GATE_UNMAPPED || reply->error > 0 || reply->error < -4095 ||
	    !memchr(reply->text, '\0', sizeof(reply->text)))
		return brumate_fail(err, EBADMSG, "answer with gate %u, error %d", reply->gate,
				    reply->error);
	const bool has_parts = op == AGENT_LIST || op == AGENT_ALIASES;
	if (reply->more && !has_parts)
		return brumate_fail(err, EBADMSG, "answer with a second part");
	if (!has_parts && op != AGENT_COPY)
		return 0;
	if (reply->n > AGENT_PIECES_MAX || (reply->more && !reply->n))
		return brumate_fail(err, EBADMSG, "answer with %u pieces", reply->n);
	for (uint32_t i = 0; i < reply->n; i++) {
		int r = op != AGENT_ALIASES ? check_piece(&reply->pieces[i], err)
					    : check_alias(&reply->aliases[i], err);

		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- the connection ---- */

void agent_close(struct agent *a)
{
	if (a->fd >= 0)
		close(a->fd);
	a->fd = -1;
	scout_end(&a->scout);
}

static int send_request(struct agent *a, const struct agent_request *request, const int *fds,
			size_t n_fds, uint64_t deadline_ns, struct brumate_error *err)
{
	ssize_t n = packet_send(a->fd, request, sizeof(*request), fds, n_fds, deadline_ns);

	if (n >= 0)
		return 0;
	return brumate_fail(err, (int)-n, "process %d: its agent does not take requests: %m",
			    a->id.pid);
}

/* What comes with the packet that is there has to be such that we can get rid of it. */
static int check_fds(struct agent *a, enum agent_op op, struct brumate_error *err)
{
	int r = a->scout ? 0 : scout_start(&a->scout, a->fd, a->simulated);

	if (r == 0)
		r = scout_look(a->scout);
	if (r == -EBADMSG)
		return brumate_fail(
			err, EBADMSG,
			"process %d: %s: what is neither memory nor a device of the driver's",
			a->id.pid, op_names[op]);
	return r < 0 ? brumate_fail(err, -r, "process %d: what its agent gives: %m", a->id.pid) : 0;
}

static int await_reply(struct agent *a, enum agent_op op, uint64_t deadline_ns,
		       struct brumate_error *err)
{
	const uint64_t soon_ns = deadline_in_ms(AGENT_SILENT_TIMEOUT_MS);
	struct packet_fds none = { 0 };

	if (a->was_silent && soon_ns < deadline_ns)
		deadline_ns = soon_ns;
	/* An agent whose gate does not close gives up by then by itself, and says why. */
	const uint64_t until_ns = a->until_ns + (op == AGENT_GATE ? OWN_WORDS_MS * NS_PER_MS : 0);
	if (a->until_ns && until_ns < deadline_ns)
		deadline_ns = until_ns;
	int r = packet_peek(a->fd, &none, deadline_ns);

	a->was_silent |= r == -ETIMEDOUT;
	if (r == -ETIMEDOUT)
		return brumate_fail(err, ETIMEDOUT, "process %d: its agent does not answer",
				    a->id.pid);
	if (r == -EPIPE)
		return brumate_fail(err, EPIPE, "process %d: its agent is gone", a->id.pid);
	if (r < 0) /* that says nothing of the agent */
		return brumate_fail(err, -r, "process %d: answer of its agent: %m", a->id.pid);
	return none.state == PACKET_WHOLE ? 0 : check_fds(a, op, err);
}

/* Receives the packet that is there. */
static int receive_reply(struct agent *a, struct agent_reply *ret, size_t *ret_len_bytes,
			 struct packet_fds *fds, struct brumate_error *err)
{
	ssize_t n = packet_receive(a->fd, ret, sizeof(*ret), fds, DEADLINE_NEVER);

	if (n < 0)
		return brumate_fail(err, (int)-n, "process %d: answer of its agent: %m", a->id.pid);
	if (fds->state == PACKET_LOST_FDS)
		return brumate_fail(err, EMFILE, "process %d: what its agent gives: %m", a->id.pid);
	if (fds->state == PACKET_TOO_LONG)
		return brumate_fail(err, EBADMSG, "process %d: answer of its agent: too long",
				    a->id.pid);
	*ret_len_bytes = (size_t)n;
	return 0;
}

static int fail_refused(const struct agent *a, enum agent_op op, const struct agent_reply *reply,
			struct brumate_error *err)
{
	const char *text = reply->text[0] ? reply->text : strerror(-reply->error);
	/* What the driver calls an invalid value is not the user's. */
	const int code = reply->error == -EINVAL ? EIO : -reply->error;

	if (!reply->result)
		return brumate_fail(err, code, "process %d: %s: %s", a->id.pid, op_names[op], text);
	return brumate_fail(err, code, "process %d: %s: %s (driver result %d)", a->id.pid,
			    op_names[op], text, reply->result);
}

/* Receives one packet of the answer to @op, and judges it. What the agent refused is an error. A connection that is out
 * of step is closed. */
static int get_reply(struct agent *a, enum agent_op op, struct agent_reply *ret, int *fds,
		     size_t *n_fds, uint64_t deadline_ns, struct brumate_error *err)
{
	int got[PACKET_FDS_KERNEL_MAX];
	struct packet_fds came = { got, PACKET_FDS_KERNEL_MAX };
	size_t len = 0;
	int r = await_reply(a, op, deadline_ns, err);

	if (r == 0)
		r = receive_reply(a, ret, &len, &came, err);
	if (r == 0) {
		r = agent_check_reply(ret, len, op, err);
		if (r < 0)
			brumate_wrap(err, r, "process %d: %s", a->id.pid, op_names[op]);
	}
	if (r < 0) {
		packet_close_fds(got, came.n);
		agent_close(a);
		return r;
	}
	a->gate = (enum agent_gate)ret->gate;
	if (ret->error < 0) {
		packet_close_fds(got, came.n);
		return fail_refused(a, op, ret, err);
	}
	if (came.n != (n_fds ? *n_fds : 0)) {
		packet_close_fds(got, came.n);
		agent_close(a);
		return brumate_fail(err, EBADMSG, "process %d: %s: %zu fds came", a->id.pid,
				    op_names[op], came.n);
	}
	if (n_fds)
		memcpy(fds, got, came.n * sizeof(int));
	return 0;
}

/* An injected fault breaks the connection. */
static int pass_fault_point(struct agent *a, const char *op, struct brumate_error *err)
{
	char name[32];

	snprintf(name, sizeof(name), "agent.%s", op);
	int r = fault_point(name);
	if (r == 0)
		return 0;
	agent_close(a);
	return brumate_fail(err, -r, "process %d: injected at %s: %m", a->id.pid, name);
}

static int ask_agent(struct agent *a, struct agent_request *request, const int *fds,
		     struct agent_reply *reply, int *ret_fds, uint64_t deadline_ns,
		     struct brumate_error *err)
{
	size_t n_fds = request->n;

	if (a->fd < 0)
		return brumate_fail(err, EPIPE, "process %d: no connection to its agent",
				    a->id.pid);
	request->version = AGENT_VERSION;
	int r = pass_fault_point(a, op_names[request->op], err);
	if (r < 0)
		return r;
	r = send_request(a, request, fds, fds ? request->n : 0, deadline_ns, err);
	if (r < 0) {
		agent_close(a);
		return r;
	}
	return get_reply(a, (enum agent_op)request->op, reply, ret_fds, ret_fds ? &n_fds : NULL,
			 deadline_ns, err);
}

static int ask_simple(struct agent *a, enum agent_op op, struct agent_reply *reply,
		      uint32_t timeout_ms, struct brumate_error *err)
{
	struct agent_request request = { .op = op };

	return ask_agent(a, &request, NULL, reply, NULL, deadline_in_ms(timeout_ms), err);
}

/* ---- connecting ---- */

/* Whether @fd is of a file system whose type begins with @type, as process @pid's own table of mounts says. -ENOENT: that does
 * not say. */
static int is_on(int fd, int pid, const char *type)
{
	auto_free char *info = NULL, *mounts = NULL;
	char path[64];
	int id, one;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	if (file_read(AT_FDCWD, path, PATH_MAX, &info, NULL) < 0)
		return -ENOENT;
	char *line = strstr(info, "mnt_id:");
	snprintf(path, sizeof(path), "/proc/%d/mountinfo", pid);
	if (!line || sscanf(line, "mnt_id: %d", &id) != 1 ||
	    file_read(AT_FDCWD, path, MOUNTS_BYTES_MAX, &mounts, NULL) < 0)
		return -ENOENT;
	for (char *rest = mounts; (line = strsep(&rest, "\n"));)
		if (sscanf(line, "%d", &one) == 1 && one == id) {
			line = strstr(line, " - ");
			return line && !strncmp(line + 3, type, strlen(type));
		}
	return -ENOENT;
}

/* A restored agent's socket was made by CRIU, as root, in the process itself. */
static int check_peer(int fd, const struct proc_info *of, struct brumate_error *err)
{
	struct ucred cred;
	int r = fd_peer(fd, &cred);

	if (r < 0)
		return brumate_fail(err, -r, "process %d: agent: %m", of->id.pid);
	if (cred.pid != of->id.pid || (cred.uid != of->uid && cred.uid != 0))
		return brumate_fail(err, EPERM,
				    "process %d: its agent's socket is served by process %d of "
				    "user %u",
				    of->id.pid, cred.pid, cred.uid);
	return 0;
}

static int open_in_container(int pid)
{
	const struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
				      .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/root", pid);
	auto_close int root = RESERVE_TRY(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
	if (root < 0)
		return -errno;
	auto_close int place = RESERVE_TRY(
		(int)syscall(SYS_openat2, root, AGENT_CONTAINER_DIR, &how, sizeof(how)));
	if (place < 0)
		return errno == ELOOP || errno == ENOTDIR ? -ENOENT : -errno;
	if (is_on(place, pid, "tmpfs ") != 1)
		return -ENOENT;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", place);
	int fd = RESERVE_TRY(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	return fd < 0 ? -errno : fd;
}

int agent_dir_open(const char *dir)
{
	int pid, end = 0;

	if (sscanf(dir, "/proc/%d/root" AGENT_CONTAINER_DIR "%n", &pid, &end) == 1 && end &&
	    !dir[end])
		return open_in_container(pid);
	int fd = RESERVE_TRY(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
	return fd < 0 ? -errno : fd;
}

/* Follows no symbolic link. Uses a path through a descriptor, as the path in a socket address has little room. */
static int connect_at(int fd, int dir_fd, const char *name)
{
	auto_close int at = RESERVE_TRY(openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat st;

	if (at < 0 || fstat(at, &st) < 0)
		return -errno;
	if (!S_ISSOCK(st.st_mode))
		return -ENOENT;
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d", at);
	return connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
}

static int connect_socket(int fd, const char *dir, pid_t inner_pid)
{
	auto_close int dir_fd = agent_dir_open(dir);
	char name[16];

	if (dir_fd < 0)
		return dir_fd;
	snprintf(name, sizeof(name), "%d", inner_pid);
	int r = connect_at(fd, dir_fd, name);
	return r == -ECONNREFUSED ? -ENOENT : r;
}

static void note_sharing(struct agent *a, const struct agent_reply *reply)
{
	a->sharing = reply->n;
	snprintf(a->shares, sizeof(a->shares), "%s", reply->text);
}

/* @a: of which process, and how long it may take. */
static int open_agent(struct agent *a, const char *dir, struct brumate_error *err)
{
	struct agent_reply reply = { 0 };
	struct proc_info info;
	int r = proc_read(&info, a->id.pid, err);

	if (r < 0)
		return r;
	a->inner_pid = info.inner_pid;
	/* A full backlog is an error, not a reason to wait. */
	a->fd = RESERVE_TRY(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (a->fd < 0)
		return brumate_fail(err, errno, "socket: %m");
	r = connect_socket(a->fd, dir, info.inner_pid);
	if (r < 0)
		return brumate_fail(err, -r, "process %d: agent: %m", a->id.pid);
	if ((r = check_peer(a->fd, &info, err)) < 0 ||
	    (r = ask_simple(a, AGENT_HELLO, &reply, AGENT_HELLO_TIMEOUT_MS, err)) < 0)
		return r;
	a->managed_bytes = reply.managed_bytes;
	a->driver_bytes = reply.driver_bytes;
	note_sharing(a, &reply);
	return 0;
}

int agent_open(struct agent *ret, const char *dir, struct proc_id id, struct brumate_error *err)
{
	auto_(agent_close) struct agent a = { .fd = -1, .id = id };
	int r = open_agent(&a, dir, err);

	if (r < 0)
		return r;
	*ret = a;
	a.fd = -1;
	return 0;
}

int agent_open_again(struct agent *a, const char *dir, struct brumate_error *err)
{
	auto_(agent_close) struct agent again = { .fd = -1,
						  .id = a->id,
						  .was_silent = a->was_silent,
						  .until_ns = a->until_ns,
						  .simulated = a->simulated };
	int r = open_agent(&again, dir, err);

	a->was_silent = again.was_silent;
	if (r < 0)
		return r;
	*a = again;
	again.fd = -1;
	return 0;
}

void agent_detach(struct agent *a)
{
	struct agent_reply reply = { 0 };

	/* Its end of the connection is to be gone before CRIU looks: it is of our network namespace, not of its own. */
	if (a->fd >= 0 && ask_simple(a, AGENT_DETACH, &reply, AGENT_HELLO_TIMEOUT_MS, NULL) == 0)
		fd_wait(a->fd, POLLIN, deadline_in_ms(DETACH_MS));
	agent_close(a);
}

/* ---- the calls ---- */

int agent_gate(struct agent *a, uint32_t timeout_ms, int drain_fd, uint64_t member,
	       struct brumate_error *err)
{
	struct agent_reply reply = { 0 };
	struct agent_request request = { .op = AGENT_GATE, .timeout_ms = timeout_ms };
	uint32_t patience_ms =
		timeout_ms > UINT32_MAX - GRACE_MS ? UINT32_MAX : timeout_ms + GRACE_MS;

	if (drain_fd >= 0) {
		request.n = 1;
		request.ids[0] = member;
	}
	int r = ask_agent(a, &request, drain_fd >= 0 ? &drain_fd : NULL, &reply, NULL,
			  deadline_in_ms(patience_ms), err);
	if (r == 0 && reply.n)
		note_sharing(a, &reply);
	return r;
}

/* Appends items of either kind: both are of one length. */
_Static_assert(sizeof(struct agent_piece) == sizeof(struct agent_alias), "they share their room");

static int append_items(struct agent_piece **all, size_t *n, const struct agent_reply *reply)
{
	struct agent_piece *more = reallocarray(*all, *n + reply->n + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	memcpy(more + *n, reply->pieces, reply->n * sizeof(*more));
	*all = more;
	*n += reply->n;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const struct agent_piece *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int check_unique(struct agent_piece *pieces, size_t n, pid_t pid, struct brumate_error *err)
{
	qsort(pieces, n, sizeof(*pieces), by_id);
	for (size_t i = 1; i < n; i++)
		if (pieces[i - 1].id == pieces[i].id)
			return brumate_fail(err, EBADMSG, "process %d: list: piece %llu twice", pid,
					    (unsigned long long)pieces[i].id);
	return 0;
}

/* How long the answers to one question may take: a test has it shorter, by "agent.patience.list error:MS". */
static int patience_of(enum agent_op op)
{
	char point[32];

	snprintf(point, sizeof(point), "agent.patience.%s", op_names[op]);
	int r = fault_point(point);
	return r < 0 ? -r : AGENT_CALL_TIMEOUT_MS;
}

/* Collects what an answer of several parts lists (owned), by ids. */
static int list_items(struct agent *a, enum agent_op op, struct agent_reply *reply,
		      struct agent_piece **ret, size_t *ret_n, struct brumate_error *err)
{
	auto_free struct agent_piece *pieces = NULL;
	const int patience_ms = patience_of(op);
	uint64_t deadline_ns = deadline_in_ms((uint64_t)patience_ms);
	size_t n = 0;

	int r = ask_simple(a, op, reply, patience_ms, err);
	while (r == 0) {
		if (n + reply->n > PIECES_MOST) {
			agent_close(a);
			return brumate_fail(err, EBADMSG, "process %d: list: more than %d pieces",
					    a->id.pid, PIECES_MOST);
		}
		if (append_items(&pieces, &n, reply) < 0) {
			agent_close(a);
			return brumate_fail(err, ENOMEM, "%m");
		}
		if (!reply->more)
			break;
		r = get_reply(a, op, reply, NULL, NULL, deadline_ns, err);
	}
	if (r < 0 || (n && (r = check_unique(pieces, n, a->id.pid, err)) < 0))
		return r;
	*ret = take_ptr(&pieces);
	*ret_n = n;
	return 0;
}

int agent_list(struct agent *a, struct agent_piece **ret, size_t *ret_n, struct brumate_error *err)
{
	struct agent_reply reply = { 0 };

	return list_items(a, AGENT_LIST, &reply, ret, ret_n, err);
}

int agent_aliases(struct agent *a, struct agent_alias **ret, size_t *ret_n, uint64_t *ret_token,
		  struct brumate_error *err)
{
	struct agent_reply reply = { 0 };
	struct agent_piece *items = NULL;

	int r = list_items(a, AGENT_ALIASES, &reply, &items, ret_n, err);
	if (r < 0)
		return r;
	*ret = (struct agent_alias *)items;
	*ret_token = reply.token;
	return 0;
}

/* Counts those whose numbers are below @limit: others, from before it was lowered, take no room. */
static size_t count_descriptors(pid_t pid, size_t limit)
{
	auto_free char *path = path_format("/proc/%d/fd", (int)pid);
	auto_closedir DIR *dir = path ? opendir(path) : NULL;
	const struct dirent *entry;
	size_t n = 0;

	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.' && strtoul(entry->d_name, NULL, 10) < limit;
	return n;
}

/* How many descriptors the process may have; 0: unknown, or no limit. */
static size_t descriptor_limit(pid_t pid)
{
	static const char key[] = "Max open files";
	auto_free char *path = path_format("/proc/%d/limits", (int)pid);
	auto_free char *text = NULL;

	if (!path || file_read(AT_FDCWD, path, 1 << 16, &text, NULL) < 0)
		return 0;
	const char *line = strstr(text, key);
	return line ? strtoul(line + strlen(key), NULL, 10) : 0;
}

int agent_check_descriptors(const struct agent *a, size_t n, struct brumate_error *err)
{
	const size_t limit = descriptor_limit(a->id.pid);
	const size_t used = count_descriptors(a->id.pid, limit);
	const size_t need = (n < AGENT_PIECES_MAX ? n : AGENT_PIECES_MAX) + SPARE_DESCRIPTORS;

	if (!limit || limit >= used + need)
		return 0;
	brumate_fail(err, EMFILE,
		     "process %d: %zu descriptors are left of its limit of %zu, and %zu are needed",
		     a->id.pid, limit > used ? limit - used : 0, limit, need);
	brumate_hint(err,
		     "raise its limit of open files: prlimit --pid %d --nofile=%zu:", a->id.pid,
		     limit + need);
	return -EMFILE;
}

/* The callback that takes descriptors over as they arrive. */
struct taker {
	agent_exported_fn tell; /* NULL: nobody is */
	void *arg;
};

/* Makes one request for each AGENT_PIECES_MAX of the pieces. All of them have the time of one call: an agent is a
 * user's program, and may answer each as late as it can. */
static int ask_in_turns(struct agent *a, enum agent_op op, const uint64_t *ids, const int *fds,
			int *ret_fds, size_t n, struct taker taker, struct brumate_error *err)
{
	struct agent_reply reply = { 0 };
	uint64_t deadline_ns = deadline_in_ms((uint64_t)patience_of(op));
	size_t done = 0;
	int r = 0;

	while (r == 0 && done < n) {
		struct agent_request request = { .op = op };

		request.n = (uint32_t)(n - done < AGENT_PIECES_MAX ? n - done : AGENT_PIECES_MAX);
		memcpy(request.ids, ids + done, request.n * sizeof(*ids));
		r = ask_agent(a, &request, fds ? fds + done : NULL, &reply,
			      ret_fds ? ret_fds + done : NULL, deadline_ns, err);
		if (r == 0)
			done += request.n;
		if (r == 0 && taker.tell)
			taker.tell(taker.arg, done);
	}
	scout_end(&a->scout);
	for (size_t i = 0; r < 0 && ret_fds && !taker.tell && i < done; i++)
		cleanup_close(&ret_fds[i]);
	return r;
}

int agent_export(struct agent *a, const uint64_t *ids, size_t n, int *ret_fds,
		 struct brumate_error *err)
{
	return agent_export_and_tell(a, ids, n, ret_fds, NULL, NULL, err);
}

int agent_export_and_tell(struct agent *a, const uint64_t *ids, size_t n, int *ret_fds,
			  agent_exported_fn tell, void *arg, struct brumate_error *err)
{
	return ask_in_turns(a, AGENT_EXPORT, ids, NULL, ret_fds, n, (struct taker){ tell, arg },
			    err);
}

int agent_copy(struct agent *a, uint64_t id, struct agent_piece *ret, int *ret_fd,
	       struct brumate_error *err)
{
	struct agent_reply reply = { 0 };
	struct agent_request request = { .op = AGENT_COPY, .n = 1, .ids = { id } };
	auto_close int fd = -1;

	int r = ask_agent(a, &request, NULL, &reply, &fd, deadline_in_ms(AGENT_CALL_TIMEOUT_MS),
			  err);
	scout_end(&a->scout);
	if (r < 0)
		return r;
	if (reply.n != 1 || reply.pieces[0].id != id)
		return brumate_fail(err, EBADMSG, "process %d: copy: of another piece", a->id.pid);
	*ret = reply.pieces[0];
	*ret_fd = take_fd(&fd);
	return 0;
}

int agent_map(struct agent *a, const uint64_t *ids, const int *fds, size_t n,
	      struct brumate_error *err)
{
	return ask_in_turns(a, AGENT_MAP, ids, fds, NULL, n, (struct taker){ 0 }, err);
}

static int call_agent(struct agent *a, struct agent_request request, size_t *ret_n,
		      struct brumate_error *err)
{
	struct agent_reply reply = { 0 };
	int r = ask_agent(a, &request, NULL, &reply, NULL,
			  deadline_in_ms((uint64_t)patience_of(request.op)), err);

	if (r == 0 && ret_n)
		*ret_n = reply.n;
	return r;
}

int agent_keep_closed(struct agent *a, struct brumate_error *err)
{
	return call_agent(a, (struct agent_request){ .op = AGENT_COPY }, NULL, err);
}

int agent_unmap(struct agent *a, struct brumate_error *err)
{
	return call_agent(a, (struct agent_request){ .op = AGENT_UNMAP }, NULL, err);
}

int agent_unmap_aliases(struct agent *a, struct brumate_error *err)
{
	return call_agent(a, (struct agent_request){ .op = AGENT_UNMAP, .n = 1 }, NULL, err);
}

int agent_own(struct agent *a, bool all, size_t *ret_imported, struct brumate_error *err)
{
	const uint32_t n = all ? AGENT_OWN_GIVEN : 0;

	return call_agent(a, (struct agent_request){ .op = AGENT_OWN, .n = n }, ret_imported, err);
}

int agent_own_ahead(struct agent *a, struct brumate_error *err)
{
	const struct agent_request request = { .op = AGENT_OWN, .n = AGENT_OWN_AHEAD };

	return a->sharing & AGENT_OWNS_AHEAD ? call_agent(a, request, NULL, err) : 0;
}

int agent_open_gate(struct agent *a, struct brumate_error *err)
{
	return call_agent(a, (struct agent_request){ .op = AGENT_OPEN }, NULL, err);
}

int agent_tell_snapshot(struct agent *a, const struct agent_room *held, size_t n,
			struct brumate_error *err)
{
	struct agent_request request = { .op = AGENT_SNAPSHOT };

	for (size_t i = 0; i < n && i < AGENT_SNAPSHOT_GPUS_MAX; i++) {
		memcpy(&request.ids[request.n], held[i].gpu, AGENT_UUID_BYTES);
		request.n += AGENT_SNAPSHOT_ITEM;
		request.ids[request.n - 1] = held[i].bytes;
	}
	return call_agent(a, request, NULL, err);
}

/* ---- sockets that are left behind ---- */

static bool is_number(const char *name)
{
	return *name && !name[strspn(name, "0123456789")] && strlen(name) < 10;
}

bool agent_asks_for_room(int dir_fd, pid_t inner_pid)
{
	struct stat st;
	char name[16];

	snprintf(name, sizeof(name), "%d", inner_pid);
	return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode) &&
	       (st.st_mode & 0777) == AGENT_MODE_WITH_ROOM;
}

bool agent_listens(const char *dir, pid_t inner_pid)
{
	auto_close int dir_fd = agent_dir_open(dir);
	char name[16];

	snprintf(name, sizeof(name), "%d", inner_pid);
	return dir_fd >= 0 && !faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW);
}

static bool has_number(const struct proc_tree *tree, const char *name)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].inner_pid == atoi(name))
			return true;
	return false;
}

/* Whether nobody listens on the socket any more: a connection is refused once all its descriptors are closed. */
static bool is_deserted(int dir_fd, const char *name, struct stat *ret)
{
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd >= 0 && fstatat(dir_fd, name, ret, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISSOCK(ret->st_mode) && connect_at(fd, dir_fd, name) == -ECONNREFUSED;
}

/* A new process may have got the number since it was looked at: its socket, which is another file, goes
 * back to its place. */
static void remove_deserted(int dir_fd, const char *name, const struct stat *was)
{
	static const char aside[] = "deserted";
	struct stat st;

	if (renameat(dir_fd, name, dir_fd, aside) < 0)
		return;
	if (fstatat(dir_fd, aside, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino == was->st_ino)
		unlinkat(dir_fd, aside, 0);
	else
		rename_new(dir_fd, aside, dir_fd, name);
}

/* Names of sockets (owned, each and all) that none of @known has. */
static char **list_suspects(DIR *d, const struct proc_tree *known, size_t *ret_n)
{
	char **names = NULL;
	struct dirent *entry;
	size_t n = 0;

	while (n < SUSPECTS_MOST && (entry = readdir(d))) {
		if (!is_number(entry->d_name) || has_number(known, entry->d_name))
			continue;
		char **more = array_room(names, n, sizeof(*names));
		char *name = more ? strdup(entry->d_name) : NULL;

		names = more ? more : names;
		if (!name)
			break;
		names[n++] = name;
	}
	*ret_n = n;
	return names;
}

void agent_sweep(const char *dir, struct proc_id root, const struct proc_tree *known)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_close int dir_fd = agent_dir_open(dir);
	int list_fd = dir_fd < 0 ? -1 : fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
	auto_closedir DIR *d = list_fd < 0 ? NULL : fdopendir(list_fd);
	struct stat was;
	size_t n = 0;

	if (!d)
		return;
	char **names = list_suspects(d, known, &n);
	/* Read after the names: a process that had made a socket by then is in the tree, or has ended. */
	bool sure = n && proc_tree_read(&tree, root, NULL) == 0;
	for (size_t i = 0; i < n; i++) {
		if (sure && !has_number(&tree, names[i]) && is_deserted(dir_fd, names[i], &was))
			remove_deserted(dir_fd, names[i], &was);
		free(names[i]);
	}
	free(names);
}
