// SPDX-License-Identifier: MIT
/* Object stores as a kind of places for checkpoints (store/source.h): from URL and parameters to the functions of remote.h. */
#include <errno.h>
#include <stdlib.h>

#include "base/paths.h"
#include "edges/objects/remote.h"
#include "store/source.h"

/* A place, decoded, and the checkpoint of it that is meant. */
struct located {
	struct remote_config config;
	struct remote_place place;
	char *word; /* NULL: the place itself */
};
#define LOCATED_EMPTY ((struct located){ .config = REMOTE_CONFIG_DEFAULT })

static void located_fini(struct located *l)
{
	remote_config_fini(&l->config);
	remote_place_fini(&l->place);
	free(l->word);
}
DEFINE_AUTO_FINI(struct located, located_fini)

static int locate_place(struct located *l, const struct source_place *p, struct brumate_error *err)
{
	int r = remote_place_parse(&l->place, p->url, err);

	return r < 0 ? r : remote_config_from_json(&l->config, p->remote, err);
}

static int locate_checkpoint(struct located *l, const struct source_place *p,
			     struct brumate_error *err)
{
	int r = locate_place(l, p, err);

	return r < 0 ? r : remote_place_split(&l->place, &l->word, err);
}

static char *url_of(const struct remote_place *p, const char *id)
{
	return path_format("s3://%s/%s%s%s", p->bucket, p->prefix, *p->prefix ? "/" : "", id);
}

static int give_url(char **ret, const struct located *l, const char *id, struct brumate_error *err)
{
	*ret = url_of(&l->place, id);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static int address(json_t **ret, const char *url, struct brumate_error *err)
{
	auto_(located_fini) struct located l = LOCATED_EMPTY;
	int r = remote_place_parse(&l.place, url, err);

	if (r == 0)
		r = remote_config_load(&l.config, l.place.bucket, err);
	if (r < 0)
		return r;
	*ret = remote_config_to_json(&l.config);
	return *ret ? 0 : brumate_fail(err, EINVAL, "%s: a setting for it is not UTF-8", url);
}

/* ---- a checkpoint that is used without a copy ---- */

struct object_source {
	struct image_source source;
	struct located at;
	struct remote_image *image;
};

static void close_source(struct image_source *source)
{
	struct object_source *s = (struct object_source *)source;

	remote_close(s->image);
	located_fini(&s->at);
	free(s->source.url);
	free(s);
}

static int open_source(struct image_source **ret, const struct source_place *p,
		       store_progress_fn progress, void *arg, struct brumate_error *err)
{
	struct object_source *s = calloc(1, sizeof(*s));

	if (!s)
		return brumate_fail(err, ENOMEM, "%m");
	s->source.kind = p->kind;
	s->at = LOCATED_EMPTY;
	auto_(source_close) struct image_source *source = &s->source;
	int r = locate_checkpoint(&s->at, p, err);
	if (r == 0)
		r = remote_open(&s->image, &s->at.config, &s->at.place, s->at.word, progress, arg,
				err);
	if (r < 0)
		return r;
	source->manifest = remote_manifest(s->image);
	r = give_url(&source->url, &s->at, source->manifest->id, err);
	if (r == 0)
		*ret = take_ptr(&source);
	return r;
}

static struct remote_image *image_of(const struct image_source *s)
{
	return ((const struct object_source *)s)->image;
}

static int copy_manifest(const struct image_source *s, struct manifest *ret,
			 struct brumate_error *err)
{
	return remote_copy_manifest(image_of(s), ret, err);
}

static int fetch(struct image_source *s, const char *dir, store_progress_fn progress, void *arg,
		 struct brumate_error *err)
{
	return remote_fetch(image_of(s), dir, progress, arg, err);
}

static const struct pack_source *packs(const struct image_source *s)
{
	return remote_source(image_of(s));
}

/* ---- whole checkpoints ---- */

static int push(const struct source_place *p, const struct store_image *i, char **ret_url,
		struct source_sums *ret, store_progress_fn progress, void *arg,
		struct brumate_error *err)
{
	auto_(located_fini) struct located l = LOCATED_EMPTY;
	int r = locate_place(&l, p, err);

	if (r == 0)
		r = remote_push(&l.config, &l.place, i, ret, progress, arg, err);
	return r < 0 ? r : give_url(ret_url, &l, i->manifest.id, err);
}

static int pull(const struct source_place *p, const char *dir, const struct authority *authority,
		char ret_id[static MANIFEST_ID_BYTES], char **ret_url, struct source_sums *ret,
		store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(located_fini) struct located l = LOCATED_EMPTY;
	int r = locate_checkpoint(&l, p, err);

	if (r == 0)
		r = remote_pull(&l.config, &l.place, l.word, dir, authority, ret_id, ret, progress,
				arg, err);
	return r < 0 ? r : give_url(ret_url, &l, ret_id, err);
}

struct listing {
	const struct remote_place *place;
	source_list_fn fn;
	void *arg;
};

static void list_one(void *arg, const char *id, const struct manifest *m,
		     const struct brumate_error *why)
{
	const struct listing *l = arg;
	auto_free char *url = url_of(l->place, id);

	l->fn(l->arg, id, url, m, why);
}

static int list(const struct source_place *p, source_list_fn fn, void *fn_arg,
		store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(located_fini) struct located l = LOCATED_EMPTY;
	struct listing listing = { &l.place, fn, fn_arg };
	int r = locate_place(&l, p, err);

	return r < 0 ? r : remote_list(&l.config, &l.place, list_one, &listing, progress, arg, err);
}

static int remove_checkpoint(const struct source_place *p, store_progress_fn progress, void *arg,
			     struct brumate_error *err)
{
	auto_(located_fini) struct located l = LOCATED_EMPTY;
	int r = locate_checkpoint(&l, p, err);

	return r < 0 ? r : remote_remove(&l.config, &l.place, l.word, progress, arg, err);
}

const struct source_kind objects_source_kind = {
	.scheme = "s3",
	.example = "s3://BUCKET/PREFIX",
	.hint = "AWS_ENDPOINT_URL names the server",
	.address = address,
	.open = open_source,
	.copy_manifest = copy_manifest,
	.fetch = fetch,
	.packs = packs,
	.close = close_source,
	.push = push,
	.pull = pull,
	.list = list,
	.remove = remove_checkpoint,
	.sweep = remote_sweep,
};
