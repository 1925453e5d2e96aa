// SPDX-License-Identifier: MIT
/*
 * Finds and opens checkpoints: the names in a store, one checkpoint by path, id, job or prefix, and the list of all;
 * and reads one file of a checkpoint, verified against the manifest. Nothing here changes the disk.
 */
#include "store/image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/nearest.h"
#include "base/paths.h"
#include "chunks/files.h"
#include "store/sealed.h"
#include "store/store.h"

/* ---- names ---- */

/* The link in the path of @dir that leads to nothing; NULL: it is not one that keeps @dir from being there. */
static char *find_dangling(const char *dir)
{
	char *at = strdup(dir);
	struct stat st;

	for (; at && lstat(at, &st) < 0 && errno == ENOENT;) {
		char *slash = strrchr(at, '/');

		if (!slash || slash == at)
			break;
		*slash = '\0';
	}
	if (at && stat(at, &st) < 0 && errno == ENOENT && lstat(at, &st) == 0)
		return at;
	free(at);
	return NULL;
}

int store_refuse_dangling(const char *dir, struct brumate_error *err)
{
	auto_free char *link = find_dangling(dir);
	char target[PATH_MAX];
	ssize_t n = link ? readlink(link, target, sizeof(target) - 1) : -1;

	if (n < 0)
		return 0;
	target[n] = '\0';
	brumate_fail(err, ENOTDIR, "%s is a link to %s, which does not exist", link, target);
	brumate_error_exit(err, EXIT_USAGE);
	brumate_hint(err, "make that directory, or mount what it is on");
	return -ENOTDIR;
}

