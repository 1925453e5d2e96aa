// SPDX-License-Identifier: MIT
/* The rules of a manifest that go beyond the type and range of a member. Pure. */
#include "image/schema.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

bool manifest_id_is_valid(const char *id)
{
	size_t len =
		strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	return len > 0 && len < MANIFEST_ID_BYTES && !id[len] && id[0] != '.';
}

bool manifest_path_is_valid(const char *path)
{
	if (strlen(path) >= PATH_MAX)
		return false;

	for (;;) {
		size_t len = strcspn(path, "/");
		bool dots = (len == 1 && path[0] == '.') ||
			    (len == 2 && path[0] == '.' && path[1] == '.');

		if (len == 0 || len > NAME_MAX || dots)
			return false;
		if (!path[len])
			return true;
		path += len + 1;
	}
}

static bool is_stamp(const char *text)
{
	static const char form[] = "0000-00-00T00:00:00.000Z";

	if (strlen(text) != strlen(form))
		return false;
	for (size_t i = 0; form[i]; i++)
		if (form[i] == '0' ? !isdigit((unsigned char)text[i]) : text[i] != form[i])
			return false;
	return true;
}

static int check_absolute(const char *path, const char *what, struct brumate_error *err)
{
	if (path && path[0] != '/')
		return brumate_fail(err, EBADMSG, "%s: want an absolute path", what);
	return 0;
}

static int check_job(const struct manifest *m, struct brumate_error *err)
{
	int r = check_absolute(m->job.cwd, "job: cwd", err);

	if (r == 0)
		r = check_absolute(m->job.log, "job: log", err);
	if (r == 0)
		r = check_absolute(m->job.rootfs, "job: rootfs", err);
	if (r == 0 && m->job.id[0] && !manifest_id_is_valid(m->job.id))
		r = brumate_fail(err, EBADMSG, "job: id: \"%s\" is no valid id", m->job.id);
	return r;
}

static int check_files(const struct manifest *m, struct brumate_error *err)
{
	for (size_t i = 0; i < m->n_files; i++) {
		const char *path = m->files[i].path;

		if (!manifest_path_is_valid(path) || !strcmp(path, MANIFEST_FILE_NAME))
			return brumate_fail(err, EBADMSG,
					    "files: item %zu: \"%s\" is no path below the "
					    "checkpoint",
					    i, path);
		if (i == 0)
			continue;

		int order = strcmp(m->files[i - 1].path, path);
		if (order >= 0)
			return brumate_fail(err, EBADMSG, "files: item %zu: \"%s\" is %s", i, path,
					    order ? "out of order" : "there twice");
	}
	return 0;
}

/* Whether @path is that of a file. Files are sorted. */
static bool is_file(const struct manifest *m, const char *path)
{
	size_t low = 0, high = m->n_files;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(m->files[middle].path, path);

		if (order == 0)
			return true;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

static int check_packs(const struct manifest *m, struct brumate_error *err)
{
	const struct manifest_pack *packs = m->memory.packs;

	for (size_t i = 0; i < m->memory.n_packs; i++) {
		const char *path = packs[i].path;

		if (!manifest_path_is_valid(path) || !strcmp(path, MANIFEST_FILE_NAME))
			return brumate_fail(err, EBADMSG,
					    "memory: packs: item %zu: \"%s\" is no path below the "
					    "checkpoint",
					    i, path);
		if (is_file(m, path) || (i && strcmp(packs[i - 1].path, path) >= 0))
			return brumate_fail(
				err, EBADMSG,
				"memory: packs: item %zu: \"%s\" is out of order or there "
				"twice",
				i, path);
	}
	return 0;
}

static int check_regions(const struct manifest *m, struct brumate_error *err)
{
	uint64_t end, total = 0;

	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *region = &m->memory.regions[i];

		if (__builtin_add_overflow(region->va, region->len_bytes, &end) ||
		    __builtin_add_overflow(total, region->len_bytes, &total) || total > INT64_MAX)
			return brumate_fail(err, EBADMSG,
					    "memory: regions: item %zu: longer than any memory", i);
	}
	if (!is_file(m, MANIFEST_TABLE_PATH) && (m->memory.n_regions || m->memory.n_packs))
		return brumate_fail(err, EBADMSG, "memory: no file " MANIFEST_TABLE_PATH);
	return 0;
}

static int check_memory(const struct manifest *m, struct brumate_error *err)
{
	int r = check_packs(m, err);

	return r < 0 ? r : check_regions(m, err);
}

static int check_externals(const struct manifest *m, struct brumate_error *err)
{
	for (size_t i = 0; i < m->n_externals; i++) {
		const char *word = m->externals[i].become;

		if (strcmp(word, "log") && strcmp(word, "null") && strcmp(word, "tty") &&
		    strcmp(word, "append"))
			return brumate_fail(
				err, EBADMSG,
				"externals: item %zu: become: want log, null, tty or append", i);
	}
	return 0;
}

int manifest_check(const struct manifest *m, struct brumate_error *err)
{
	if (!manifest_id_is_valid(m->id))
		return brumate_fail(err, EBADMSG, "id: \"%s\" is no valid id", m->id);
	if (!is_stamp(m->created))
		return brumate_fail(err, EBADMSG,
				    "created: want a time as 2026-01-01T00:00:00.000Z");

	size_t key_len = strlen(m->key_id);
	if (key_len &&
	    (key_len != MANIFEST_KEY_BYTES - 1 || strspn(m->key_id, "0123456789abcdef") != key_len))
		return brumate_fail(err, EBADMSG, "key_id: no id of a key");

	int r = check_job(m, err);
	if (r == 0)
		r = check_files(m, err);
	if (r == 0)
		r = check_memory(m, err);
	return r < 0 ? r : check_externals(m, err);
}
