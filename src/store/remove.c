// SPDX-License-Identifier: MIT
/*
 * Removing checkpoints, and sweeping what dead writers and removers left. Whoever removes holds the
 * lock (flock) of the directory, so that two never work on the same one.
 */
#include "store/store.h"
#include "base/paths.h"
#include "store/call.h"
#include "store/names.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { HIDDEN_BYTES = MANIFEST_ID_BYTES + 64 };

/* A name that no one else uses. */
static void hidden_name(char ret[static HIDDEN_BYTES], const char *id, size_t id_len)
{
	static atomic_uint counter;

	snprintf(ret, HIDDEN_BYTES, ".%.*s.removed-%d-%u", (int)id_len, id, getpid(),
		 atomic_fetch_add(&counter, 1));
}

/* Opens and locks a directory of the store. Returns its fd; -EBUSY if someone holds it. */
static int open_locked(int store_fd, const char *name)
{
	auto_close int fd = openat(store_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	return take_fd(&fd);
}

static int resolve(const char **ret, const struct dir_names *all, const char *dir, const char *id,
		   struct brumate_error *err)
{
	for (size_t i = 0; i < all->n; i++) {
		if (!strcmp(all->ids[i], id)) {
			*ret = all->ids[i];
			return 0;
		}
	}
	int r = *id ? names_find_prefix(ret, all, id, err) : -ENOENT;
	return r == -ENOENT ? names_fail_unknown(err, dir, id) : r;
}

static int hide_and_remove(int store_fd, const char *dir, const char *name,
			   struct brumate_error *err)
{
	char hidden[HIDDEN_BYTES];
	auto_close int fd = open_locked(store_fd, name);

	if (fd == -EBUSY) {
		brumate_fail(err, EBUSY, "checkpoint %s: in use", name);
		brumate_hint(err, "wait until it is restored or verified");
		return -EBUSY;
	}
	if (fd == -ENOENT)
		return names_fail_unknown(err, dir, name);
	/* Locks may be missing (network file systems); other failures show in the rename. */
	hidden_name(hidden, name, strlen(name));
	int r = call_rename(store_fd, name, hidden);
	if (r == -ENOENT)
		return names_fail_unknown(err, dir, name);
	if (r == 0)
		r = call_sync_store(store_fd);
	if (r == 0)
		r = call_remove_tree(store_fd, hidden);
	if (r == 0)
		return 0;
	files_fail(err, -r, dir, "remove");
	return brumate_wrap(err, r, "checkpoint %s", name);
}

int store_remove(const char *dir, const char *id, struct brumate_error *err)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_close int store_fd = names_open_store(dir, NULL, err);
	const char *name = NULL;

	if (store_fd == -ENOENT)
		return names_fail_unknown(err, dir, id);
	if (store_fd < 0)
		return store_fd;
	int r = dir_names_list(&all, store_fd, manifest_id_is_valid);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", dir);
	r = resolve(&name, &all, dir, id, err);
	return r < 0 ? r : hide_and_remove(store_fd, dir, name, err);
}

/* Takes a leftover whose owner is dead out of sight. Returns the fd that keeps it locked. */
static int claim(int store_fd, const char *name, char ret_hidden[static HIDDEN_BYTES])
{
	struct stat st;
	auto_close int fd = open_locked(store_fd, name);

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0 || (st.st_uid != geteuid() && geteuid() != 0))
		return -EACCES;
	hidden_name(ret_hidden, name + 1, names_leftover_id_len(name));
	if (renameat2(store_fd, name, store_fd, ret_hidden, RENAME_NOREPLACE) < 0)
		return -errno;
	return take_fd(&fd);
}

static int sweep_one(int store_fd, const char *name)
{
	char hidden[HIDDEN_BYTES];

	/* The lock of the store keeps writers from creating one that they have not locked yet. */
	flock(store_fd, LOCK_EX);
	auto_close int fd = claim(store_fd, name, hidden);
	flock(store_fd, LOCK_UN);
	if (fd < 0)
		return fd;
	return call_remove_tree(store_fd, hidden);
}

int store_sweep(const char *dir)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_close int store_fd = names_open_store(dir, NULL, NULL);
	int swept = 0;

	if (store_fd < 0)
		return store_fd == -ENOENT ? 0 : store_fd;
	int r = dir_names_list(&all, store_fd, names_is_leftover);
	if (r < 0)
		return r;
	for (size_t i = 0; i < all.n; i++)
		if (sweep_one(store_fd, all.ids[i]) == 0)
			swept++;
	return swept;
}

int store_free_bytes(const char *dir, uint64_t *ret, struct brumate_error *err)
{
	auto_free char *path = *dir == '/' ? strdup(dir) : path_format("./%s", dir);
	struct statvfs fs;

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	while (statvfs(path, &fs) < 0) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT || !slash)
			return brumate_fail(err, errno, "%s: free space: %m", dir);
		/* The root keeps its slash. */
		slash[slash == path ? 1 : 0] = '\0';
	}
	*ret = (uint64_t)fs.f_bavail * fs.f_frsize;
	return 0;
}
