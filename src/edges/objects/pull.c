// SPDX-License-Identifier: MIT
/*
 * Downloads a checkpoint from an object store: files in ranges, several at a time, each compared with the manifest's
 * digest before it counts. Packs that the store already has are linked instead.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "base/paths.h"
#include "chunks/chunks.h"
#include "chunks/reader.h"
#include "edges/objects/object.h"
#include "edges/objects/remote.h"
#include "store/authentic.h"
#include "store/store.h"

/* ---- staging ---- */

/*
 * The directory in which a pull collects files: ".ID.pulling" in the store, with one file for each of the manifest,
 * named by its number and its digest; a pack has its own name. Complete files have that name and are verified, except
 * packs; others end in ".part". The directory outlives an interrupted pull, so that the next one continues.
 */
struct staging {
	int dir_fd; /* locked (flock) while in use */
	int store_fd;
	char *name; /* owned */
};
#define STAGING_EMPTY ((struct staging){ .dir_fd = -1, .store_fd = -1 })

/* A file that is being downloaded. The first thread starts it, and the thread that does its last part ends it. */
struct pull_item {
	struct place_file file;
	pthread_mutex_t lock;
	char *key; /* owned */
	int fd;
	bool there;
	atomic_size_t n_left;
};

struct pull_unit;

/* The checkpoint that was found, and the state of its download. Owns its members. */
struct pull {
	struct http_client client;
	struct found found;
	bool files_only; /* do not download packs, and keep nothing after an interruption */
	struct store_writer writer; /* the downloaded files, uncommitted */
	struct staging staging;
	struct pull_item *items;
	size_t n_items;
	struct pull_unit *units;
	size_t n_units;
	bool linked; /* packs of this store */
	atomic_uint_fast64_t moved_files, moved_bytes;
};
#define PULL_EMPTY      \
	((struct pull){ \
		.writer = STORE_WRITER_EMPTY, .staging = STAGING_EMPTY, .client.stop_fd = -1 })

enum { NAME_BYTES = DIGEST_TEXT_BYTES + 32, OPEN_MAX_TRIES = 8 };

static const char staging_suffix[] = ".pulling";

static void staging_close(struct staging *s)
{
	cleanup_close(&s->dir_fd);
	cleanup_close(&s->store_fd);
	free(s->name);
	*s = STAGING_EMPTY;
}
DEFINE_AUTO_FINI(struct staging, staging_close)

/* Removes the directory with all its content. */
static void staging_remove(struct staging *s)
{
	remove_tree(s->store_fd, s->name);
	staging_close(s);
}

/* Opens and locks it. -ESTALE: a sweep removed it in between. */
static int open_locked(int store_fd, const char *name)
{
	auto_close int fd = openat(store_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_nlink == 0)
		return -ESTALE;
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return -EACCES;
	return take_fd(&fd);
}

/* Opens or creates the directory for @id in the store @w writes to. -EBUSY: another pull of it is under way. */
static int staging_open(struct staging *ret, const struct store_writer *w, const char *id,
			struct brumate_error *err)
{
	auto_(staging_close) struct staging s = STAGING_EMPTY;
	int fd = -ESTALE;

	s.store_fd = fcntl(w->store_fd, F_DUPFD_CLOEXEC, 0);
	s.name = path_format(".%s%s", id, staging_suffix);
	if (s.store_fd < 0 || !s.name)
		return brumate_fail(err, ENOMEM, "%m");
	for (int i = 0; i < OPEN_MAX_TRIES && (fd == -ESTALE || fd == -ENOENT); i++) {
		if (mkdirat(s.store_fd, s.name, 0700) < 0 && errno != EEXIST)
			return brumate_fail(err, errno, "%s: %m", s.name);
		fd = open_locked(s.store_fd, s.name);
	}
	if (fd == -EBUSY)
		return brumate_fail(err, EBUSY, "%s is being pulled already", id);
	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", s.name);
	s.dir_fd = fd;
	*ret = take_struct(s, STAGING_EMPTY);
	return 0;
}

