// SPDX-License-Identifier: MIT
/*
 * Whether an address is in use. For the internet the kernel is asked with a bind like CRIU's; for unix sockets its list
 * of them is read. A connect would disturb the listener. The answers are 1 (it is in use), 0, and -errno: it is not
 * known. Connections of the job that ended before its checkpoint keep the listening port busy for a minute, though no
 * process has them (NCCL leaves some at ports where it goes on listening). The kernel is made to forget those, or the
 * restore waits for them.
 */
#include "engine/externals.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/escape.h"
#include "base/paths.h"
#include "criu/images.h"
#include "engine/rights.h"
#include "job/job.h"
#include "process/aside.h"
#include "process/ports.h"
#include "wire/wire.h"

enum {
	SOCKETS_BYTES_MAX = 64 << 20,
	UNIX_LISTENS = 1 << 16,
	ENDED_MS = 65000, /* the kernel forgets such a connection after 60 s */
	LOOK_AGAIN_MS = 50,
	LOOK_TIMEOUT_MS = 2000, /* for an answer of a file system */
};

/* The process that uses an address, in words; empty if unknown. */
struct holder {
	char text[32 + PROC_COMM_BYTES];
};

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
		      struct brumate_error *err)
{
	const struct op *op = arg;
	int r = file_read(op->images.dir_fd, name, CRIU_IMAGE_BYTES_MAX, ret, ret_len_bytes);

	return r < 0 ? brumate_fail(err, -r, "CRIU's image %s: %m", name) : 0;
}

static void tell_holder(struct holder *ret, pid_t pid, const char *comm)
{
	snprintf(ret->text, sizeof(ret->text), " by process %d (%s)", pid, comm);
}

/* ---- of the internet ---- */

/* A socket is of the user who made it, and those of one user may share a port. */
static int socket_of(uid_t uid, int family, int type)
{
	uid_t was = (uid_t)setfsuid(uid);
	int fd = socket(family, type | SOCK_CLOEXEC, 0);
	int r = fd < 0 ? -errno : fd;

	setfsuid(was);
	return r;
}

/* Sockets that share a port on purpose do so with a copy, too. */
static int inet_is_taken(const union port_address *address, socklen_t len, bool is_tcp, uid_t uid)
{
	const int on = 1, family = address->any.sa_family;
	auto_close int fd = socket_of(uid, family, is_tcp ? SOCK_STREAM : SOCK_DGRAM);

	if (fd < 0) /* nobody has an address of a family that is not here */
		return fd == -EAFNOSUPPORT ? 0 : fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	return bind(fd, &address->any, len) < 0 && errno == EADDRINUSE;
}

/* Whether nothing but connections that have ended keeps the port. @ret_holder: who else does. */
static bool is_kept_by_ended(const union port_address *address, bool is_tcp,
			     struct holder *ret_holder)
{
	struct port_use use = { 0 };

	if (port_look(&use, address, is_tcp, NULL) == 0 && use.pid)
		tell_holder(ret_holder, use.pid, use.comm);
	return is_tcp && use.n_ended && !use.n_sockets;
}

/* Like inet_is_taken(), but first waits for the kernel to forget connections that have ended. */
static int inet_stays_taken(struct op *op, const char *text, bool is_tcp, uid_t uid,
			    struct holder *ret_holder, struct brumate_error *err)
{
	uint64_t deadline_ns = deadline_in_ms(ENDED_MS);
	union port_address address;
	socklen_t len = port_address_parse(&address, text);
	int taken = 0, r = 0;

	while (len && (taken = inet_is_taken(&address, len, is_tcp, uid)) > 0 && r == 0 &&
	       is_kept_by_ended(&address, is_tcp, ret_holder) && clock_now_ns() < deadline_ns) {
		progress_wait_for(&op->progress, "the kernel to forget connections that ended");
		if (port_forget_ended(&address, NULL) < 0)
			nanosleep(&(struct timespec){ .tv_nsec = LOOK_AGAIN_MS * NS_PER_MS }, NULL);
		r = progress_check(&op->progress, err);
	}
	return r < 0 ? r : taken;
}

/* ---- unix sockets ---- */

/* A line of /proc/net/unix: "Num: RefCount Protocol Flags Type St Inode Path". */
static bool line_is_of(const char *line, const char *address, unsigned *ret_inode)
{
	unsigned flags, type;
	int path = 0;

	if (sscanf(line, "%*x: %*x %*x %x %x %*x %u %n", &flags, &type, ret_inode, &path) != 3 ||
	    !path)
		return false;
	return (flags & UNIX_LISTENS || type == SOCK_DGRAM) && !strcmp(line + path, address);
}

/* In memory that is shared with who looks. */
struct socket_look {
	struct stat st;
	char path[PATH_MAX];
};

static int look_at_socket(void *arg)
{
	struct socket_look *look = arg;

	return stat(look->path, &look->st) < 0 ? errno : 0;
}

/* Beneath @path, which is the user's, may be a file system that does not answer. 1: it is a socket; 0; -ETIMEDOUT, -errno. */
static int stat_socket(struct stat *ret, const char *path)
{
	struct socket_look *look = aside_memory(sizeof(*look));

	if (!look)
		return -ENOMEM;
	snprintf(look->path, sizeof(look->path), "%s", path);
	int r = aside_run(look_at_socket, look, -1, LOOK_TIMEOUT_MS);
	*ret = look->st;
	aside_free(look, sizeof(*look));
	if (r == -ETIMEDOUT || r == -ENOMEM || r == -EAGAIN)
		return r;
	return r == 0 && S_ISSOCK(ret->st_mode);
}

