// SPDX-License-Identifier: MIT
/* Device memory that is held for programs, next to theirs. See room.h. */
#include "client/room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "client/agent.h"
#include "client/beside.h"
#include "client/broker.h"

static const char made_file[] = AGENT_ROOM_FILE ".new";

enum { BACKLOG = 64 };

static int open_dir(const struct room *room)
{
	return room->dir ? agent_dir_open(room->dir) : -ENOENT;
}

bool room_listen(struct room *room)
{
	auto_close int dir_fd = open_dir(room);

	if (room->listen_fd < 0 && dir_fd >= 0)
		room->listen_fd = beside_listen(dir_fd, AGENT_ROOM_SOCKET, SOCK_SEQPACKET, BACKLOG);
	if (room->listen_fd < 0)
		log_debug("no GPU is kept open for a copy: %s",
			  strerror(dir_fd < 0 ? -dir_fd : -room->listen_fd));
	return room->listen_fd >= 0;
}

/* The file is locked as long as it is valid: the lock ends with our process. */
static int make_file(int dir_fd, const struct agent_room *rooms, size_t n)
{
	unlinkat(dir_fd, made_file, 0);
	auto_close int fd = openat(dir_fd, made_file,
				   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);

	if (fd < 0)
		return -errno;
	int r = flock(fd, LOCK_EX | LOCK_NB) < 0 || fchmod(fd, 0644) < 0
			? -errno
			: fd_write_full(fd, rooms, n * sizeof(*rooms));
	if (r == 0 && renameat(dir_fd, made_file, dir_fd, AGENT_ROOM_FILE) < 0)
		r = -errno;
	if (r < 0)
		unlinkat(dir_fd, made_file, 0);
	return r < 0 ? r : take_fd(&fd);
}

void room_tell(struct room *room, const struct agent_room *held, size_t n)
{
	auto_close int dir_fd = open_dir(room);

	cleanup_close(&room->held_fd);
	if (dir_fd < 0)
		return;
	int fd = n ? make_file(dir_fd, held, n) : -ENODATA;
	if (fd < 0)
		unlinkat(dir_fd, AGENT_ROOM_FILE, 0);
	room->held_fd = fd < 0 ? -1 : fd;
}

/* A process that connected before sees the connection end, and looks for room once more. */
void room_close(struct room *room)
{
	if (room->listen_fd < 0 && room->held_fd < 0)
		return;
	auto_close int dir_fd = open_dir(room);

	room_tell(room, NULL, 0);
	if (room->listen_fd >= 0 && dir_fd >= 0)
		unlinkat(dir_fd, AGENT_ROOM_SOCKET, 0);
	cleanup_close(&room->listen_fd);
}

void room_give_back(const struct gpu_kind *kind)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = broker_client_open(&b, kind, &err);

	if (r == 0)
		r = broker_client_yield(&b, &err);
	if (r < 0)
		log_warn("device memory that was held is not given back: reason=\"%s\"", err.text);
}

/* No more than have room to wait: who asks all the time does not keep us here. */
void room_answer(struct room *room)
{
	for (int i = 0; i < BACKLOG && room->listen_fd >= 0; i++) {
		int fd = accept4(room->listen_fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			return;
		close(fd); /* which is the answer */
	}
}
