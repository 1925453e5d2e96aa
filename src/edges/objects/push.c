// SPDX-License-Identifier: MIT
/*
 * Uploads a checkpoint to an object store: first its own files, then the packs that it may share with others, then
 * the manifest. After that, packs that had been there already are checked again, because a removal of the last other
 * checkpoint that used them could have happened in between.
 */
#include "edges/objects/remote.h"
#include "edges/objects/object.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/fd.h"
#include "base/paths.h"
#include "chunks/files.h"

enum item_state {
	ITEM_NEW,
	ITEM_THERE, /* the object store has it already */
	ITEM_BEGUN,
	ITEM_DONE,
};

/* A file that is being uploaded. The first thread starts it, and the thread that does its last part ends it. */
struct item {
	struct place_file file;
	char *key; /* owned */
	pthread_mutex_t lock;
	_Atomic enum item_state state; /* becomes ITEM_THERE or ITEM_BEGUN under the lock */
	int fd;
	struct digest digest; /* of the whole file, if it is uploaded in one piece */
	size_t n_parts;	      /* 0: in one piece */
	struct upload upload;
	atomic_size_t n_left;
};

/* The part of a file that one request uploads. */
struct unit {
	struct item *item;
	size_t part;
};

struct push {
	const struct store_image *image;
	struct http_client client;
	struct item *items;
	size_t n_items;
	struct unit *units;
	size_t n_units;
	uint64_t part_bytes;
	atomic_uint_fast64_t moved_files, moved_bytes;
};

static void push_fini(struct push *p)
{
	for (size_t i = 0; i < p->n_items; i++) {
		cleanup_close(&p->items[i].fd);
		upload_fini(&p->items[i].upload);
		pthread_mutex_destroy(&p->items[i].lock);
		free(p->items[i].key);
	}
	free(p->items);
	free(p->units);
	http_client_fini(&p->client);
}
DEFINE_AUTO_FINI(struct push, push_fini)

static size_t parts_of(const struct push *p, uint64_t len_bytes)
{
	if (len_bytes < 2 * p->part_bytes)
		return 0;
	uint64_t part = upload_part_bytes(len_bytes, p->part_bytes);

	return (size_t)((len_bytes + part - 1) / part);
}

/* Whether the right object is under the key of @it: 0 or -ENOENT. A pack is identified by its name. */
static int find_object(struct http_connection *s, const struct item *it, struct brumate_error *err)
{
	char have[DIGEST_TEXT_BYTES], want[DIGEST_TEXT_BYTES];
	uint64_t len;
	int r = object_head(s, it->key, &len, have, err);

	if (r < 0)
		return r;
	if (len != it->file.len_bytes)
		return -ENOENT;
	if (!it->file.digest)
		return 0;
	digest_format(want, it->file.digest);
	return strcmp(have, want) ? -ENOENT : 0;
}

static int begin(struct push *p, struct http_connection *s, struct item *it,
		 struct brumate_error *err)
{
	int r = find_object(s, it, err);

	if (r == 0)
		it->state = ITEM_THERE;
	if (r != -ENOENT)
		return r;
	it->fd = files_open(p->image->dir_fd, it->file.path, NULL);
	if (it->fd < 0)
		return brumate_fail(err, -it->fd, "%s: %m", it->file.path);
	if (it->n_parts)
		return upload_begin(&it->upload, s, it->key, it->file.len_bytes, p->part_bytes,
				    it->file.digest, err);
	if (it->file.digest) {
		it->digest = *it->file.digest;
		return 0;
	}
	r = digest_file(&it->digest, it->fd, NULL);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", it->file.path) : 0;
}

static int begin_once(struct push *p, struct http_connection *s, struct item *it,
		      struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&it->lock);
	if (it->state == ITEM_NEW) {
		r = begin(p, s, it, err);
		if (r == 0 && it->state == ITEM_NEW)
			it->state = ITEM_BEGUN;
	}
	pthread_mutex_unlock(&it->lock);
	return r;
}

