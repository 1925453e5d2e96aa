// SPDX-License-Identifier: MIT
/*
 * Pins: checkpoints that cannot be removed until they are unpinned. The mark is an empty directory next to the
 * checkpoint, ".ID.pinned", and not a part of it: so all machines that share the store see it, and the checkpoint
 * does not change, which matters if it is signed.
 */
#include "store/image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

static const char suffix[] = ".pinned";

enum { MARK_BYTES = 1 + MANIFEST_ID_BYTES + sizeof(suffix) };

static void mark_name(char ret[static MARK_BYTES], const char *id)
{
	snprintf(ret, MARK_BYTES, ".%s%s", id, suffix);
}

size_t pin_mark_id_len(const char *name)
{
	size_t len = strlen(name), tail = strlen(suffix);
	char id[MANIFEST_ID_BYTES];

	if (name[0] != '.' || len <= 1 + tail || len - 1 - tail >= sizeof(id) ||
	    strcmp(name + len - tail, suffix))
		return 0;
	snprintf(id, sizeof(id), "%.*s", (int)(len - 1 - tail), name + 1);
	return manifest_id_is_valid(id) ? len - 1 - tail : 0;
}

/* Whether the checkpoint is pinned: 1 or 0, or -errno if that is unknown. */
static int look_for_pin(int store_fd, const char *id)
{
	char mark[MARK_BYTES];
	struct stat of_mark, of_checkpoint;

	mark_name(mark, id);
	if (fstatat(store_fd, mark, &of_mark, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstatat(store_fd, id, &of_checkpoint, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	/* In a store that several users share, a user cannot prevent another one from removing his own checkpoints. */
	return of_mark.st_uid == of_checkpoint.st_uid || of_mark.st_uid == 0;
}

int pin_sweep(int store_fd, const char *mark, uint64_t deadline_ns)
{
	char id[MANIFEST_ID_BYTES];
	struct stat st;
	int r = -EBUSY;

	snprintf(id, sizeof(id), "%.*s", (int)pin_mark_id_len(mark), mark + 1);
	if (fd_lock(store_fd, deadline_ns) == -EWOULDBLOCK)
		return -EBUSY;
	if (fstatat(store_fd, id, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
		r = unlinkat(store_fd, mark, AT_REMOVEDIR) < 0 ? -errno : 0;
	flock(store_fd, LOCK_UN);
	return r;
}

/* Finds the checkpoint, which may be damaged, and opens its store. Returns its fd (owned). */
static int open_store_of(const char *dir, const char *id, struct brumate_error *err)
{
	auto_close int store_fd = names_open_store(dir, NULL, err);
	struct stat st;

	if (store_fd == -ENOENT || !manifest_id_is_valid(id))
		return names_fail_unknown(err, dir, id);
	if (store_fd < 0)
		return store_fd;
	if (fstatat(store_fd, id, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? names_fail_unknown(err, dir, id)
				       : brumate_fail(err, errno, "checkpoint %s: %m", id);
	return take_fd(&store_fd);
}

int store_pinned(const char *dir, const char *id, struct brumate_error *err)
{
	auto_close int store_fd = open_store_of(dir, id, err);
	int r = store_fd < 0 ? store_fd : look_for_pin(store_fd, id);

	return r < 0 && store_fd >= 0
		       ? brumate_fail(err, -r, "checkpoint %s: is it pinned? %s", id, strerror(-r))
		       : r;
}

int pin_refuse(int store_fd, const char *id, struct brumate_error *err)
{
	int r = look_for_pin(store_fd, id);

	if (r == 0)
		return 0;
	if (r < 0)
		return brumate_fail(err, -r, "checkpoint %s: is it pinned? %s", id, strerror(-r));
	brumate_fail(err, EBUSY, "checkpoint %s: pinned", id);
	brumate_hint(err, "unpin it first: brumate pin --remove %s", id);
	return -EBUSY;
}

int store_refuse_pinned(const char *dir, const char *id, struct brumate_error *err)
{
	auto_close int store_fd = open_store_of(dir, id, err);

	return store_fd < 0 ? store_fd : pin_refuse(store_fd, id, err);
}

/* Makes the mark. The lock of the checkpoint excludes a removal, that of the store a sweep. */
static int make_mark(int store_fd, const char *id, const char *mark)
{
	auto_close int fd = openat(store_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return -EBUSY;
	if (mkdirat(store_fd, mark, 0700) < 0 && errno != EEXIST)
		return -errno;
	int r = call_sync_store(store_fd);
	if (r == 0)
		r = look_for_pin(store_fd, id);
	if (r == 0) /* without effect, like one of another user, which looks the same here */
		unlinkat(store_fd, mark, AT_REMOVEDIR);
	return r;
}

int store_pin(const char *dir, const char *id, struct brumate_error *err)
{
	auto_close int store_fd = open_store_of(dir, id, err);
	char mark[MARK_BYTES];

	if (store_fd < 0)
		return store_fd;
	mark_name(mark, id);
	if (fd_lock(store_fd, deadline_in_ms(STORE_LOCK_MS)) == -EWOULDBLOCK) {
		brumate_fail(err, EBUSY, "%s: somebody has locked this directory", dir);
		brumate_hint(err, "`lslocks` says which process it is; who may not list it cannot "
				  "lock it");
		return -EBUSY;
	}
	int r = make_mark(store_fd, id, mark);
	flock(store_fd, LOCK_UN);
	if (r == -EBUSY)
		return brumate_fail(err, EBUSY, "checkpoint %s: just written, or being removed",
				    id);
	if (r == 0) {
		brumate_fail(err, EACCES, "checkpoint %s: belongs to another user", id);
		brumate_hint(err, "its owner or root pins it");
		return -EACCES;
	}
	return r < 0 ? brumate_fail(err, -r, "%s: cannot pin %s: %s", dir, id, strerror(-r)) : 0;
}

int store_unpin(const char *dir, const char *id, struct brumate_error *err)
{
	auto_close int store_fd = open_store_of(dir, id, err);
	char mark[MARK_BYTES];
	int r = 0;

	if (store_fd < 0)
		return store_fd;
	mark_name(mark, id);
	if (unlinkat(store_fd, mark, AT_REMOVEDIR) < 0)
		r = errno == ENOENT ? 0 : -errno;
	else
		r = call_sync_store(store_fd);
	return r < 0 ? brumate_fail(err, -r, "%s: cannot unpin %s: %s", dir, id, strerror(-r)) : 0;
}
