// SPDX-License-Identifier: MIT
/* What others learn of a call that waits, and of the last use of the GPU. See wake.h. */
#include "interpose/core/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "wire/agent.h"

static _Atomic(const char *) agent_path; /* of the agent's socket; NULL: there is no agent */
static atomic_bool has_asked;
static _Atomic(const char *) asked_by;

/* Returns whether @ret is the address that the shim of the job listens at, next to the agent's own socket. */
static bool find_shim(struct sockaddr_un *ret)
{
	const char *own = atomic_load(&agent_path), *slash = own ? strrchr(own, '/') : NULL;
	int n = slash ? snprintf(ret->sun_path, sizeof(ret->sun_path), "%.*s/" AGENT_WAKE_SOCKET,
				 (int)(slash - own), own)
		      : -1;

	ret->sun_family = AF_UNIX;
	return n >= 0 && (size_t)n < sizeof(ret->sun_path);
}

/* Without a connection, so that a dump at this moment finds a socket that it can save. Where nobody listens, or more packets
 * wait there than it holds, there is nothing to do. */
static void send_packet(const char *call)
{
	struct agent_wake packet = { .version = AGENT_VERSION, .pid = (int32_t)getpid() };
	struct sockaddr_un at = { 0 };
	auto_close int fd = -1;

	if (!find_shim(&at))
		return;
	snprintf(packet.call, sizeof(packet.call), "%s", call ? call : "");
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct iovec bytes = { .iov_base = &packet, .iov_len = sizeof(packet) };
	const struct msghdr message = {
		.msg_name = &at, .msg_namelen = sizeof(at), .msg_iov = &bytes, .msg_iovlen = 1
	};
	/* By a call that the agent makes anyway: what else it makes, a filter may kill the program for. */
	if (fd >= 0)
		sendmsg(fd, &message, MSG_NOSIGNAL);
}

void wake_begin(const char *path)
{
	atomic_store(&agent_path, path);
}

void wake_ask(const char *call)
{
	int saved = errno;

	if (atomic_exchange(&has_asked, true))
		return;
	atomic_store(&asked_by, call);
	send_packet(call);
	errno = saved;
}

void wake_ask_again(void)
{
	int saved = errno;

	send_packet(atomic_load(&asked_by));
	errno = saved;
}

void wake_forget(void)
{
	atomic_store(&has_asked, false);
}

void wake_note_use(void)
{
	const char *own = atomic_load(&agent_path);
	int saved = errno;

	if (own)
		utimensat(AT_FDCWD, own, NULL, AT_SYMLINK_NOFOLLOW);
	errno = saved;
}