/* An answer may have been lost: an upload that does not exist any more has succeeded if the object exists. */
static int end_upload(struct http_connection *s, struct item *it, struct brumate_error *err)
{
	int r = upload_end(&it->upload, s, it->key, err);

	if (r == -ENOENT && find_object(s, it, NULL) == 0)
		r = 0;
	if (r == 0)
		upload_fini(&it->upload);
	return r;
}

static int put_unit(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct push *p = arg;
	struct unit *u = &p->units[i];
	struct item *it = u->item;
	int r = begin_once(p, s, it, err);

	if (r < 0)
		return r;
	if (it->state == ITEM_DONE)
		return 0;
	if (it->state == ITEM_THERE) {
		if (u->part == 0)
			atomic_fetch_add(&p->client.done_bytes, it->file.len_bytes);
		return 0;
	}
	r = it->n_parts ? upload_put(&it->upload, s, it->key, u->part, it->fd, err)
			: object_put(s, it->key, it->fd, it->file.len_bytes, &it->digest, err);
	if (r < 0 || atomic_fetch_sub(&it->n_left, 1) > 1)
		return r;
	if (it->n_parts)
		r = end_upload(s, it, err);
	cleanup_close(&it->fd);
	it->state = ITEM_DONE;
	atomic_fetch_add(&p->moved_files, 1);
	atomic_fetch_add(&p->moved_bytes, it->file.len_bytes);
	return r;
}

static int add_items(struct push *p, struct brumate_error *err)
{
	const struct manifest *m = &p->image->manifest;
	const size_t n = place_n_files(m);

	p->items = calloc(n ? n : 1, sizeof(*p->items));
	if (!p->items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		struct item *it = &p->items[p->n_items++];

		it->file = place_file(m, i);
		it->fd = -1;
		pthread_mutex_init(&it->lock, NULL);
		it->n_parts = parts_of(p, it->file.len_bytes);
		atomic_store(&it->n_left, it->n_parts ? it->n_parts : 1);
		it->key = place_file_key(p->client.place, m->id, &it->file);
		if (!it->key)
			return brumate_fail(err, ENOMEM, "%m");
	}
	return 0;
}

/* Lists the units of work: those of the packs, or those of the other files. */
static int add_units(struct push *p, bool packs, struct brumate_error *err)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n_items; i++)
		n += p->items[i].n_parts ? p->items[i].n_parts : 1;
	free(p->units);
	p->n_units = 0;
	p->units = calloc(n ? n : 1, sizeof(*p->units));
	if (!p->units)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < p->n_items; i++) {
		struct item *it = &p->items[i];
		size_t n_parts = it->n_parts ? it->n_parts : 1;

		if (!it->file.digest != packs)
			continue;
		for (size_t part = 0; part < n_parts; part++)
			p->units[p->n_units++] = (struct unit){ it, part };
	}
	return 0;
}

/* Checks whether a pack that was there still is. */
static int recheck_unit(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct push *p = arg;
	struct item *it = p->units[i].item;

	if (it->state != ITEM_THERE || p->units[i].part)
		return 0;
	int r = find_object(s, it, err);
	if (r != -ENOENT)
		return r;
	/* The next pass uploads it. */
	it->state = ITEM_NEW;
	return 0;
}

struct manifest_put {
	char *key, *text;
	size_t len;
};

/* 0: the manifest of this very checkpoint is there. -ENOENT: none is. -EEXIST: that of another one. */
static int look_at_manifest(const struct manifest_put *m, struct http_connection *s,
			    struct brumate_error *err)
{
	auto_free char *there = NULL;
	size_t len = 0;
	int r = object_get_text(s, m->key, &there, &len, err);

