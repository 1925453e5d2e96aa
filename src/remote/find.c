// SPDX-License-Identifier: MIT
/* Manifests of a place; see find.h. What the server names is checked like any foreign word. */
#include "remote/find.h"
#include "remote/object.h"

#include <errno.h>
#include <string.h>

#include "base/array.h"
#include "base/paths.h"

enum { CHECKPOINTS_MAX = 100000 };

void found_fini(struct found *f)
{
	free(f->id);
	free(f->text);
	manifest_fini(&f->manifest);
	*f = (struct found){ 0 };
}

void found_list_fini(struct found_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		found_fini(&l->items[i]);
	free(l->items);
	*l = FOUND_LIST_EMPTY;
}

static int add_id(struct found_list *l, const char *id)
{
	if (l->n == CHECKPOINTS_MAX)
		return -EFBIG;
	struct found *items = array_room(l->items, l->n, sizeof(*items));

	if (!items)
		return -ENOMEM;
	l->items = items;
	l->items[l->n] = (struct found){ .id = strdup(id) };
	return l->items[l->n++].id ? 0 : -ENOMEM;
}

/* Keeps a name that is an id and a slash. */
static int take_name(void *arg, const char *name, uint64_t len_bytes)
{
	char id[MANIFEST_ID_BYTES];
	size_t len = strlen(name);

	if (len < 2 || len > MANIFEST_ID_BYTES || name[len - 1] != '/')
		return 0;
	memcpy(id, name, len - 1);
	id[len - 1] = '\0';
	if (!manifest_id_is_valid(id) || !strcmp(id, PLACE_PACKS))
		return 0;
	return add_id(arg, id);
}

/* Reads the manifest of @f->id. Its absence or damage is noted in @f; <0: it cannot be told. */
static int read_found(struct connection *s, struct found *f, struct brumate_error *err)
{
	auto_free char *below = path_format("%s/" STORE_MANIFEST_NAME, f->id);
	auto_free char *key = below ? place_key(s->client->place, below) : NULL;

	if (!key)
		return brumate_fail(err, ENOMEM, "%m");
	int r = object_get_text(s, key, &f->text, &f->len, err);
	if (r == -ENOENT) {
		f->incomplete = true;
		brumate_fail(&f->why, ENOENT,
			     "incomplete: it is being pushed, or that was "
			     "interrupted");
		return 0;
	}
	if (r < 0)
		return r;
	r = manifest_decode(&f->manifest, f->text, f->len, &f->why);
	if (r == 0 && strcmp(f->manifest.id, f->id))
		r = brumate_fail(&f->why, EBADMSG, "its manifest is that of %s", f->manifest.id);
	if (r == -ENOMEM)
		return brumate_fail(err, ENOMEM, "%m");
	if (r < 0)
		free(take_ptr(&f->text));
	return 0;
}

struct all {
	struct client *client;
	struct found_list list;
};

static int list_ids(void *arg, struct connection *s, size_t i, struct brumate_error *err)
{
	struct all *all = arg;
	auto_free char *prefix = place_key(s->client->place, "");

	if (!prefix)
		return brumate_fail(err, ENOMEM, "%m");
	int r = object_list(s, prefix, true, take_name, &all->list, err);
	return r == -ENOMEM || r == -EFBIG ? brumate_fail(err, -r, "list: %m") : r;
}

static int read_one(void *arg, struct connection *s, size_t i, struct brumate_error *err)
{
	struct all *all = arg;

	return read_found(s, &all->list.items[i], err);
}

static int by_id(const void *a, const void *b)
{
	return strcmp(((const struct found *)a)->id, ((const struct found *)b)->id);
}

int find_all(struct client *c, struct found_list *ret, const struct client_watch *watch,
	     struct brumate_error *err)
{
	struct all all = { .client = c, .list = FOUND_LIST_EMPTY };
	int r = client_run(c, 1, list_ids, &all, watch, err);

	if (r == 0)
		r = client_run(c, all.list.n, read_one, &all, watch, err);
	if (r < 0) {
		found_list_fini(&all.list);
		return r;
	}
	if (all.list.n)
		qsort(all.list.items, all.list.n, sizeof(all.list.items[0]), by_id);
	*ret = all.list;
	return 0;
}

static int read_exact(void *arg, struct connection *s, size_t i, struct brumate_error *err)
{
	return read_found(s, arg, err);
}

static int fail_unknown(const struct client *c, const char *word, struct brumate_error *err)
{
	const struct remote_place *p = c->place;

	brumate_fail(err, ENOENT, "no checkpoint %s in s3://%s/%s", word, p->bucket, p->prefix);
	brumate_hint(err, "`brumate ls s3://%s/%s` lists them", p->bucket, p->prefix);
	return -ENOENT;
}

/* The latest of a job, else the only one whose id starts so. */
static int choose(struct found **ret, struct found_list *l, const char *word,
		  struct brumate_error *err)
{
	struct found *latest = NULL, *prefixed = NULL;
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++) {
		struct found *f = &l->items[i];
		const struct manifest *m = &f->manifest;

		if (!strncmp(f->id, word, strlen(word)) && !f->incomplete) {
			prefixed = f;
			n++;
		}
		if (f->text && (!strcmp(m->job.name, word) || !strcmp(m->job.id, word)) &&
		    (!latest || manifest_sequence(m) > manifest_sequence(&latest->manifest)))
			latest = f;
	}
	if (!latest && n > 1) {
		brumate_fail(err, ENOTUNIQ, "checkpoint %s: the prefix of %zu", word, n);
		brumate_hint(err, "give more of the id");
		brumate_error_exit(err, EXIT_USAGE);
		return -ENOTUNIQ;
	}
	*ret = latest ? latest : prefixed;
	return *ret ? 0 : -ENOENT;
}

static int search(struct client *c, const char *word, struct found *ret,
		  const struct client_watch *watch, struct brumate_error *err)
{
	auto_(found_list_fini) struct found_list all = FOUND_LIST_EMPTY;
	struct found *f = NULL;
	int r = find_all(c, &all, watch, err);

	if (r == 0)
		r = choose(&f, &all, word, err);
	if (r < 0)
		return r == -ENOENT ? fail_unknown(c, word, err) : r;
	*ret = *f;
	*f = (struct found){ 0 };
	return 0;
}

int find_one(struct client *c, const char *word, struct found *ret,
	     const struct client_watch *watch, struct brumate_error *err)
{
	auto_(found_fini) struct found f = { 0 };
	int r = 0;

	f.incomplete = true;
	if (manifest_id_is_valid(word)) {
		f.incomplete = false;
		f.id = strdup(word);
		r = f.id ? client_run(c, 1, read_exact, &f, watch, err)
			 : brumate_fail(err, ENOMEM, "%m");
	}
	if (r == 0 && f.incomplete) {
		found_fini(&f);
		r = search(c, word, &f, watch, err);
	}
	if (r < 0)
		return r;
	if (!f.text) {
		if (err)
			*err = f.why;
		return brumate_wrap(err, -f.why.code, "checkpoint %s", f.id);
	}
	*ret = f;
	f = (struct found){ 0 };
	return 0;
}
