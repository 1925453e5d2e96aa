// SPDX-License-Identifier: MIT
/* Directories of containers. See container-private.h. */
#include "edges/containers/container-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "client/keeper.h"

enum { NOTE_BYTES_MAX = 64, TAKE_TRIES = 3, WAIT_S = 60 };

static char *all_places(void)
{
	return path_format("%s/containers", path_runtime_dir());
}

static int parse_id(struct proc_id *ret, const char *text)
{
	int end = 0;

	if (sscanf(text, "%d-%" SCNu64 "%n", &ret->pid, &ret->start_ticks, &end) != 2 ||
	    text[end] || ret->pid <= 0)
		return -EBADMSG;
	return 0;
}

static void wake(int signal)
{
	(void)signal;
}

/* Waits for the process that gives a container that continues its GPUs back. -EBUSY: for too long. */
static int wait_for_lock(int fd)
{
	const struct sigaction waking = { .sa_handler = wake };
	struct sigaction before;

	sigaction(SIGALRM, &waking, &before);
	alarm(WAIT_S);
	int r = flock(fd, LOCK_EX) < 0 ? -errno : 0;
	alarm(0);
	sigaction(SIGALRM, &before, NULL);
	return r == -EINTR ? -EBUSY : r;
}

/* Locks the directory @dir. -EBUSY: another process has it; -ENOENT: it was removed. */
static int lock_place(const char *dir, bool wait)
{
	auto_free char *path = path_format("%s/" KEEPER_OWNER_LOCK, dir);
	auto_close int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;

	if (fd < 0)
		return path ? -errno : -ENOMEM;
	int r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
	if (r == -EWOULDBLOCK)
		r = wait ? wait_for_lock(fd) : -EBUSY;
	if (r < 0)
		return r;
	/* Its last owner may have removed it with all that is in it. */
	return access(path, F_OK) < 0 ? -ENOENT : take_fd(&fd);
}

static void sweep_place(const char *parent, const char *name)
{
	struct proc_id root;
	auto_free char *dir = path_format("%s/%s", parent, name);

	if (!dir || parse_id(&root, name) < 0 || !proc_has_ended(root))
		return;
	auto_close int lock_fd = lock_place(dir, false);
	if (lock_fd >= 0)
		remove_tree(AT_FDCWD, dir);
}

/* What was left by containers that ended when nobody was at them. */
static void sweep_places(const char *parent)
{
	auto_closedir DIR *dir = opendir(parent);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		sweep_place(parent, entry->d_name);
}

static int make_place(const char *dir, bool wait)
{
	int lock_fd = -ENOENT;

	for (int tries = 0; lock_fd == -ENOENT && tries < TAKE_TRIES; tries++) {
		int r = mkdir_parents(dir, 0700);

		if (r < 0)
			return r;
		lock_fd = lock_place(dir, wait);
	}
	return lock_fd;
}

int container_place_take(struct container_place *ret, struct proc_id root, bool wait,
			 struct brumate_error *err)
{
	auto_free char *parent = all_places();
	auto_free char *dir =
		parent ? path_format("%s/%d-%" PRIu64, parent, root.pid, root.start_ticks) : NULL;
	int r = path_make_runtime_dir(err);

	if (r < 0)
		return r;
	if (!dir)
		return brumate_fail(err, ENOMEM, "%m");
	sweep_places(parent);
	int lock_fd = make_place(dir, wait);
	if (lock_fd == -EBUSY)
		return brumate_fail(err, EBUSY,
				    "the container of process %d is being checkpointed already",
				    root.pid);
	if (lock_fd < 0)
		return brumate_fail(err, -lock_fd, "%s: %m", dir);
	*ret = (struct container_place){ take_ptr(&dir), lock_fd };
	return 0;
}

int container_place_want_heir(const struct container_place *p, struct proc_id criu,
			      struct brumate_error *err)
{
	auto_free char *path = path_format("%s/" KEEPER_HEIR_NOTE, p->dir);
	char text[NOTE_BYTES_MAX];
	int len = snprintf(text, sizeof(text), "%d-%" PRIu64, criu.pid, criu.start_ticks);

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	int r = file_swap(AT_FDCWD, path, text, (size_t)len, 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", path) : 0;
}

int container_place_inherit(const char *dir, struct proc_id *ret_root, struct proc_id *ret_criu,
			    struct brumate_error *err)
{
	auto_free char *path = path_format("%s/" KEEPER_HEIR_NOTE, dir);
	auto_free char *text = NULL;
	const char *name = strrchr(dir, '/');
	int r = path ? file_read(AT_FDCWD, path, NOTE_BYTES_MAX, &text, NULL) : -ENOMEM;

	if (r == 0)
		r = parse_id(ret_criu, text);
	if (r == 0)
		r = name ? parse_id(ret_root, name + 1) : -EBADMSG;
	return r < 0 ? brumate_fail(err, -r, "%s: %m", dir) : 0;
}

void container_place_leave(struct container_place *p, bool wanted)
{
	auto_free char *note = p->dir ? path_format("%s/" KEEPER_HEIR_NOTE, p->dir) : NULL;

	if (note && p->lock_fd >= 0)
		unlink(note);
	if (p->dir && p->lock_fd >= 0 && !wanted && remove_tree(AT_FDCWD, p->dir) < 0)
		log_warn("a directory is left: path=%s", p->dir);
	container_place_fini(p);
}

void container_place_fini(struct container_place *p)
{
	free(p->dir);
	cleanup_close(&p->lock_fd);
	*p = CONTAINER_PLACE_NONE;
}
