// SPDX-License-Identifier: MIT
/* Who else has a pack, found by its inode; see sharers.h. */
#include "chunks/sharers.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/paths.h"
#include "image/manifest.h"
#include "chunks/files.h"

enum { NAMED_MAX = 4 };

static bool has_file(int store_fd, const char *id, const char *path, const struct stat *want)
{
	auto_free char *full = path_format("%s/%s", id, path);
	struct stat st;

	return full && fstatat(store_fd, full, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_ino == want->st_ino && st.st_dev == want->st_dev;
}

void sharers_describe(char *ret, size_t room, int dir_fd, const char *id, const char *path)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_close int store_fd = openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	size_t len = 0, n = 0;
	struct stat st;

	*ret = '\0';
	if (store_fd < 0 || fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    st.st_nlink < 2 || dir_names_list(&all, store_fd, manifest_id_is_valid) < 0)
		return;
	for (size_t i = 0; i < all.n; i++) {
		if (!strcmp(all.ids[i], id) || !has_file(store_fd, all.ids[i], path, &st))
			continue;
		if (n++ < NAMED_MAX && len < room)
			len += (size_t)snprintf(ret + len, room - len, "%s%s",
						n > 1 ? ", " : "; shared with ", all.ids[i]);
	}
	if (n > NAMED_MAX && len < room)
		snprintf(ret + len, room - len, " and %zu more", n - NAMED_MAX);
}
