// SPDX-License-Identifier: MIT
/* Device memory that is held for programs, next to theirs. See room.h. */
#include "client/room.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
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
#include "base/thread.h"
#include "client/agent.h"
#include "client/broker.h"

static const char made_file[] = AGENT_ROOM_FILE ".new";

enum { BACKLOG = 64 };

static int open_dir(const struct room *room)
{
	return room->dir ? agent_dir_open(room->dir) : -ENOENT;
}

/* A socket that is to be bound. */
struct binding {
	int fd, dir_fd;
	int r;
};

/* The socket's mode is what the file creation mask leaves of 0777, and that mask is the process's: a thread takes one of its
 * own first. */
static void *bind_for_all(void *arg)
{
	struct binding *b = arg;
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/" AGENT_ROOM_SOCKET,
		 b->dir_fd);
	b->r = unshare(CLONE_FS) < 0 ? -errno : 0;
	if (b->r < 0)
		return NULL;
	umask(0111);
	if (bind(b->fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		b->r = -errno;
	return NULL;
}

static int listen_in(int dir_fd)
{
	auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct binding b = { .fd = fd, .dir_fd = dir_fd };
	pthread_t thread;

	if (fd < 0)
		return -errno;
	/* The job's user may write there: what lies there by that name afterwards is not to be touched by it. */
	unlinkat(dir_fd, AGENT_ROOM_SOCKET, 0);
	int r = thread_start(&thread, bind_for_all, &b);
	if (r < 0)
		return r;
	pthread_join(thread, NULL);
	if (b.r == 0 && listen(fd, BACKLOG) < 0)
		b.r = -errno;
	return b.r < 0 ? b.r : take_fd(&fd);
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

/* The file is locked as long as it is valid: the lock ends with our process. */
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
