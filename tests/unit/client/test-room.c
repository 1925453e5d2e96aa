// SPDX-License-Identifier: MIT
/* The socket by which programs ask for room, in a directory where they may put anything. */
#include "client/room.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/scratch.h"

static mode_t mode_of(int dir_fd, const char *name)
{
	struct stat st;

	CHECK(fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
	return st.st_mode & 07777;
}

/* Others may connect whatever our mask is, and nothing but the socket is changed. */
static void test_mode(int dir_fd)
{
	struct room room = ROOM_NONE;

	put_text(dir_fd, "secret", "roots");
	CHECK(symlinkat("secret", dir_fd, AGENT_ROOM_SOCKET) == 0);
	CHECK(linkat(dir_fd, "secret", dir_fd, "other", 0) == 0);
	room.dir = scratch;
	umask(077);
	CHECK(room_listen(&room) && room.listen_fd >= 0);
	CHECK(mode_of(dir_fd, AGENT_ROOM_SOCKET) == 0666);
	CHECK(mode_of(dir_fd, "secret") == 0600);
	CHECK(umask(077) == 077);
	room_close(&room);
	CHECK(faccessat(dir_fd, AGENT_ROOM_SOCKET, F_OK, AT_SYMLINK_NOFOLLOW) < 0);
}

static bool locks_fail;

/* In the place of libc's. */
int flock(int fd, int operation)
{
	errno = ENOLCK;
	return locks_fail ? -1 : (int)syscall(SYS_flock, fd, operation);
}

/* Nothing stays of a file that could not be locked. */
static void test_without_a_lock(int dir_fd)
{
	static const struct agent_room held[1];
	struct room room = ROOM_NONE;

	room.dir = scratch;
	room_tell(&room, held, 1);
	CHECK(room.held_fd >= 0 && mode_of(dir_fd, AGENT_ROOM_FILE) == 0644);
	locks_fail = true;
	room_tell(&room, held, 1);
	CHECK(room.held_fd < 0);
	CHECK(faccessat(dir_fd, AGENT_ROOM_FILE, F_OK, AT_SYMLINK_NOFOLLOW) < 0);
	CHECK(faccessat(dir_fd, AGENT_ROOM_FILE ".new", F_OK, AT_SYMLINK_NOFOLLOW) < 0);
}

int main(void)
{
	int dir_fd = new_scratch();

	test_mode(dir_fd);
	test_without_a_lock(dir_fd);
	close(dir_fd);
	remove_scratch();
	return 0;
}