	if (r < 0 || (len == m->len && !memcmp(there, m->text, len)))
		return r;
	brumate_fail(err, EEXIST, "s3://%s/%s: another checkpoint with that id exists",
		     s->client->place->bucket, m->key);
	brumate_hint(err, "remove it first, or push below another prefix");
	return -EEXIST;
}

/* Uploads the manifest, which completes the checkpoint. */
static int put_manifest(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	const struct manifest_put *m = arg;
	int r = look_at_manifest(m, s, err);

	return r == -ENOENT ? object_put_text(s, m->key, m->text, m->len, err) : r;
}

/* Refuses an id that another checkpoint has, before that one's files are overwritten. */
static int check_manifest(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	int r = look_at_manifest(arg, s, err);

	return r == -ENOENT ? 0 : r;
}

/* After a refusal, which is final, uploaded parts are useless. After any other failure the next push uses them. */
static int abort_unit(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct push *p = arg;
	struct item *it = &p->items[i];

	if (it->upload.id)
		upload_abort(&it->upload, s, it->key, NULL);
	return 0;
}

static int put_all(struct push *p, struct manifest_put *manifest, const struct http_watch *watch,
		   struct brumate_error *err)
{
	struct http_client *c = &p->client;
	int r = http_client_run(c, 1, check_manifest, manifest, watch, err);

	if (r == 0)
		r = add_units(p, false, err);
	if (r == 0)
		r = http_client_run(c, p->n_units, put_unit, p, watch, err);
	if (r == 0)
		r = add_units(p, true, err);
	if (r == 0)
		r = http_client_run(c, p->n_units, put_unit, p, watch, err);
	if (r == 0)
		r = http_client_run(c, 1, put_manifest, manifest, watch, err);
	if (r == 0)
		r = http_client_run(c, p->n_units, recheck_unit, p, watch, err);
	if (r == 0)
		r = http_client_run(c, p->n_units, put_unit, p, NULL, err);
	if (r < 0 && !http_may_go_on(r))
		http_client_run(c, p->n_items, abort_unit, p, NULL, NULL);
	return r;
}

static int read_manifest(struct manifest_put *ret, const struct push *p, struct brumate_error *err)
{
	const char *id = p->image->manifest.id;
	auto_free char *below = path_format("%s/" STORE_MANIFEST_NAME, id);
	int r;

	if (!strcmp(id, PLACE_PACKS))
		return brumate_fail(err, EINVAL, "a checkpoint called \"%s\" cannot be pushed", id);
	ret->key = below ? place_key(p->client.place, below) : NULL;
	if (!ret->key)
		return brumate_fail(err, ENOMEM, "%m");
	r = file_read(p->image->dir_fd, STORE_MANIFEST_NAME, MANIFEST_BYTES_MAX, &ret->text,
		      &ret->len);
	return r < 0 ? brumate_fail(err, -r, STORE_MANIFEST_NAME ": %m") : 0;
}

int remote_push(const struct remote_config *config, const struct remote_place *place,
		const struct store_image *i, struct source_sums *ret, store_progress_fn progress,
		void *arg, struct brumate_error *err)
{
	auto_(push_fini) struct push p = { .image = i };
	struct manifest_put manifest = { 0 };
	struct http_watch watch = { progress, arg, manifest_bytes(&i->manifest) };
	int r = store_verify(i, progress, arg, err);

	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", i->manifest.id);
	r = http_client_init(&p.client, config, place, err);
	if (r < 0)
		return r;
	p.part_bytes = (uint64_t)config->part_mib << 20;
	r = read_manifest(&manifest, &p, err);
	if (r == 0)
		r = add_items(&p, err);
	if (r == 0)
		r = put_all(&p, &manifest, &watch, err);
	free(manifest.key);
	free(manifest.text);
	if (r < 0)
		return brumate_wrap(err, r, "push %s", i->manifest.id);
	*ret = (struct source_sums){ place_n_files(&i->manifest), watch.total_bytes,
				     atomic_load(&p.moved_files), atomic_load(&p.moved_bytes) };
	return 0;
}
