// SPDX-License-Identifier: MIT
/* What earlier checkpoints have, by digest; see chunk-index.h. */
#include "store/chunk-index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/beneath.h"
#include "store/image.h"
#include "store/memory-read.h"
#include "store/names.h"

/* Manifests that are read, checkpoints whose tables are kept, and chunks of those: 2 TiB of memory. */
enum { CANDIDATES_MAX = 64, IMAGES_MAX = 16, CHUNKS_MAX = 1 << 20 };

struct known {
	struct store_image image;
	struct chunks_reader *reader;
	bool same_job;
};

struct chunk_index {
	struct known images[CANDIDATES_MAX]; /* best first; only IMAGES_MAX are kept */
	size_t n_images, n_chunks;
	struct chunk_place *slots; /* open hash; image UINT32_MAX is free */
	size_t n_slots;		   /* a power of 2, more than twice the chunks */
};

/* A checkpoint of the store and when it was made. */
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

/* Ids of the store, the one that changed last first. Owned; NULL without memory. */
static struct entry *sort_ids(int store_fd, const struct names *all)
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

static void known_fini(struct known *k)
{
	chunks_reader_free(k->reader);
	store_image_fini(&k->image);
	*k = (struct known){ .image = STORE_IMAGE_EMPTY };
}

/* Takes a checkpoint in, if it is one to share with. */
static void consider(struct chunk_index *x, int store_fd, const char *store, const char *id,
		     const char *job, uid_t uid, const char *key_id)
{
	struct known *k = &x->images[x->n_images];

	k->image = STORE_IMAGE_EMPTY;
	if (image_load(&k->image, store_fd, store, id, NULL) < 0)
		return;
	const struct manifest *m = &k->image.manifest;
	if (m->version < 2 || m->job.uid != uid || m->memory.n_packs == 0 ||
	    strcmp(m->key_id, key_id)) {
		known_fini(k);
		return;
	}
	k->same_job = job && !strcmp(m->job.id, job);
	x->n_images++;
}

/* Those of the same job first, otherwise as they are. */
static void prefer_job(struct chunk_index *x)
{
	size_t front = 0;

	for (size_t i = 0; i < x->n_images; i++) {
		if (!x->images[i].same_job)
			continue;
		struct known k = x->images[i];

		memmove(&x->images[front + 1], &x->images[front], (i - front) * sizeof(k));
		x->images[front++] = k;
	}
}

/* Reads tables until there are enough; drops the images without. The reader borrows the manifest of
 * its image, so images stay where they are from here. */
static void read_tables(struct chunk_index *x)
{
	size_t kept = 0;

	for (size_t i = 0; i < x->n_images; i++) {
		struct known k = x->images[i];

		x->images[kept] = k;
		if (kept < IMAGES_MAX && x->n_chunks < CHUNKS_MAX &&
		    chunks_open(&x->images[kept].reader, &x->images[kept].image, NULL) == 0)
			x->n_chunks += x->images[kept++].reader->table.n_chunks;
		else
			known_fini(&x->images[kept]);
	}
	x->n_images = kept;
}

static size_t hash_of(const struct digest *d)
{
	size_t h;

	memcpy(&h, d, sizeof(h));
	return h;
}

static const struct chunk_record *record_at(const struct chunk_index *x,
					    const struct chunk_place *place)
{
	return &x->images[place->image].reader->table.chunks[place->chunk];
}

static struct chunk_place *slot_of(const struct chunk_index *x, const struct digest *digest,
				   uint32_t len_bytes)
{
	for (size_t i = hash_of(digest);; i++) {
		struct chunk_place *slot = &x->slots[i & (x->n_slots - 1)];

		if (slot->image == UINT32_MAX)
			return slot;
		const struct chunk_record *c = record_at(x, slot);
		if (c->len_bytes == len_bytes && !memcmp(&c->digest, digest, sizeof(*digest)))
			return slot;
	}
}

