// SPDX-License-Identifier: MIT
/* Reading checkpoints: open one by path, id, job or prefix, verify it, list all. Changes nothing. */
#include "store/store.h"
#include "base/paths.h"
#include "chunks/files.h"
#include "store/image.h"
#include "store/names.h"
#include "store/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

void store_image_fini(struct store_image *i)
{
	cleanup_close(&i->dir_fd);
	free(i->path);
	manifest_fini(&i->manifest);
	*i = STORE_IMAGE_EMPTY;
}

static int read_manifest(struct manifest *ret, int dir_fd, struct brumate_error *err)
{
	struct stat st;
	auto_close int fd = files_open(dir_fd, STORE_MANIFEST_NAME, &st);

	if (fd == -ENOENT)
		return brumate_fail(err, EBADMSG, "it has no manifest, so it is no checkpoint");
	if (fd < 0)
		return brumate_fail(err, EBADMSG, "manifest: no readable file: %s", strerror(-fd));
	int r = files_check_owner(&st, err);
	if (r < 0)
		return brumate_wrap(err, r, "manifest");
	if (st.st_size > MANIFEST_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "manifest: %jd bytes, want at most %d",
				    (intmax_t)st.st_size, MANIFEST_BYTES_MAX);

	auto_free char *text = malloc((size_t)st.st_size + 1);
	if (!text)
		return brumate_fail(err, ENOMEM, "manifest: %m");
	ssize_t n = fd_read_full(fd, text, (size_t)st.st_size);
	if (n < 0)
		return brumate_fail(err, (int)-n, "manifest: %m");
	return manifest_decode(ret, text, (size_t)n, err);
}

static int load(struct store_image *ret, const char *path, int dir_fd, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct stat st;

	i.dir_fd = dir_fd;
	if (fstat(dir_fd, &st) < 0)
		return brumate_fail(err, errno, "%m");
	int r = files_check_owner(&st, err);
	if (r == 0)
		r = read_manifest(&i.manifest, dir_fd, err);
	if (r < 0)
		return r;
	i.path = strdup(path);
	if (!i.path)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = i;
	i = STORE_IMAGE_EMPTY;
	return 0;
}

int image_load(struct store_image *ret, int store_fd, const char *store, const char *id,
	       struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	auto_free char *path = path_format("%s/%s", store, id);
	int fd = openat(store_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno, "checkpoint %s: %m", id);

	int r = load(&i, path ? path : id, fd, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", id);
	if (strcmp(i.manifest.id, id)) {
		brumate_fail(err, EBADMSG, "checkpoint %s: its manifest is that of %s", id,
			     i.manifest.id);
		brumate_hint(err, "if the directory was copied or renamed, name it by its path: %s",
			     i.path);
		return -EBADMSG;
	}
	*ret = i;
	i = STORE_IMAGE_EMPTY;
	return 0;
}

int store_unlock(struct store_image *i, const struct store_key *key, struct brumate_error *err)
{
	const char *id = i->manifest.id, *want = i->manifest.key_id;

	if (!*want)
		return 0;
	if (!key) {
		brumate_fail(err, ENOKEY, "checkpoint %s: encrypted, and there is no key", id);
		brumate_hint(err,
			     "name the file of key %.8s by --key-file, or in EncryptionKeyFile= of "
			     "[Store], see brumate.conf(5)",
			     want);
		return -ENOKEY;
	}
	if (!strcmp(key->id, want)) {
		i->key = key;
		return 0;
	}
	brumate_fail(err, EKEYREJECTED, "checkpoint %s: encrypted by key %.8s, not by %.8s", id,
		     want, key->id);
	brumate_hint(err,
		     "name the file of key %.8s by --key-file, or in EncryptionKeyFile=", want);
	return -EKEYREJECTED;
}

static int open_path(struct store_image *ret, const char *given, struct brumate_error *err)
{
	auto_free char *path = NULL;
	int fd = names_open_store(given, &path, err);
	if (fd < 0)
		return brumate_wrap(err, fd, "checkpoint");

	int r = load(ret, path, fd, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", given) : 0;
}

/* A search for the latest checkpoint of a job. */
struct search {
	int store_fd;
	const char *store;
	const char *job;
	struct store_image best;
	time_t best_mtime;
	char damaged[MANIFEST_ID_BYTES]; /* latest damaged one whose id starts with @job */
	time_t damaged_mtime;
	struct brumate_error why;
};

static void consider(struct search *s, const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	struct stat st;

	if (fstatat(s->store_fd, id, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (image_load(&i, s->store_fd, s->store, id, &why) < 0) {
		if (strncmp(id, s->job, strlen(s->job)) || st.st_mtime < s->damaged_mtime)
			return;
		memcpy(s->damaged, id, strlen(id) + 1);
		s->damaged_mtime = st.st_mtime;
		s->why = why;
		return;
	}
	if (strcmp(i.manifest.job.name, s->job) && strcmp(i.manifest.job.id, s->job))
		return;
	if (s->best.path && strcmp(i.manifest.created, s->best.manifest.created) <= 0)
		return;
	store_image_fini(&s->best);
	s->best = i;
	s->best_mtime = st.st_mtime;
	i = STORE_IMAGE_EMPTY;
}

/* The latest checkpoint of the job @job. -ENOENT without touching @err if it has none. A damaged one
 * that looks like a later one of that job is not passed over in silence. */
static int open_latest(struct store_image *ret, int store_fd, const char *store, const char *job,
		       const struct dir_names *all, struct brumate_error *err)
{
	struct search s = {
		.store_fd = store_fd, .store = store, .job = job, .best = STORE_IMAGE_EMPTY
	};

	for (size_t i = 0; i < all->n; i++)
		consider(&s, all->ids[i]);
	if (!s.best.path)
		return -ENOENT;
	if (s.damaged[0] && s.damaged_mtime > s.best_mtime) {
		int code = s.why.code;

		if (err)
			*err = s.why;
		brumate_hint(err, "the latest sound checkpoint of %s is %s: name it to use it", job,
			     s.best.manifest.id);
		store_image_fini(&s.best);
		return -code;
	}
	*ret = s.best;
	return 0;
}

static int find_image(struct store_image *ret, int store_fd, const char *store, const char *id,
		      struct brumate_error *err)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	const char *name = id;
	struct stat st;

	if (manifest_id_is_valid(id) && fstatat(store_fd, id, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return image_load(ret, store_fd, store, id, err);

	int r = dir_names_list(&all, store_fd, manifest_id_is_valid);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", store);
	r = open_latest(ret, store_fd, store, id, &all, err);
	if (r != -ENOENT)
		return r;
	r = names_find_prefix(&name, &all, id, err);
	if (r == -ENOENT)
		return names_fail_unknown(err, store, id);
	return r < 0 ? r : image_load(ret, store_fd, store, name, err);
}

int store_open(struct store_image *ret, const char *dir, const char *id, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	int r;

	if (!*id)
		return brumate_fail(err, EINVAL,
				    "checkpoint: want an id, the name of a job or a path");
	if (strchr(id, '/')) {
		r = open_path(&i, id, err);
	} else {
		auto_free char *store = NULL;
		auto_close int store_fd = names_open_store(dir, &store, err);

		if (store_fd == -ENOENT)
			return names_fail_unknown(err, dir, id);
		r = store_fd < 0 ? store_fd : find_image(&i, store_fd, store, id, err);
	}
	if (r < 0)
		return r;
	*ret = i;
	i = STORE_IMAGE_EMPTY;
	return 0;
}
