// SPDX-License-Identifier: MIT
/* The memory of a job in a checkpoint of a store: connects chunks/chunks.h with the store. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "chunks/share.h"
#include "chunks/files.h"
#include "store/authentic.h"
#include "store/image.h"

/* A checkpoint of the store and the time of its last change. */
struct entry {
	const char *id;
	struct timespec mtime;
};

static int newest_first(const void *a, const void *b)
{
	const struct entry *left = a, *right = b;

	if (left->mtime.tv_sec != right->mtime.tv_sec)
		return left->mtime.tv_sec < right->mtime.tv_sec ? 1 : -1;
	if (left->mtime.tv_nsec != right->mtime.tv_nsec)
		return left->mtime.tv_nsec < right->mtime.tv_nsec ? 1 : -1;
	return strcmp(left->id, right->id);
}

/* The ids of the store, the last changed one first. Owned; NULL if out of memory. */
static struct entry *sort_ids(int store_fd, const struct dir_names *all)
{
	struct entry *entries = calloc(all->n + 1, sizeof(*entries));

	for (size_t i = 0; entries && i < all->n; i++) {
		struct stat st;

		entries[i].id = all->ids[i];
		if (fstatat(store_fd, all->ids[i], &st, AT_SYMLINK_NOFOLLOW) == 0)
			entries[i].mtime = st.st_mtim;
	}
	if (entries && all->n)
		qsort(entries, all->n, sizeof(*entries), newest_first);
	return entries;
}

/* A forged table could claim chunks that its packs do not have. */
static bool is_believed(const struct store_image *i, const struct store_key *key)
{
	auto_(authority_fini) struct authority a = AUTHORITY_EMPTY;

	if (!key)
		return true;
	a.has_key = true;
	a.key = *key;
	return authentic_check_image(i, &a, NULL) == 0;
}

static int offer_images(struct chunk_index *x, int store_fd, const struct store_key *key,
			const char *store, const struct chunks_options *options)
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;

	if (dir_names_list(&all, store_fd, manifest_id_is_valid) < 0)
		all = DIR_NAMES_EMPTY; /* nothing to share with */
	auto_free struct entry *entries = sort_ids(store_fd, &all);
	if (!entries)
		return -ENOMEM;
	for (size_t i = 0; i < all.n && i < CHUNK_INDEX_OFFERS_MAX; i++) {
		auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

		if (image_load(&image, store_fd, store, entries[i].id, NULL) == 0 &&
		    is_believed(&image, key))
			chunk_index_offer(x, &image.dir_fd, &image.manifest, options,
					  key ? key->id : "");
	}
	return 0;
}

static int look_at_others(struct chunk_index **ret, const struct store_writer *w,
			  const struct chunks_options *options)
{
	auto_(chunk_index_free) struct chunk_index *x = NULL;
	const char *slash = strrchr(w->path, '/');
	auto_free char *store = strndup(w->path, (size_t)(slash - w->path));
	int r = store ? chunk_index_new(&x) : -ENOMEM;

	if (r == 0)
		r = offer_images(x, w->store_fd, w->key, store, options);
	if (r == 0)
		r = chunk_index_read(x);
	if (r == 0)
		*ret = take_ptr(&x);
	return r;
}

static int compare_digests(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

/* @digests are sorted here. */
static uint64_t count_new(const struct chunk_index *x, struct digest *digests, size_t n,
			  const struct digest *zero)
{
	struct chunk_place place;
	uint64_t new = 0;

	if (n)
		qsort(digests, n, sizeof(*digests), compare_digests);
	for (size_t i = 0; i < n; i++)
		if ((!i || compare_digests(&digests[i - 1], &digests[i])) &&
		    compare_digests(&digests[i], zero) &&
		    !chunk_index_find(x, &digests[i], CHUNK_BYTES, &place))
			new ++;
	return new;
}

int store_count_new(uint64_t *ret_bytes, const char *dir, const struct chunks_options *options,
		    const struct digest *digests, size_t n)
{
	auto_(chunk_index_free) struct chunk_index *x = NULL;
	auto_close int store_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_free struct digest *sorted = calloc(n + 1, sizeof(*sorted));
	struct digest zero;
	int r = sorted ? chunk_digest_zeros(&zero) : -ENOMEM;

	if (r == 0)
		r = chunk_index_new(&x);
	if (r == 0 && store_fd >= 0) /* without a store nothing is known */
		r = offer_images(x, store_fd, NULL, dir, options);
	if (r == 0)
		r = chunk_index_read(x);
	if (r < 0)
		return r;
	memcpy(sorted, digests, n * sizeof(*sorted));
	*ret_bytes = count_new(x, sorted, n, &zero) * CHUNK_BYTES;
	return 0;
}

int store_chunks_begin(struct chunks_writer **ret, struct store_writer *w,
		       const struct chunks_options *options, struct brumate_error *err)
{
	auto_(chunk_index_free) struct chunk_index *known = NULL;
	auto_close int dir_fd = store_mkdir(w, MANIFEST_MEMORY_DIR, err);

	if (dir_fd < 0)
		return dir_fd;
	int r = options->no_sharing ? 0 : look_at_others(&known, w, options);
	if (r < 0)
		return brumate_fail(err, -r, "memory: earlier checkpoints: %m");
	struct chunks_target target = {
		.dir_fd = take_fd(&dir_fd),
		.id = w->id,
		.path = w->path,
		.key = w->key,
		.known = take_ptr(&known),
	};
	return chunks_begin(ret, &target, options, err);
}

int store_chunks_open(struct chunks_reader **ret, const struct store_image *i,
		      struct brumate_error *err)
{
	int r = chunks_open(ret, i->dir_fd, &i->manifest, i->key, i->source, err);

	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

/* @ret stays NULL where @i has no memory. */
static int open_table(struct chunks_reader **ret, const struct store_image *i,
		      struct brumate_error *err)
{
	int r = store_chunks_open(ret, i, err);

	if (r != -ENOENT)
		return r;
	if (err)
		*err = BRUMATE_ERROR_NONE;
	return 0;
}

int store_chunks_compare(struct chunks_common *ret, const struct store_image *from,
			 const struct store_image *to, struct brumate_error *err)
{
	auto_(chunks_reader_free) struct chunks_reader *a = NULL;
	auto_(chunks_reader_free) struct chunks_reader *b = NULL;
	int r = open_table(&a, from, err);

	if (r == 0)
		r = open_table(&b, to, err);
	if (r < 0)
		return r;
	r = chunks_compare(ret, a, b);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}