static void staged_name(char ret[static NAME_BYTES], size_t i, const struct place_file *f,
			bool complete)
{
	char digest[DIGEST_TEXT_BYTES] = "pack";

	if (f->digest)
		digest_format(digest, f->digest);
	snprintf(ret, NAME_BYTES, "%zu-%s%s", i, digest, complete ? "" : ".part");
}

/* Whether file @i of the manifest is complete. */
static bool staging_has(const struct staging *s, size_t i, const struct place_file *f)
{
	char name[NAME_BYTES];
	struct stat st;

	staged_name(name, i, f, true);
	return fstatat(s->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	       (uint64_t)st.st_size == f->len_bytes;
}

/* Opens file @i for writing, empty, as incomplete. The fd (owned) or -errno. */
static int staging_create(const struct staging *s, size_t i, const struct place_file *f)
{
	char name[NAME_BYTES];

	staged_name(name, i, f, false);
	unlinkat(s->dir_fd, name, 0);
	int fd = openat(s->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* Links @path of @dir_fd as file @i, as incomplete. 0 or -errno. */
static int staging_link(const struct staging *s, size_t i, const struct place_file *f, int dir_fd,
			const char *path)
{
	char name[NAME_BYTES];

	staged_name(name, i, f, false);
	unlinkat(s->dir_fd, name, 0);
	return linkat(dir_fd, path, s->dir_fd, name, 0) < 0 ? -errno : 0;
}

static int compare_staged(int fd, const struct place_file *f, struct brumate_error *err)
{
	char have[DIGEST_TEXT_BYTES], want[DIGEST_TEXT_BYTES];
	struct digest digest;
	struct stat st;
	int r = fstat(fd, &st) < 0 ? -errno : 0;

	if (r == 0 && (uint64_t)st.st_size != f->len_bytes)
		return brumate_fail(err, EBADMSG, "%s: %jd of %" PRIu64 " bytes", f->path,
				    (intmax_t)st.st_size, f->len_bytes);
	if (r == 0 && f->digest)
		r = digest_file(&digest, fd, NULL);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", f->path);
	if (!f->digest || !memcmp(&digest, f->digest, sizeof(digest)))
		return 0;
	digest_format(have, &digest);
	digest_format(want, f->digest);
	return brumate_fail(err, EBADMSG, "%s: digest %.16s..., expected %.16s...", f->path, have,
			    want);
}

/* Compares file @i with its size and its digest (if it has one), syncs it and marks it as complete. -EBADMSG: it
 * differs. */
static int staging_finish(const struct staging *s, size_t i, const struct place_file *f,
			  struct brumate_error *err)
{
	char part[NAME_BYTES], name[NAME_BYTES];

	staged_name(part, i, f, false);
	staged_name(name, i, f, true);
	auto_close int fd = openat(s->dir_fd, part, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", f->path);
	int r = compare_staged(fd, f, err);
	if (r < 0)
		return r;
	if (fsync(fd) < 0 || renameat(s->dir_fd, part, s->dir_fd, name) < 0)
		return brumate_fail(err, errno, "%s: write to disk: %m", f->path);
	return 0;
}

static int move_staged(const struct staging *s, size_t i, const struct place_file *f,
		       struct store_writer *w)
{
	auto_free char *path = strdup(f->path);
	char name[NAME_BYTES];
	const char *base = NULL;

	if (!path)
		return -ENOMEM;
	auto_close int dir_fd = store_enter_parents(w->dir_fd, path, &base);
	if (dir_fd < 0)
		return dir_fd;
	staged_name(name, i, f, true);
	return rename_new(s->dir_fd, name, dir_fd, base);
}

/* Moves the first @n files to their places in @w. */
static int staging_move(const struct staging *s, const struct manifest *m, size_t n,
			struct store_writer *w, struct brumate_error *err)
{
	for (size_t i = 0; i < n; i++) {
		struct place_file f = place_file(m, i);
		int r = move_staged(s, i, &f, w);

		/* Names that collide are errors of the manifest, others of the disk. */
		if (r == -EEXIST || r == -ENOTDIR || r == -EISDIR || r == -ELOOP)
			return brumate_fail(err, EBADMSG, "%s: its path collides with another",
					    f.path);
		if (r < 0)
			return brumate_fail(err, -r, "%s: %m", f.path);
	}
	return 0;
}

static bool is_staging(const char *name)
{
	size_t len = strlen(name);

	return name[0] == '.' && len > sizeof(staging_suffix) &&
	       len < 1 + MANIFEST_ID_BYTES + sizeof(staging_suffix) &&
	       !strcmp(name + len - strlen(staging_suffix), staging_suffix);
}

int remote_sweep(const char *dir)
{
	auto_closedir DIR *store = opendir(dir);
	struct dirent *entry;
	int n = 0;

	while (store && (entry = readdir(store))) {
		if (!is_staging(entry->d_name))
			continue;
		auto_close int fd = open_locked(dirfd(store), entry->d_name);
		if (fd >= 0 && remove_tree(dirfd(store), entry->d_name) == 0)
			n++;
	}
	return n;
}

/* ---- files ---- */

struct pull_unit {
	size_t file;
	uint64_t offset, len_bytes;
};

static void pull_fini(struct pull *p)
{
	for (size_t i = 0; i < p->n_items; i++) {
		cleanup_close(&p->items[i].fd);
		pthread_mutex_destroy(&p->items[i].lock);
		free(p->items[i].key);
	}
	free(p->items);
	free(p->units);
	staging_close(&p->staging);
	store_abort(&p->writer);
	found_fini(&p->found);
	http_client_fini(&p->client);
}
DEFINE_AUTO_FINI(struct pull, pull_fini)

static const struct place_file *file_of(const struct pull *p, size_t i)
{
	return &p->items[i].file;
}

static size_t n_wanted(const struct pull *p)
{
	return p->files_only ? p->found.manifest.n_files : place_n_files(&p->found.manifest);
}

static int open_once(struct pull *p, size_t i, struct brumate_error *err)
{
	struct pull_item *it = &p->items[i];
	int r = 0;

	pthread_mutex_lock(&it->lock);
	if (it->fd < 0) {
		r = staging_create(&p->staging, i, file_of(p, i));
		if (r >= 0)
			it->fd = r;
	}
	pthread_mutex_unlock(&it->lock);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", file_of(p, i)->path) : 0;
}

/* Downloads a file again that differs from the manifest, once: it may have been damaged in transit. */
static int get_again(struct pull *p, struct http_connection *s, size_t i, struct brumate_error *err)
{
	const struct place_file *f = file_of(p, i);
	const uint64_t part_bytes = (uint64_t)p->client.config->part_mib << 20;
	auto_close int fd = staging_create(&p->staging, i, f);
	int r = 0;

	if (fd < 0)
		return brumate_fail(err, -fd, "%s: %m", f->path);
	if (err)
		*err = BRUMATE_ERROR_NONE;
	for (uint64_t at = 0; r == 0 && at < f->len_bytes; at += part_bytes) {
		uint64_t left = f->len_bytes - at;

		r = object_get_range(s, p->items[i].key, at, left < part_bytes ? left : part_bytes,
				     fd, err);
	}
	return r < 0 ? r : staging_finish(&p->staging, i, f, err);
}

static int get_unit(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct pull *p = arg;
	const struct pull_unit *u = &p->units[i];
	struct pull_item *it = &p->items[u->file];
	int r = open_once(p, u->file, err);

	if (r == 0)
		r = object_get_range(s, it->key, u->offset, u->len_bytes, it->fd, err);
	/* The manifest names it, so a missing object is damage. */
	if (r == -ENOENT)
		return brumate_fail(err, EBADMSG, "%s: missing, expected %" PRIu64 " bytes",
				    file_of(p, u->file)->path, file_of(p, u->file)->len_bytes);
	if (r < 0 || atomic_fetch_sub(&it->n_left, 1) > 1)
		return r;
	cleanup_close(&it->fd);
	r = staging_finish(&p->staging, u->file, file_of(p, u->file), err);
	if (r == -EBADMSG)
		r = get_again(p, s, u->file, err);
	if (r < 0)
		return r;
	atomic_fetch_add(&p->moved_files, 1);
	atomic_fetch_add(&p->moved_bytes, file_of(p, u->file)->len_bytes);
	return 0;
}

static bool has_pack(const struct manifest *m, const struct place_file *f)
{
	for (size_t i = 0; i < m->memory.n_packs; i++)
		if (m->memory.packs[i].len_bytes == f->len_bytes &&
		    !strcmp(m->memory.packs[i].path, f->path))
			return true;
	return false;
}

/* Links the wanted packs that a checkpoint of this store has. */
static void link_packs(void *arg, const char *id, const struct store_image *i,
		       const struct brumate_error *why)
{
	struct pull *p = arg;

	for (size_t k = 0; i && k < p->n_items; k++) {
		const struct place_file *f = file_of(p, k);

		if (f->digest || p->items[k].there || !has_pack(&i->manifest, f))
			continue;
		if (staging_link(&p->staging, k, f, i->dir_fd, f->path) == 0 &&
		    staging_finish(&p->staging, k, f, NULL) == 0)
			p->items[k].there = p->linked = true;
	}
}

static size_t units_of(uint64_t len_bytes, uint64_t part_bytes)
{
	return len_bytes ? (size_t)((len_bytes + part_bytes - 1) / part_bytes) : 1;
}

static int add_items(struct pull *p, const char *dir, struct brumate_error *err)
{
	const struct manifest *m = &p->found.manifest;
	const size_t n = n_wanted(p);

	p->items = calloc(n ? n : 1, sizeof(*p->items));
	if (!p->items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		struct pull_item *it = &p->items[p->n_items++];

		it->file = place_file(m, i);
		it->fd = -1;
		pthread_mutex_init(&it->lock, NULL);
		it->key = place_file_key(p->client.place, m->id, &it->file);
		if (!it->key)
			return brumate_fail(err, ENOMEM, "%m");
		it->there = staging_has(&p->staging, i, &it->file);
	}
	return p->files_only ? 0 : store_list(dir, link_packs, p, err);
}

static int add_units(struct pull *p, uint64_t part_bytes, struct brumate_error *err)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n_items; i++)
		if (!p->items[i].there)
			n += units_of(file_of(p, i)->len_bytes, part_bytes);
	p->units = calloc(n ? n : 1, sizeof(*p->units));
	if (!p->units)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < p->n_items; i++) {
		uint64_t len = file_of(p, i)->len_bytes, offset = 0;
		size_t n_units = units_of(len, part_bytes);

		if (p->items[i].there) {
			atomic_fetch_add(&p->client.done_bytes, len);
			continue;
		}
		atomic_store(&p->items[i].n_left, n_units);
		for (size_t k = 0; k < n_units; k++, offset += part_bytes) {
			uint64_t left = len - offset;

			p->units[p->n_units++] =
				(struct pull_unit){ i, offset,
						    left < part_bytes ? left : part_bytes };
		}
	}
	return 0;
}

/* Returns 1 if the store has this very checkpoint, 0 if it has none of that id. */
static int look_in_store(const struct pull *p, const char *dir, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	auto_free char *text = NULL;
	size_t len = 0;
	const char *id = p->found.manifest.id;
	struct brumate_error quiet = BRUMATE_ERROR_NONE;
	int r = store_open(&i, dir, id, &quiet);

	if (r < 0 || strcmp(i.manifest.id, id))
		return 0; /* store_begin() reports the obstacle */
	r = file_read(i.dir_fd, STORE_MANIFEST_NAME, MANIFEST_BYTES_MAX, &text, &len);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", i.path);
	return len == p->found.len && !memcmp(text, p->found.text, len);
}

/* ---- repair ---- */

struct repair_range {
	size_t item; /* in the pull */
	uint64_t offset, len_bytes;
};

struct repair {
	struct pull *pull;
	struct repair_range *ranges;
	size_t n;
	bool failed; /* out of memory: the list is incomplete */
};

static void repair_fini(struct repair *m)
{
	free(m->ranges);
}
DEFINE_AUTO_FINI(struct repair, repair_fini)

static void note_damage(void *arg, const struct chunks_damage *damage)
{
	struct repair *m = arg;
	struct repair_range *ranges = array_room(m->ranges, m->n, sizeof(*ranges));

	if (!ranges) {
		m->failed = true;
		return;
	}
	m->ranges = ranges;
	for (size_t i = 0; i < m->pull->n_items; i++)
		if (!strcmp(m->pull->items[i].file.path, damage->path)) {
			m->ranges[m->n++] =
				(struct repair_range){ i, damage->record->offset,
						       chunk_padded(damage->record->stored_bytes) };
			return;
		}
}

static int get_repair(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	const struct repair *m = arg;
	const struct repair_range *range = &m->ranges[i];
	const struct pull_item *it = &m->pull->items[range->item];
	auto_close int fd =
		openat(m->pull->writer.dir_fd, it->file.path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", it->file.path);
	if (st.st_nlink > 1)
		return 0;
	int r = object_get_range(s, it->key, range->offset, range->len_bytes, fd, err);
	if (r == 0 && fsync(fd) < 0)
		return brumate_fail(err, errno, "%s: write to disk: %m", it->file.path);
	return r;
}

/* Downloads damaged parts of the packs of @p again, which are in their places. Does not report whether that helped.
 * Packs that are shared with checkpoints of this store are left alone. */
static int repair_packs(struct pull *p, const struct http_watch *watch, struct brumate_error *err)
{
	auto_(repair_fini) struct repair m = { .pull = p };
	int r = chunks_verify(p->writer.dir_fd, &p->found.manifest, note_damage, &m,
			      watch->progress, watch->arg, err);

	if (r < 0)
		return r;
	if (m.failed)
		return brumate_fail(err, ENOMEM, "%m");
	return http_client_run(&p->client, m.n, get_repair, &m, watch, err);
}

/* ---- the whole ---- */

/* Compares the chunks with their digests, after the table and all packs are in their places. */
static int verify_packs(struct pull *p, const struct http_watch *watch, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int dir_fd = p->writer.dir_fd;
	int r = chunks_verify(dir_fd, &p->found.manifest, NULL, NULL, watch->progress, watch->arg,
			      &why);

	if (r == -EBADMSG && (r = repair_packs(p, watch, &why)) == 0)
		r = chunks_verify(dir_fd, &p->found.manifest, NULL, NULL, watch->progress,
				  watch->arg, &why);
	if (r < 0 && err)
		*err = why;
	if (r == -EBADMSG && p->linked)
		brumate_hint(err, "it shares packs with checkpoints of this store: `brumate verify "
				  "--all` says whether they are damaged");
	return r;
}

/* Downloads the files of @p->found into a checkpoint of the store @dir, each compared with its digest. */
static int pull_files(struct pull *p, const char *dir, struct http_watch *watch,
		      struct brumate_error *err)
{
	const struct manifest *m = &p->found.manifest;
	/* Sizes are claimed by the server until the digests are compared. */
	int r = store_check_space(dir, m, p->files_only, &watch->total_bytes, err);

	if (r == 0)
		r = store_begin(&p->writer, dir, m->id, err);
	if (r == 0)
		r = staging_open(&p->staging, &p->writer, m->id, err);
	if (r < 0)
		return r;
	r = add_items(p, dir, err);
	if (r == 0)
		r = add_units(p, (uint64_t)p->client.config->part_mib << 20, err);
	if (r == 0)
		r = http_client_run(&p->client, p->n_units, get_unit, p, watch, err);
	if (r == 0)
		r = staging_move(&p->staging, m, n_wanted(p), &p->writer, err);
	if (r < 0 && !p->files_only && http_may_go_on(r))
		return r;
	if (r == 0 && !p->files_only)
		r = verify_packs(p, watch, err);
	staging_remove(&p->staging);
	return r;
}

static int fetch(struct pull *p, const char *dir, struct http_watch *watch,
		 struct brumate_error *err)
{
	int r = pull_files(p, dir, watch, err);

	return r < 0 ? r
		     : store_commit_as(&p->writer, &p->found.manifest, p->found.text, p->found.len,
				       err);
}

int remote_pull(const struct remote_config *config, const struct remote_place *place,
		const char *word, const char *dir, const struct authority *authority,
		char ret_id[static MANIFEST_ID_BYTES], struct source_sums *ret,
		store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(pull_fini) struct pull p = PULL_EMPTY;
	struct http_watch watch = { progress, arg, 0 };
	int r = http_client_init(&p.client, config, place, err);

	if (r == 0)
		r = find_one(&p.client, word, &p.found, &watch, err);
	if (r == 0)
		r = authentic_check(&p.found.manifest, authority, err);
	if (r == 0)
		r = look_in_store(&p, dir, err);
	if (r == 0) {
		r = fetch(&p, dir, &watch, err);
		if (r < 0)
			brumate_wrap(err, r, "pull %s", p.found.manifest.id);
	}
	if (r < 0)
		return r;
	memcpy(ret_id, p.found.manifest.id, MANIFEST_ID_BYTES);
	*ret = (struct source_sums){ place_n_files(&p.found.manifest),
				     manifest_bytes(&p.found.manifest), atomic_load(&p.moved_files),
				     atomic_load(&p.moved_bytes) };
	return 0;
}

/*
 * ---- a checkpoint that is used remotely ----
 *
 * Its files are downloaded for the time of its use; chunks are read out of its packs when they are needed, directly
 * into memory. Connections are kept for later readers, so that regions do not need new ones.
 */

/* The connection of one thread. */
struct reader {
	struct remote_image *image;
	struct http_client client; /* of its own, so that it can be stopped by itself */
	struct http_connection connection;
	struct reader *next;
};

struct remote_image {
	const struct remote_config *config;
	const struct remote_place *place;
	struct pull pull;
	char **keys; /* of the packs; owned */
	struct pack_source source;
	pthread_mutex_t lock;
	struct reader *idle; /* under lock */
};

static void reader_free(struct reader *r)
{
	http_connection_fini(&r->connection);
	http_client_fini(&r->client);
	free(r);
}

static struct reader *take_idle(struct remote_image *i)
{
	pthread_mutex_lock(&i->lock);
	struct reader *r = i->idle;
	if (r)
		i->idle = r->next;
	pthread_mutex_unlock(&i->lock);
	return r;
}

static int reader_open(void *arg, void **ret, struct brumate_error *err)
{
	struct remote_image *i = arg;
	struct reader *reader = take_idle(i);

	if (reader) {
		*ret = reader;
		return 0;
	}
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return brumate_fail(err, ENOMEM, "%m");
	reader->image = i;
	reader->client.stop_fd = -1;
	int r = http_client_init(&reader->client, i->config, i->place, err);
	if (r == 0)
		r = http_connection_init(&reader->connection, &reader->client, err);
	if (r < 0)
		reader_free(reader);
	else
		*ret = reader;
	return r;
}

static void reader_close(void *arg)
{
	struct reader *r = arg;
	struct remote_image *i = r->image;

	if (atomic_load(&r->client.stop)) {
		reader_free(r);
		return;
	}
	pthread_mutex_lock(&i->lock);
	r->next = i->idle;
	i->idle = r;
	pthread_mutex_unlock(&i->lock);
}

static void reader_stop(void *arg)
{
	struct reader *r = arg;

	http_client_stop(&r->client);
}

static int reader_read(void *arg, uint32_t pack, uint64_t offset, void *buf, size_t len_bytes,
		       struct brumate_error *err)
{
	struct reader *reader = arg;
	const struct manifest_pack *p = &reader->image->pull.found.manifest.memory.packs[pack];
	int r = object_get_bytes(&reader->connection, reader->image->keys[pack], offset, len_bytes,
				 buf, err);

	/* The manifest names it, so a missing object is damage. */
	if (r == -ENOENT)
		return brumate_fail(err, EBADMSG, "%s: missing, expected %llu bytes", p->path,
				    (unsigned long long)p->len_bytes);
	if (r == -EREMOTEIO || r == -ETIMEDOUT || r == -ECONNREFUSED || r == -EHOSTUNREACH)
		brumate_hint(err, "run it again later; with --pull, what has come is kept then");
	return r;
}

static int make_keys(struct remote_image *i)
{
	const struct manifest *m = &i->pull.found.manifest;

	i->keys = calloc(m->memory.n_packs + 1, sizeof(*i->keys));
	for (size_t k = 0; i->keys && k < m->memory.n_packs; k++) {
		struct place_file f = place_file(m, m->n_files + k);

		i->keys[k] = place_file_key(i->place, m->id, &f);
		if (!i->keys[k])
			return -ENOMEM;
	}
	return i->keys ? 0 : -ENOMEM;
}

int remote_open(struct remote_image **ret, const struct remote_config *config,
		const struct remote_place *place, const char *word, store_progress_fn progress,
		void *arg, struct brumate_error *err)
{
	const struct http_watch watch = { progress, arg, 0 };
	auto_(remote_close) struct remote_image *i = calloc(1, sizeof(*i));

	if (!i)
		return brumate_fail(err, ENOMEM, "%m");
	*i = (struct remote_image){ .config = config, .place = place, .pull = PULL_EMPTY };
	i->pull.files_only = true;
	pthread_mutex_init(&i->lock, NULL);
	int r = http_client_init(&i->pull.client, config, place, err);
	if (r == 0)
		r = find_one(&i->pull.client, word, &i->pull.found, &watch, err);
	if (r < 0)
		return r;
	if (make_keys(i) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	i->source = (struct pack_source){ .threads = (unsigned)config->connections,
					  .open = reader_open,
					  .read = reader_read,
					  .stop = reader_stop,
					  .close = reader_close,
					  .arg = i };
	*ret = take_ptr(&i);
	return 0;
}

const struct manifest *remote_manifest(const struct remote_image *i)
{
	return &i->pull.found.manifest;
}

int remote_copy_manifest(const struct remote_image *i, struct manifest *ret,
			 struct brumate_error *err)
{
	return manifest_decode(ret, i->pull.found.text, i->pull.found.len, err);
}

int remote_fetch(struct remote_image *i, const char *dir, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	struct http_watch watch = { progress, arg, 0 };
	int r = pull_files(&i->pull, dir, &watch, err);

	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", i->pull.found.manifest.id);
	r = fcntl(i->pull.writer.dir_fd, F_DUPFD_CLOEXEC, 0);
	return r < 0 ? brumate_fail(err, errno, "%s: %m", dir) : r;
}

const struct pack_source *remote_source(const struct remote_image *i)
{
	return &i->source;
}

void remote_close(struct remote_image *i)
{
	struct reader *r;

	if (!i)
		return;
	while ((r = take_idle(i)))
		reader_free(r);
	for (size_t k = 0; i->keys && k < i->pull.found.manifest.memory.n_packs; k++)
		free(i->keys[k]);
	free(i->keys);
	pull_fini(&i->pull);
	pthread_mutex_destroy(&i->lock);
	free(i);
}
