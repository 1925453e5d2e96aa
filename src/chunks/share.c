// SPDX-License-Identifier: MIT
/*
 * Sharing packs with earlier checkpoints; see share.h. A pack is linked as a whole, with chunks that this checkpoint
 * does not use. If those are more than three quarters, the used chunks are written again instead, so that unused ones
 * are freed with the last checkpoint that used them.
 */
#include "chunks/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chunks/files.h"
#include "chunks/reader.h"

/* Checkpoints whose tables are kept, and chunks of those: 2 TiB of memory. */
enum { IMAGES_MAX = 16, CHUNKS_MAX = 1 << 20 };

struct known {
	int dir_fd;
	struct manifest manifest;
	struct chunks_reader *reader;
	bool same_job;
};
#define KNOWN_EMPTY ((struct known){ .dir_fd = -1 })

struct chunk_index {
	struct known images[CHUNK_INDEX_OFFERS_MAX]; /* best first; only IMAGES_MAX are kept */
	size_t n_images, n_chunks;
	struct chunk_place *slots; /* open hash; image UINT32_MAX is free */
	size_t n_slots;		   /* a power of 2, more than twice the chunks */
};

static void known_fini(struct known *k)
{
	chunks_reader_free(k->reader);
	manifest_fini(&k->manifest);
	cleanup_close(&k->dir_fd);
	*k = KNOWN_EMPTY;
}