static int fill_slots(struct chunk_index *x)
{
	x->n_slots = 64;
	while (x->n_slots < 2 * x->n_chunks + 1)
		x->n_slots *= 2;
	x->slots = malloc(x->n_slots * sizeof(*x->slots));
	if (!x->slots)
		return -ENOMEM;
	memset(x->slots, 0xff, x->n_slots * sizeof(*x->slots));
	for (size_t k = 0; k < x->n_images; k++) {
		const struct chunk_table *t = &x->images[k].reader->table;

		for (size_t i = 0; i < t->n_chunks; i++) {
			const struct chunk_record *c = &t->chunks[i];
			struct chunk_place *slot = slot_of(x, &c->digest, c->len_bytes);

			if (slot->image == UINT32_MAX)
				*slot = (struct chunk_place){ (uint32_t)k, (uint32_t)i };
		}
	}
	return 0;
}

int chunk_index_new(struct chunk_index **ret, int store_fd, const char *store, const char *job,
		    uid_t uid, const char *key_id)
{
	auto_(names_fini) struct names all = NAMES_EMPTY;
	auto_(chunk_index_free) struct chunk_index *x = calloc(1, sizeof(*x));

	if (!x)
		return -ENOMEM;
	if (names_list(&all, store_fd, manifest_id_is_valid) < 0)
		all = NAMES_EMPTY; /* nothing to share with */
	auto_free struct entry *entries = sort_ids(store_fd, &all);
	if (!entries)
		return -ENOMEM;
	for (size_t i = 0; i < all.n && i < CANDIDATES_MAX; i++)
		consider(x, store_fd, store, entries[i].id, job, uid, key_id);
	prefer_job(x);
	read_tables(x);
	if (fill_slots(x) < 0)
		return -ENOMEM;
	*ret = take_ptr(&x);
	return 0;
}

void chunk_index_free(struct chunk_index *x)
{
	if (!x)
		return;
	for (size_t i = 0; i < x->n_images; i++)
		known_fini(&x->images[i]);
	free(x->slots);
	free(x);
}

bool chunk_index_find(const struct chunk_index *x, const struct digest *digest, uint32_t len_bytes,
		      struct chunk_place *ret)
{
	const struct chunk_place *slot = slot_of(x, digest, len_bytes);

	if (slot->image == UINT32_MAX)
		return false;
	*ret = *slot;
	return true;
}

size_t chunk_index_images(const struct chunk_index *x)
{
	return x->n_images;
}

const struct chunk_table *chunk_index_table(const struct chunk_index *x, uint32_t image)
{
	return &x->images[image].reader->table;
}

int chunk_index_link(const struct chunk_index *x, uint32_t image, uint32_t pack, int dir_fd,
		     char *ret_path, size_t room)
{
	static const char prefix[] = MANIFEST_MEMORY_DIR "/";
	const struct store_image *i = &x->images[image].image;
	const struct manifest_pack *p = &i->manifest.memory.packs[pack];
	const char *name = p->path + strlen(prefix);
	struct stat before, after;

	if (strncmp(p->path, prefix, strlen(prefix)) || strchr(name, '/') ||
	    strlen(p->path) >= room)
		return -EXDEV;
	auto_close int fd = beneath_open_file(i->dir_fd, p->path, &before);
	if (fd < 0)
		return fd;
	/* Who owns it can write to it for as long as it lives. */
	if (before.st_uid != geteuid() || image_check_owner(&before, NULL) < 0 ||
	    (uint64_t)before.st_size != p->len_bytes)
		return -EPERM;
	if (linkat(i->dir_fd, p->path, dir_fd, name, 0) < 0)
		return -errno;
	if (fstatat(dir_fd, name, &after, AT_SYMLINK_NOFOLLOW) < 0 ||
	    after.st_ino != before.st_ino || after.st_dev != before.st_dev) {
		unlinkat(dir_fd, name, 0);
		return -ESTALE;
	}
	memcpy(ret_path, p->path, strlen(p->path) + 1);
	return 0;
}
