// SPDX-License-Identifier: MIT
/* Names in a store; see names.h. */
#include "store/names.h"
#include "base/array.h"
#include "image/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int names_open_store(const char *dir, char **ret_path, struct brumate_error *err)
{
	auto_free char *path = realpath(dir, NULL);
	if (!path)
		return brumate_fail(err, errno, "%s: %m", dir);

	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", dir);
	if (ret_path)
		*ret_path = take_ptr(&path);
	return fd;
}

/* Where the suffix of a hidden name starts, or NULL. */
static const char *leftover_suffix(const char *name)
{
	static const char partial[] = ".partial", removed[] = ".removed-";
	size_t len = strlen(name);

	if (len > strlen(partial) && !strcmp(name + len - strlen(partial), partial))
		return name + len - strlen(partial);
	for (const char *p = name; (p = strstr(p, removed)); p++) {
		const char *numbers = p + strlen(removed);

		if (!numbers[strspn(numbers, "0123456789-")])
			return p;
	}
	return NULL;
}

size_t names_leftover_id_len(const char *name)
{
	const char *suffix = name[0] == '.' ? leftover_suffix(name + 1) : NULL;
	char id[MANIFEST_ID_BYTES];

	if (!suffix || suffix - (name + 1) >= MANIFEST_ID_BYTES)
		return 0;
	size_t len = (size_t)(suffix - (name + 1));
	memcpy(id, name + 1, len);
	id[len] = '\0';
	return manifest_id_is_valid(id) ? len : 0;
}

bool names_is_leftover(const char *name)
{
	return names_leftover_id_len(name) > 0;
}

/* The candidates from @first on, as many as fit, and how many more. */
static void name_candidates(char *out, size_t room, const struct dir_names *all, size_t first, size_t n)
{
	size_t used = 0, i = 0;

	for (; i < n && i < 5; i++)
		used += (size_t)snprintf(out + used, room - used, "%s%s", i ? ", " : "",
					 all->ids[first + i]);
	if (i < n)
		snprintf(out + used, room - used, " and %zu more", n - i);
}

int names_find_prefix(const char **ret, const struct dir_names *all, const char *prefix,
		      struct brumate_error *err)
{
	size_t len = strlen(prefix), first = 0, n = 0;

	while (first < all->n && strncmp(all->ids[first], prefix, len))
		first++;
	while (first + n < all->n && !strncmp(all->ids[first + n], prefix, len))
		n++;
	if (n == 0)
		return -ENOENT;
	if (n > 1) {
		char candidates[5 * MANIFEST_ID_BYTES + 64];

		name_candidates(candidates, sizeof(candidates), all, first, n);
		brumate_fail(err, ENOTUNIQ, "checkpoint %s: the prefix of %zu: %s", prefix, n,
			     candidates);
		brumate_hint(err, "give more of the id");
		brumate_error_exit(err, EXIT_USAGE);
		return -ENOTUNIQ;
	}
	*ret = all->ids[first];
	return 0;
}

int names_fail_unknown(struct brumate_error *err, const char *dir, const char *id)
{
	brumate_fail(err, ENOENT, "no checkpoint %s in %s", id, dir);
	brumate_hint(err, "`brumate ls` lists them; a path needs a '/' in it");
	return -ENOENT;
}