int chunk_index_new(struct chunk_index **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void chunk_index_offer(struct chunk_index *x, int *dir_fd, struct manifest *manifest,
		       const struct chunks_options *options, const char *key_id)
{
	const struct manifest *m = manifest;

	if (x->n_images == CHUNK_INDEX_OFFERS_MAX || m->version < 2 || m->job.uid != options->uid ||
	    m->memory.n_packs == 0 || strcmp(m->key_id, key_id))
		return;
	x->images[x->n_images++] = (struct known){
		.dir_fd = take_fd(dir_fd),
		.manifest = *manifest,
		.same_job = options->job && !strcmp(m->job.id, options->job),
	};
	*manifest = (struct manifest){ 0 };
}

/* Moves checkpoints of the same job to the front; otherwise keeps the order. */
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

static int open_known(struct known *k)
{
	return chunks_open(&k->reader, k->dir_fd, &k->manifest, NULL, NULL, NULL);
}

/* Reads tables until there are enough; drops the other images. The reader borrows the manifest of its image, so
 * images must not move after this. */
static void read_tables(struct chunk_index *x)
{
	size_t kept = 0;

	for (size_t i = 0; i < x->n_images; i++) {
		struct known k = x->images[i];

		x->images[kept] = k;
		if (kept < IMAGES_MAX && x->n_chunks < CHUNKS_MAX &&
		    open_known(&x->images[kept]) == 0)
			x->n_chunks += x->images[kept++].reader->table.n_chunks;
		else
			known_fini(&x->images[kept]);
	}
	x->n_images = kept;
}

static const struct chunk_record *record_at(const struct chunk_index *x,
					    const struct chunk_place *place)
{
	return &x->images[place->image].reader->table.chunks[place->chunk];
}

static struct chunk_place *slot_of(const struct chunk_index *x, const struct digest *digest,
				   uint32_t len_bytes)
{
	for (size_t i = digest_hash(digest);; i++) {
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

int chunk_index_read(struct chunk_index *x)
{
	prefer_job(x);
	read_tables(x);
	return fill_slots(x);
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

static const struct chunk_table *table_of(const struct chunk_index *x, uint32_t image)
{
	return &x->images[image].reader->table;
}

/* Links the pack @pack of @image into the directory @dir_fd under its own name, whose path below the new checkpoint goes to
 * @ret_path. -errno: not possible (it was removed, has too many links, the file system has no links …). */
static int link_pack(const struct chunk_index *x, uint32_t image, uint32_t pack, int dir_fd,
		     char *ret_path, size_t room)
{
	static const char prefix[] = MANIFEST_MEMORY_DIR "/";
	const struct known *k = &x->images[image];
	const struct manifest_pack *p = &k->manifest.memory.packs[pack];
	const char *name = p->path + strlen(prefix);
	struct stat before, after;

	if (strncmp(p->path, prefix, strlen(prefix)) || strchr(name, '/') ||
	    strlen(p->path) >= room)
		return -EXDEV;
	auto_close int fd = files_open(k->dir_fd, p->path, &before);
	if (fd < 0)
		return fd;
	/* Its owner could write to it as long as it exists. */
	if (before.st_uid != geteuid() || files_check_owner(&before, NULL) < 0 ||
	    (uint64_t)before.st_size != p->len_bytes)
		return -EPERM;
	if (linkat(k->dir_fd, p->path, dir_fd, name, 0) < 0)
		return -errno;
	if (fstatat(dir_fd, name, &after, AT_SYMLINK_NOFOLLOW) < 0 ||
	    after.st_ino != before.st_ino || after.st_dev != before.st_dev) {
		unlinkat(dir_fd, name, 0);
		return -ESTALE;
	}
	memcpy(ret_path, p->path, strlen(p->path) + 1);
	return 0;
}

/* ---- packs ---- */

enum { USED_AT_LEAST = 4 }; /* one part of that many */

/* Adds up how much of each pack of @image is used. */
static void add_used(uint64_t *used, const struct ledger *l, const struct chunk_table *t,
		     uint32_t image)
{
	for (size_t i = 0; i < l->n_chunks; i++) {
		const struct ledger_chunk *c = &l->chunks[i];

		if (c->state == LEDGER_KNOWN && !c->dead && c->image == image) {
			const struct chunk_record *old = &t->chunks[c->index];

			used[old->pack] += chunk_padded(old->stored_bytes);
		}
	}
}

/* Records the content of a pack that was linked: chunks that we use, and others. */
static int take_chunks(struct ledger *l, const struct chunk_table *t, uint32_t image, uint32_t pack,
		       uint32_t number)
{
	size_t n;
	const struct chunk_record *old = chunk_table_pack(t, pack, &n);

	for (size_t i = 0; i < n; i++) {
		uint32_t index = (uint32_t)(old + i - t->chunks);
		int64_t at = ledger_find(l, &old[i].digest, old[i].len_bytes);
		struct ledger_chunk *c = at < 0 ? NULL : &l->chunks[at];

		if (c && c->state == LEDGER_KNOWN && c->image == image && c->index == index) {
			c->record = old[i];
			c->record.pack = number;
			continue;
		}
		struct ledger_chunk dead = {
			.record = old[i],
			.state = LEDGER_KNOWN,
			.image = image,
			.index = index,
			.dead = true,
		};
		dead.record.pack = number;
		at = ledger_add_chunk(l, &dead);
		if (at < 0)
			return (int)at;
	}
	return 0;
}

static int share_image(struct ledger *l, const struct chunk_index *x, uint32_t image, int dir_fd,
		       bool *linked, uint64_t *used)
{
	const struct chunk_table *t = table_of(x, image);

	add_used(used, l, t, image);
	for (uint32_t pack = 0; pack < t->n_packs; pack++) {
		struct ledger_pack entry = { .linked = true,
					     .len_bytes = chunk_table_pack_bytes(t, pack) };

		if (!used[pack] || used[pack] < entry.len_bytes / USED_AT_LEAST ||
		    link_pack(x, image, pack, dir_fd, entry.path, sizeof(entry.path)) < 0)
			continue;
		int64_t number = ledger_add_pack(l, &entry);
		int r = number < 0 ? (int)number : take_chunks(l, t, image, pack, (uint32_t)number);
		if (r < 0)
			return r;
		linked[pack] = true;
	}
	return 0;
}

/* Marks chunks of packs that were not linked as to be written. */
static size_t want_rest(struct ledger *l, const struct chunk_table *t, uint32_t image,
			const bool *linked)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n_chunks; i++) {
		struct ledger_chunk *c = &l->chunks[i];

		if (c->state == LEDGER_KNOWN && !c->dead && c->image == image &&
		    !linked[t->chunks[c->index].pack]) {
			c->state = LEDGER_WANTED;
			n++;
		}
	}
	return n;
}

int share_packs(struct ledger *l, const struct chunk_index *x, int dir_fd, size_t *ret_wanted)
{
	size_t wanted = 0;

	for (uint32_t image = 0; image < x->n_images; image++) {
		const struct chunk_table *t = table_of(x, image);
		auto_free uint64_t *used = calloc(t->n_packs + 1, sizeof(*used));
		auto_free bool *linked = calloc(t->n_packs + 1, sizeof(*linked));

		if (!used || !linked)
			return -ENOMEM;
		int r = share_image(l, x, image, dir_fd, linked, used);
		if (r < 0)
			return r;
		wanted += want_rest(l, t, image, linked);
	}
	*ret_wanted = wanted;
	return 0;
}
