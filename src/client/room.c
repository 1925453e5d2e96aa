// SPDX-License-Identifier: MIT
/* Device memory that is held beside the programs it is for. See room.h. */
#include "client/room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "client/agent.h"
#include "client/broker.h"

static const char made_file[] = AGENT_ROOM_FILE ".new";

enum { BACKLOG = 64 };

static int open_dir(const struct room *room)
{
	return room->dir ? agent_dir_open(room->dir) : -ENOENT;
}

/* The job's user may write there: nothing is followed, and what is changed is what was made. */
static int let_connect(int dir_fd)
{
	auto_close int at = openat(dir_fd, AGENT_ROOM_SOCKET, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	char path[64];

	if (at < 0 || fstat(at, &st) < 0)
		return -errno;
	if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
		return -EPERM;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", at);
	return chmod(path, 0666) < 0 ? -errno : 0;
}

static int listen_in(int dir_fd)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/" AGENT_ROOM_SOCKET, dir_fd);
	unlinkat(dir_fd, AGENT_ROOM_SOCKET, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, BACKLOG) < 0)
		return -errno;
	int r = let_connect(dir_fd);
	return r < 0 ? r : take_fd(&fd);
}

bool room_listen(struct room *room)
{
	auto_close int dir_fd = open_dir(room);

	if (room->listen_fd < 0 && dir_fd >= 0)
		room->listen_fd = listen_in(dir_fd);
	if (room->listen_fd < 0)
		log_debug("no GPU is kept open for a copy: %s",
			  strerror(dir_fd < 0 ? -dir_fd : -room->listen_fd));
	return room->listen_fd >= 0;
}

/* What is told is locked as long as it is so, whoever ends. */
static int make_file(int dir_fd, const struct agent_room *rooms, size_t n)
{
	unlinkat(dir_fd, made_file, 0);
	auto_close int fd = openat(dir_fd, made_file,
				   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fchmod(fd, 0644) < 0)
		return -errno;
	int r = fd_write_full(fd, rooms, n * sizeof(*rooms));
	if (r == 0 && renameat(dir_fd, made_file, dir_fd, AGENT_ROOM_FILE) < 0)
		r = -errno;
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

/* Who connected before is answered by the end of that, and looks for room once more. */
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

void room_give_back(bool simulated)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = broker_client_open(&b, simulated, &err);

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