int names_open_store(const char *dir, char **ret_path, struct brumate_error *err)
{
	auto_free char *path = realpath(dir, NULL);
	if (!path) {
		int code = errno, r = code == ENOENT ? store_refuse_dangling(dir, err) : 0;

		return r < 0 ? r : brumate_fail(err, code, "%s: %s", dir, strerror(code));
	}

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

/* The candidates from @first on, as many as fit, and the number of the rest. */
static void name_candidates(char *out, size_t room, const struct dir_names *all, size_t first,
			    size_t n)
{
	size_t used = 0, i = 0;

	for (; i < n && i < 5; i++)
		used += (size_t)snprintf(out + used, room - used, "%s%s", i ? ", " : "",
					 all->ids[first + i]);
	if (i < n)
		snprintf(out + used, room - used, " and %zu more", n - i);
}

/* The one id that starts with @prefix. 0 and @ret borrowed from @all; -ENOENT without setting @err; -ENOTUNIQ. */
static int find_prefix(const char **ret, const struct dir_names *all, const char *prefix,
		       struct brumate_error *err)
{
	size_t len = strlen(prefix), first = 0, n = 0;

	if (len < STORE_PREFIX_BYTES_MIN)
		return -ENOENT;
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

/* ---- one checkpoint ---- */

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
		return brumate_fail(err, EBADMSG, "it has no manifest, so it is not a checkpoint");
	if (files_cannot_tell(-fd))
		return brumate_fail(err, -fd, "manifest: %m");
	if (fd < 0)
		return brumate_fail(err, EBADMSG, "manifest: not a readable file: %s",
				    strerror(-fd));
	int r = files_check_owner(&st, err);
	if (r < 0)
		return brumate_wrap(err, r, "manifest");
	if (st.st_size > MANIFEST_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "manifest: %jd bytes, expected at most %d",
				    (intmax_t)st.st_size, MANIFEST_BYTES_MAX);

	auto_free char *text = malloc((size_t)st.st_size + 1);
	if (!text)
		return brumate_fail(err, ENOMEM, "manifest: %m");
	ssize_t n = fd_read_full(fd, text, (size_t)st.st_size);
	if (n < 0)
		return brumate_fail(err, (int)-n, "manifest: %m");
	return manifest_decode(ret, text, (size_t)n, err);
}

static int load_dir(struct store_image *ret, const char *path, int dir_fd,
		    struct brumate_error *err)
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
	*ret = take_struct(i, STORE_IMAGE_EMPTY);
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

	int r = load_dir(&i, path ? path : id, fd, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", id);
	if (strcmp(i.manifest.id, id)) {
		brumate_fail(err, EBADMSG, "checkpoint %s: its manifest is that of %s", id,
			     i.manifest.id);
		brumate_hint(err, "if the directory was copied or renamed, name it by its path: %s",
			     i.path);
		return -EBADMSG;
	}
	*ret = take_struct(i, STORE_IMAGE_EMPTY);
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

	int r = load_dir(ret, path, fd, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", given) : 0;
}

/* A search for the latest checkpoint of a job. */
struct latest_search {
	int store_fd;
	const char *store;
	const char *job;
	struct store_image best;
	time_t best_mtime;
	char damaged[MANIFEST_ID_BYTES]; /* latest damaged one whose id starts with @job */
	time_t damaged_mtime;
	struct brumate_error why;
	bool is_unsure; /* one could not be examined, because of @why: it may be the latest */
};

static void note_unsure(struct latest_search *s, const struct brumate_error *why)
{
	if (!s->is_unsure)
		s->why = *why;
	s->is_unsure = true;
}

static void consider_image(struct latest_search *s, const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	struct stat st;

	if (fstatat(s->store_fd, id, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno == ENOENT)
			return;
		brumate_fail(&why, errno, "checkpoint %s: %m", id);
		note_unsure(s, &why);
		return;
	}
	int r = image_load(&i, s->store_fd, s->store, id, &why);
	if (files_cannot_tell(-r)) {
		note_unsure(s, &why);
		return;
	}
	if (r < 0) {
		/* In a store of all, anybody can make one that looks like a later one. */
		const bool is_anothers = st.st_uid != geteuid() && st.st_uid != 0;
		const time_t mtime = is_anothers ? 0 : st.st_mtime;

		if (strncmp(id, s->job, strlen(s->job)) || mtime < s->damaged_mtime)
			return;
		memcpy(s->damaged, id, strlen(id) + 1);
		s->damaged_mtime = mtime;
		s->why = why;
		return;
	}
	if (strcmp(i.manifest.job.name, s->job) && strcmp(i.manifest.job.id, s->job))
		return;
	if (s->best.path && manifest_sequence(&i.manifest) <= manifest_sequence(&s->best.manifest))
		return;
	store_image_fini(&s->best);
	s->best = i;
	s->best_mtime = st.st_mtime;
	i = STORE_IMAGE_EMPTY;
}

static void hint_best(const struct latest_search *s, struct brumate_error *err)
{
	if (s->best.path)
		brumate_hint(err, "the latest sound checkpoint of %s is %s: name it to use it",
			     s->job, s->best.manifest.id);
}

/* The latest checkpoint of the job @job. -ENOENT without setting @err if it has none. A damaged one that looks like a
 * later one of that job is not skipped silently. */
static int open_latest(struct store_image *ret, int store_fd, const char *store, const char *job,
		       const struct dir_names *all, struct brumate_error *err)
{
	struct latest_search s = {
		.store_fd = store_fd, .store = store, .job = job, .best = STORE_IMAGE_EMPTY
	};

	for (size_t i = 0; i < all->n; i++)
		consider_image(&s, all->ids[i]);
	if (s.is_unsure) {
		if (err)
			*err = s.why;
		hint_best(&s, err);
		store_image_fini(&s.best);
		return -s.why.code;
	}
	if (!s.best.path)
		return -ENOENT;
	if (s.damaged[0] && s.damaged_mtime > s.best_mtime) {
		int code = s.why.code;

		if (err)
			*err = s.why;
		hint_best(&s, err);
		store_image_fini(&s.best);
		return -code;
	}
	*ret = s.best;
	return 0;
}

static void hint_nearest(const struct dir_names *all, const char *id, struct brumate_error *err)
{
	struct nearest n = { .word = id };

	for (size_t i = 0; i < all->n; i++)
		nearest_consider(&n, all->ids[i]);
	if (n.found[0])
		brumate_hint(err, "did you mean %s?", n.found);
}

static int find_image(struct store_image *ret, int store_fd, const char *store, const char *id,
		      struct brumate_error *err)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	const char *name = id;
	struct stat st;

	if (manifest_id_is_valid(id) &&
	    (fstatat(store_fd, id, &st, AT_SYMLINK_NOFOLLOW) == 0 || files_cannot_tell(errno)))
		return image_load(ret, store_fd, store, id, err);

	int r = dir_names_list(&all, store_fd, manifest_id_is_valid);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", store);
	r = open_latest(ret, store_fd, store, id, &all, err);
	if (r != -ENOENT)
		return r;
	r = find_prefix(&name, &all, id, err);
	if (r == -ENOENT) {
		names_fail_unknown(err, store, id);
		hint_nearest(&all, id, err);
	}
	return r < 0 ? r : image_load(ret, store_fd, store, name, err);
}

int store_open(struct store_image *ret, const char *dir, const char *id, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	int r;

	if (!*id)
		return brumate_fail(err, EINVAL,
				    "checkpoint: expected an id, the name of a job or a path");
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
	*ret = take_struct(i, STORE_IMAGE_EMPTY);
	return 0;
}

int image_hold(const struct store_image *i)
{
	return flock(i->dir_fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -EBUSY : 0;
}

/* ---- the list ---- */

struct aged_id {
	const char *id;	   /* borrowed from the names */
	uint64_t sequence; /* 0: damaged */
};

static int by_age(const void *a, const void *b)
{
	const struct aged_id *left = a, *right = b;

	if (!left->sequence != !right->sequence)
		return left->sequence ? -1 : 1;
	if (left->sequence != right->sequence)
		return left->sequence < right->sequence ? -1 : 1;
	return strcmp(left->id, right->id);
}

/* Manifests are read twice, the first time for the order only: all of them at once could be gigabytes. */
static struct aged_id *sort_by_age(int store_fd, const char *store, const struct dir_names *all)
{
	struct aged_id *entries = calloc(all->n ? all->n : 1, sizeof(*entries));

	for (size_t i = 0; entries && i < all->n; i++) {
		auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

		entries[i].id = all->ids[i];
		if (image_load(&image, store_fd, store, all->ids[i], NULL) == 0)
			entries[i].sequence = manifest_sequence(&image.manifest);
	}
	if (entries && all->n)
		qsort(entries, all->n, sizeof(*entries), by_age);
	return entries;
}

int store_list(const char *dir,
	       void (*fn)(void *arg, const char *id, const struct store_image *i,
			  const struct brumate_error *why),
	       void *arg, struct brumate_error *err)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_free char *store = NULL;
	auto_close int store_fd = names_open_store(dir, &store, err);

	if (store_fd == -ENOENT) {
		if (err)
			*err = BRUMATE_ERROR_NONE;
		return 0;
	}
	if (store_fd < 0)
		return store_fd;
	int r = dir_names_list(&all, store_fd, manifest_id_is_valid);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", dir);
	auto_free struct aged_id *entries = sort_by_age(store_fd, store, &all);
	if (!entries)
		return brumate_fail(err, ENOMEM, "%m");

	for (size_t i = 0; i < all.n; i++) {
		auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
		struct brumate_error why = BRUMATE_ERROR_NONE;

		r = image_load(&image, store_fd, store, entries[i].id, &why);
		if (r == -ENOENT)
			continue; /* removed in the meantime */
		fn(arg, entries[i].id, r < 0 ? NULL : &image, r < 0 ? &why : NULL);
	}
	return 0;
}

/* The highest sequence of a job's checkpoints. */
struct newest {
	const char *job;
	uint64_t sequence;
};

static void note_newest(void *arg, const char *id, const struct store_image *i,
			const struct brumate_error *why)
{
	struct newest *n = arg;

	if (i && !strcmp(i->manifest.job.id, n->job) &&
	    manifest_sequence(&i->manifest) > n->sequence)
		n->sequence = manifest_sequence(&i->manifest);
}

uint64_t store_newest_sequence(const char *dir, const char *job)
{
	struct newest n = { .job = job };

	return store_list(dir, note_newest, &n, NULL) < 0 ? 0 : n.sequence;
}

/* ---- one file of a checkpoint ---- */

static int compare_paths(const void *key, const void *item)
{
	return strcmp(key, ((const struct manifest_file *)item)->path);
}

/* Reads all of @fd from its start. */
static int read_whole(char **ret, int fd, size_t len_bytes)
{
	auto_free char *text = malloc(len_bytes + 1);

	if (!text)
		return -ENOMEM;
	ssize_t n = fd_read_at(fd, text, len_bytes, 0);
	if (n < (ssize_t)len_bytes)
		return n < 0 ? (int)n : -EBADMSG;
	text[len_bytes] = '\0';
	*ret = take_ptr(&text);
	return 0;
}

static int check_digest(const struct manifest_file *f, const char *text)
{
	struct digest digest;
	int r = digest_buffer(&digest, text, f->len_bytes);

	if (r == 0 && memcmp(&digest, &f->digest, sizeof(digest)))
		return -EBADMSG;
	return r;
}

/* Decrypts a sealed file. Its content is never written to a disk. */
static int unseal(char **ret, size_t *ret_len, const struct store_image *i, int fd,
		  const char *name)
{
	auto_close int plain = memfd_create("brumate-image", MFD_CLOEXEC);
	struct stat st;

	if (plain < 0)
		return -errno;
	int r = sealed_open_file(plain, fd, i->key, i->manifest.id, name);
	if (r == 0 && fstat(plain, &st) < 0)
		r = -errno;
	if (r == 0)
		r = read_whole(ret, plain, (size_t)st.st_size);
	if (r == 0)
		*ret_len = (size_t)st.st_size;
	return r;
}

static int read_file(char **ret, size_t *ret_len, const struct store_image *i,
		     const struct manifest_file *f, const char *name)
{
	auto_close int fd = files_open(i->dir_fd, f->path, NULL);
	auto_free char *text = NULL;
	int r = fd < 0 ? fd : read_whole(&text, fd, f->len_bytes);

	if (r == 0)
		r = check_digest(f, text);
	if (r == 0 && *i->manifest.key_id)
		return unseal(ret, ret_len, i, fd, name);
	if (r < 0)
		return r;
	*ret = take_ptr(&text);
	*ret_len = f->len_bytes;
	return 0;
}

int store_read_image(char **ret, size_t *ret_len_bytes, const struct store_image *i,
		     const char *name, size_t max_bytes, struct brumate_error *err)
{
	const struct manifest *m = &i->manifest;
	auto_free char *path = path_format("criu/%s", name);

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	const struct manifest_file *f =
		bsearch(path, m->files, m->n_files, sizeof(*f), compare_paths);
	if (!f)
		return -ENOENT;
	if (f->len_bytes > max_bytes)
		return brumate_fail(err, EFBIG, "%s: %llu bytes, expected at most %zu", path,
				    (unsigned long long)f->len_bytes, max_bytes);
	if (*m->key_id && !i->key)
		return brumate_fail(err, ENOKEY, "%s: is encrypted, and no key is configured",
				    path);
	int r = read_file(ret, ret_len_bytes, i, f, name);
	if (r == -EBADMSG)
		return brumate_fail(err, EBADMSG, "%s: damaged: it is not what the manifest says",
				    path);
	return r < 0 ? brumate_fail(err, r == -ENOENT ? EBADMSG : -r, "%s: %s", path, strerror(-r))
		     : 0;
}
