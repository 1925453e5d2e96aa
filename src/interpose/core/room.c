// SPDX-License-Identifier: MIT
/* Device memory that other processes hold next to the program's. See room.h. */
#include "interpose/core/room.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/packet.h"

/* Closing a GPU and unpinning what was pinned by it take up to a second, and a copy that is under way comes first. */
enum { ANSWER_S = 10 };

/* Returns whether @ret, of @room bytes, holds the path of a file next to the agents' sockets. */
static bool find_path(char *ret, size_t room, const char *name)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);
	int n = dir && *dir ? snprintf(ret, room, "%s/%s", dir, name) : -1;

	return n >= 0 && (size_t)n < room;
}

/* Where nobody listens there is nothing to be had. */
static int connect_to_shim(const char *name)
{
	const struct timeval patience = { .tv_sec = ANSWER_S };
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	if (!find_path(at.sun_path, sizeof(at.sun_path), name))
		return -ENOENT;
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 ||
	    connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		return -errno;
	return take_fd(&fd);
}

bool room_ask(bool *asked)
{
	struct packet_fds none = { 0 };
	int saved = errno;
	char nothing;

	if (*asked || !getenv(AGENT_DIR_VARIABLE))
		return false;
	*asked = true;
	auto_close int fd = connect_to_shim(AGENT_ROOM_SOCKET);
	if (fd >= 0) /* else it may have been given back since the allocation was tried */
		packet_receive(fd, &nothing, sizeof(nothing), &none,
			       deadline_in_ms(ANSWER_S * 1000));
	errno = saved;
	return true;
}

bool room_is_shared(void)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	int saved = errno;
	bool shared = find_path(path, sizeof(path), AGENT_NEED_SOCKET) && !access(path, F_OK);

	errno = saved;
	return shared;
}

bool room_wait_for_neighbours(void)
{
	struct packet_fds none = { 0 };
	int saved = errno;
	char answer = 0;

	if (!getenv(AGENT_DIR_VARIABLE))
		return false;
	auto_close int fd = connect_to_shim(AGENT_NEED_SOCKET);
	/* The shim sees to it that this ends, and so does its end. */
	if (fd < 0 || packet_receive(fd, &answer, sizeof(answer), &none, DEADLINE_NEVER) != 1)
		answer = 0;
	errno = saved;
	return answer == AGENT_NEED_AGAIN;
}

/* The shim holds a lock on the file as long as what it says is so. */
static int open_held(void)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path) + sizeof(AGENT_ROOM_FILE)];

	if (!find_path(path, sizeof(path), AGENT_ROOM_FILE))
		return -ENOENT;
	auto_close int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0)
		return -ENOENT;
	return take_fd(&fd);
}

uint64_t room_held_bytes(const uint8_t uuid[static AGENT_UUID_BYTES])
{
	struct agent_room rooms[AGENT_ROOMS_MAX];
	uint64_t bytes = 0;
	int saved = errno;
	auto_close int fd = open_held();
	ssize_t n = fd < 0 ? -1 : read(fd, rooms, sizeof(rooms));

	for (size_t i = 0; n > 0 && i < (size_t)n / sizeof(rooms[0]); i++)
		if (!memcmp(rooms[i].gpu, uuid, AGENT_UUID_BYTES))
			bytes += rooms[i].bytes;
	errno = saved;
	return bytes;
}

/* ---- the snapshot ---- */

/* The process that released it may have died before it said so. So it is tried anyway, for this long. */
enum { TRY_S = 1, SILENCE_S = 30 };

static atomic_bool is_held;
static atomic_uint changes; /* a futex */
static atomic_ulong noted_ns;

void snapshot_note(bool held)
{
	atomic_store(&noted_ns, clock_now_ns());
	atomic_store(&is_held, held);
	atomic_fetch_add(&changes, 1);
	syscall(SYS_futex, &changes, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

void snapshot_forget(void)
{
	if (atomic_load(&is_held))
		snapshot_note(false);
}

bool snapshot_is_held(void)
{
	return atomic_load(&is_held);
}

unsigned int snapshot_look(void)
{
	return atomic_load(&changes);
}

bool snapshot_wait(unsigned int *seen)
{
	const struct timespec patience = { .tv_sec = TRY_S };
	unsigned int now = atomic_load(&changes);
	int saved = errno;

	if (now == *seen && !atomic_load(&is_held))
		return false;
	if (now == *seen && clock_now_ns() - atomic_load(&noted_ns) > SILENCE_S * NS_PER_S) {
		snapshot_forget();
		return false;
	}
	if (now == *seen)
		syscall(SYS_futex, &changes, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, now, &patience, NULL,
			0);
	*seen = atomic_load(&changes);
	errno = saved;
	return true;
}
