// SPDX-License-Identifier: MIT
/* The lock and the socket of the one broker of a runtime directory. See instance.h. */
#include "broker/instance.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLAIM_TIMEOUT_MS = 15000, CLAIM_RECHECK_MS = 50 };

static bool is_served(const char *path)
{
	struct wire w;

	if (wire_connect(&w, path, NULL) < 0)
		return false;
	wire_fini(&w);
	return true;
}

/* Returns 0 with the lock, 1 if its holder serves, -EAGAIN if it does neither at this moment. */
static int try_claim(int lock_fd, const char *path)
{
	if (flock(lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return -errno;
	return is_served(path) ? 1 : -EAGAIN;
}

/* Sleeps until something happens in the directory: the socket appears, the lock file is closed. The
 * kernel tells of a close just before it drops the lock, so there is a second look a little later. */
static int wait_event(int inotify_fd)
{
	struct pollfd p = { .fd = inotify_fd, .events = POLLIN };
	char events[4096];
	int n = poll(&p, 1, CLAIM_RECHECK_MS);

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	return n > 0 && read(inotify_fd, events, sizeof(events)) < 0 ? -errno : 0;
}

static int claim_lock(int lock_fd, const char *dir, const char *path)
{
	auto_close int watch = inotify_init1(IN_CLOEXEC);
	uint64_t deadline_ns = deadline_in_ms(CLAIM_TIMEOUT_MS);

	if (watch < 0 ||
	    inotify_add_watch(watch, dir, IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE) < 0)
		return -errno;
	for (;;) {
		int r = try_claim(lock_fd, path);

		if (r != -EAGAIN)
			return r;
		if (deadline_left_ms(deadline_ns) == 0)
			return -ETIMEDOUT;
		r = wait_event(watch);
		if (r < 0)
			return r;
	}
}

int instance_claim(struct instance *ret, bool simulated, struct brumate_error *err)
{
	auto_(instance_fini) struct instance i = INSTANCE_EMPTY;
	const char *dir = path_runtime_dir(), *name = simulated ? "broker-simulated" : "broker";
	auto_free char *lock = path_format("%s/%s.lock", dir, name);
	i.path = path_format("%s/%s.sock", dir, name);
	if (!lock || !i.path)
		return brumate_fail(err, ENOMEM, "%s: %m", dir);

	int r = path_make_runtime_dir(err);
	if (r < 0)
		return r;
	i.lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (i.lock_fd < 0)
		return brumate_fail(err, errno, "%s: %m", lock);
	r = claim_lock(i.lock_fd, dir, i.path);
	if (r < 0)
		return brumate_fail(err, -r, "%s: held by a broker that does not answer: %m", lock);
	if (r > 0)
		return 1;

	i.listen_fd = wire_listen(i.path, 0600, err);
	if (i.listen_fd < 0)
		return i.listen_fd;
	struct stat st;
	if (lstat(i.path, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", i.path);
	i.dev = st.st_dev;
	i.ino = st.st_ino;
	*ret = i;
	i = INSTANCE_EMPTY;
	return 0;
}

/* Not that of another broker, in a directory that was removed and made again. */
static bool is_ours(const struct instance *i)
{
	struct stat st;

	return lstat(i->path, &st) == 0 && st.st_dev == i->dev && st.st_ino == i->ino;
}

void instance_withdraw(struct instance *i)
{
	if (is_ours(i))
		unlink(i->path);
}

/* Renamed first: a client that was on its way in is found in the queue, and the same socket can be
 * put back for it. One that looks for the socket meanwhile starts a broker, which waits. */
int instance_retire(struct instance *i)
{
	auto_free char *aside = path_format("%s.closing", i->path);
	struct pollfd p = { .fd = i->listen_fd, .events = POLLIN };

	if (!aside || !is_ours(i) || rename(i->path, aside) < 0)
		return 0;
	if (poll(&p, 1, 0) > 0 && rename(aside, i->path) == 0)
		return 1;
	unlink(aside);
	return 0;
}

void instance_fini(struct instance *i)
{
	cleanup_close(&i->listen_fd);
	free(take_ptr(&i->path));
	cleanup_close(&i->lock_fd);
}