/* @sockets: the kernel's list. One that was left behind has its file, but is not in the list. */
static int unix_is_taken(const char *sockets, const char *address, const char *dir,
			 struct holder *ret_holder)
{
	auto_free char *text = strdup(sockets);
	auto_free char *path =
		*address == '/' || !dir ? strdup(address) : path_format("%s/%s", dir, address);
	struct proc_info holder;
	struct stat st;
	unsigned inode;

	if (!text || !path)
		return -ENOMEM;
	int r = *address == '@' ? 1 : stat_socket(&st, path);
	if (r <= 0)
		return r;
	char *rest = text;
	for (char *line; (line = strsep(&rest, "\n"));) {
		if (!line_is_of(line, address, &inode) ||
		    (*address != '@' && port_is_at_file(inode, &st) == 0))
			continue;
		if (port_find_holder(&holder, inode))
			tell_holder(ret_holder, holder.id.pid, holder.comm);
		return 1;
	}
	return 0;
}

/* Where it has a place of its own, an agent's socket takes nobody's. */
static bool is_of_agent(const struct op *op, const char *address)
{
	auto_free char *place = job_agent_place(op->target);
	size_t len = place ? strlen(place) : 0;

	return len && !strncmp(address, place, len) && address[len] == '/';
}

/* ---- both ---- */

/* What the check needs besides the socket. */
struct check {
	struct op *op;
	const char *unix_sockets; /* the kernel's list */
	uid_t uid;		  /* as whom CRIU will bind */
};

/* CRIU binds no TCP socket that has a peer as others do: that always goes. */
static bool is_bound_anew(json_t *socket, bool is_tcp)
{
	return !is_tcp || (strcmp(text_of(socket, "state"), "connected") != 0 &&
			   !json_object_get(socket, "peer"));
}

/* Of one that was killed, by which the kernel would refuse the same connection. Without the right to it CRIU tells. */
static void forget_connection(const char *address, json_t *socket)
{
	union port_address own, peer;

	if (port_address_parse(&own, address) && port_address_parse(&peer, text_of(socket, "peer")))
		port_forget_connection(&own, &peer, NULL);
}

static int is_taken(const struct check *check, json_t *socket, struct holder *ret_holder,
		    struct brumate_error *err)
{
	const char *state = text_of(socket, "state"), *protocol = text_of(socket, "protocol");
	const char *dir = json_string_value(json_object_get(socket, "directory"));
	auto_free char *address = NULL;
	int r = text_unescape(&address, text_of(socket, "address"));

	if (r < 0 || !*address)
		return r;
	const bool is_udp = !strcmp(protocol, "udp"), is_tcp = !strcmp(protocol, "tcp");
	if (is_tcp && json_object_get(socket, "peer"))
		forget_connection(address, socket);
	/* The job gets it back. */
	if (is_tcp && !strcmp(state, "listening") && check->op->listeners &&
	    listeners_have(check->op->listeners, address))
		return 0;
	if (!strcmp(text_of(socket, "kind"), "inet"))
		return (is_udp || is_tcp) && is_bound_anew(socket, is_tcp)
			       ? inet_stays_taken(check->op, address, is_tcp, check->uid,
						  ret_holder, err)
			       : 0;
	if (strcmp(text_of(socket, "kind"), "unix") != 0 || is_of_agent(check->op, address) ||
	    !strcmp(state, "connected") || !strcmp(state, "outside") ||
	    !(!strcmp(state, "listening") || !strcmp(protocol, "datagram")))
		return 0;
	return unix_is_taken(check->unix_sockets, address, dir, ret_holder);
}

static int fail_taken(const struct op *op, const char *address, const struct holder *holder,
		      struct brumate_error *err)
{
	brumate_fail(err, EADDRINUSE, "address %s of the job is in use%s", address, holder->text);
	brumate_error_exit(err, EXIT_BUSY);
	brumate_hint(err, *op->target->started_as
				  ? "end who listens there: the job of which this is a copy?"
				  : "end the process that has it, or wait until it has ended");
	return -EADDRINUSE;
}

static int check_each(const struct check *check, json_t *sockets, struct brumate_error *err)
{
	json_t *socket;
	size_t i;

	json_array_foreach (sockets, i, socket) {
		const char *address = text_of(socket, "address");
		struct holder holder = { "" };
		int r = is_taken(check, socket, &holder, err);

		if (r < 0)
			return err && err->code ? r
						: brumate_fail(err, -r, "address %s of the job: %m",
							       address);
		if (r && !check->op->request->force)
			return fail_taken(check->op, address, &holder, err);
	}
	return 0;
}

int addresses_check(struct op *op, struct brumate_error *err)
{
	auto_free char *list = NULL;
	auto_json json_t *sockets = NULL;
	struct criu_user *user = NULL;
	int r = rights_for_restore(op, &user, err);

	if (r == 0)
		r = criu_sockets_read(&sockets, read_image, op, err);
	if (r == 0 && json_array_size(sockets))
		r = file_read(AT_FDCWD, "/proc/net/unix", SOCKETS_BYTES_MAX, &list, NULL);
	if (r < 0)
		return brumate_wrap(err, r, "addresses of the job");

	const struct check check = { op, list, user ? user->uid : geteuid() };
	return check_each(&check, sockets, err);
}
