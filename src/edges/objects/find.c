// SPDX-License-Identifier: MIT
/* Finds, lists and removes the checkpoints of a place. See object.h. Names from the server are untrusted and checked. */
#include "edges/objects/object.h"

#include <errno.h>
#include <string.h>

#include "base/array.h"
#include "base/paths.h"
#include "edges/objects/remote.h"
#include "store/store.h"

enum { CHECKPOINTS_MAX = 100000 };

struct found_list {
	struct found *items; /* sorted by id */
	size_t n;
};
#define FOUND_LIST_EMPTY ((struct found_list){ 0 })

void found_fini(struct found *f)
{
	free(f->id);
	free(f->text);
	manifest_fini(&f->manifest);
	*f = (struct found){ 0 };
}

static void found_list_fini(struct found_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		found_fini(&l->items[i]);
	free(l->items);
	*l = FOUND_LIST_EMPTY;
}
DEFINE_AUTO_FINI(struct found_list, found_list_fini)

static int add_id(struct found_list *l, const char *id)
{
	if (l->n == CHECKPOINTS_MAX)
		return -EFBIG;
	int r = array_add(l->items, l->n, (struct found){ .id = strdup(id) });

	return r < 0 || l->items[l->n - 1].id ? r : -ENOMEM;
}

/* Keeps a name that is an id followed by a slash. */
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

/* Reads the manifest of @f->id. Its absence or damage is noted in @f; <0: unknown. */
static int read_found(struct http_connection *s, struct found *f, struct brumate_error *err)
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
	struct http_client *client;
	struct found_list list;
};

static int list_ids(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct all *all = arg;
	auto_free char *prefix = place_key(s->client->place, "");

	if (!prefix)
		return brumate_fail(err, ENOMEM, "%m");
	int r = object_list(s, prefix, true, take_name, &all->list, err);
	return r == -ENOMEM || r == -EFBIG ? brumate_fail(err, -r, "list: %m") : r;
}

static int read_one(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct all *all = arg;

	return read_found(s, &all->list.items[i], err);
}

static int by_id(const void *a, const void *b)
{
	return strcmp(((const struct found *)a)->id, ((const struct found *)b)->id);
}

/* Finds every checkpoint of the client's place, with its manifest or the reason why it has none. */
static int find_all(struct http_client *c, struct found_list *ret, const struct http_watch *watch,
		    struct brumate_error *err)
{
	struct all all = { .client = c, .list = FOUND_LIST_EMPTY };
	int r = http_client_run(c, 1, list_ids, &all, watch, err);

	if (r == 0)
		r = http_client_run(c, all.list.n, read_one, &all, watch, err);
	if (r < 0) {
		found_list_fini(&all.list);
		return r;
	}
	if (all.list.n)
		qsort(all.list.items, all.list.n, sizeof(all.list.items[0]), by_id);
	*ret = all.list;
	return 0;
}

static int read_exact(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	return read_found(s, arg, err);
}

static int fail_unknown(const struct http_client *c, const char *word, struct brumate_error *err)
{
	const struct remote_place *p = c->place;

	brumate_fail(err, ENOENT, "no checkpoint %s in s3://%s/%s", word, p->bucket, p->prefix);
	brumate_hint(err, "`brumate ls s3://%s/%s` lists them", p->bucket, p->prefix);
	return -ENOENT;
}

/* Chooses the latest of a job, else the only one whose id starts with @word. */
static int choose(struct found **ret, struct found_list *l, const char *word,
		  struct brumate_error *err)
{
	struct found *latest = NULL, *prefixed = NULL;
	const size_t len = strlen(word);
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++) {
		struct found *f = &l->items[i];
		const struct manifest *m = &f->manifest;

		if (!strncmp(f->id, word, len) && !f->incomplete &&
		    (len >= STORE_PREFIX_BYTES_MIN || !f->id[len])) {
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

static int find_by_word(struct http_client *c, const char *word, struct found *ret,
			const struct http_watch *watch, struct brumate_error *err)
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

int find_one(struct http_client *c, const char *word, struct found *ret,
	     const struct http_watch *watch, struct brumate_error *err)
{
	auto_(found_fini) struct found f = { .incomplete = true };
	int r = 0;

	if (manifest_id_is_valid(word)) {
		f.incomplete = false;
		f.id = strdup(word);
		r = f.id ? http_client_run(c, 1, read_exact, &f, watch, err)
			 : brumate_fail(err, ENOMEM, "%m");
	}
	if (r == 0 && f.incomplete) {
		found_fini(&f);
		r = find_by_word(c, word, &f, watch, err);
	}
	if (r < 0)
		return r;
	if (!f.text) {
		if (err)
			*err = f.why;
		return brumate_wrap(err, -f.why.code, "checkpoint %s", f.id);
	}
	*ret = take_struct(f, (struct found){ 0 });
	return 0;
}

/* ---- listing, and removing a checkpoint with the packs that nothing else needs ---- */

int remote_list(const struct remote_config *config, const struct remote_place *place,
		remote_list_fn fn, void *fn_arg, store_progress_fn progress, void *arg,
		struct brumate_error *err)
{
	auto_(found_list_fini) struct found_list all = FOUND_LIST_EMPTY;
	struct http_watch watch = { progress, arg, 0 };
	auto_(http_client_fini) struct http_client c = { .stop_fd = -1 };
	int r = http_client_init(&c, config, place, err);

	if (r == 0)
		r = find_all(&c, &all, &watch, err);
	for (size_t i = 0; r == 0 && i < all.n; i++) {
		const struct found *f = &all.items[i];

		fn(fn_arg, f->id, f->text ? &f->manifest : NULL, f->text ? NULL : &f->why);
	}
	return r;
}

struct key_names {
	char **names; /* relative to the prefix; owned */
	size_t n;
};

static void names_clear(struct key_names *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->names[i]);
	free(l->names);
	*l = (struct key_names){ 0 };
}

struct removal {
	struct http_client client;
	char *prefix; /* prefix of the names; owned */
	struct key_names names;
};

static void removal_fini(struct removal *m)
{
	names_clear(&m->names);
	free(m->prefix);
	http_client_fini(&m->client);
}
DEFINE_AUTO_FINI(struct removal, removal_fini)

static int note_name(void *arg, const char *name, uint64_t len_bytes)
{
	struct key_names *l = arg;
	int r = array_add(l->names, l->n, strdup(name));

	return r < 0 || l->names[l->n - 1] ? r : -ENOMEM;
}

static int list_keys(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	struct removal *m = arg;
	int r = object_list(s, m->prefix, false, note_name, &m->names, err);

	return r == -ENOMEM ? brumate_fail(err, ENOMEM, "%m") : r;
}

static int delete_name(void *arg, struct http_connection *s, size_t i, struct brumate_error *err)
{
	const struct removal *m = arg;
	auto_free char *key = path_format("%s%s", m->prefix, m->names.names[i]);
	int r = key ? object_delete(s, key, err) : brumate_fail(err, ENOMEM, "%m");

	return r == -ENOENT ? 0 : r; /* already removed by another client */
}

/* Lists everything below the prefix @below of the place into m->names. */
static int list_below(struct removal *m, const char *below, const struct http_watch *watch,
		      struct brumate_error *err)
{
	names_clear(&m->names);
	free(m->prefix);
	m->prefix = place_key(m->client.place, below);
	if (!m->prefix)
		return brumate_fail(err, ENOMEM, "%m");
	return http_client_run(&m->client, 1, list_keys, m, watch, err);
}

/* The manifest is removed first, so that an incomplete checkpoint is never visible as one. */
static int remove_files(struct removal *m, const char *id, const struct http_watch *watch,
			struct brumate_error *err)
{
	auto_free char *below = path_format("%s/", id);
	int r = below ? list_below(m, below, watch, err) : brumate_fail(err, ENOMEM, "%m");

	for (size_t i = 1; r == 0 && i < m->names.n; i++) {
		if (strcmp(m->names.names[i], STORE_MANIFEST_NAME))
			continue;
		char *manifest = m->names.names[i];

		m->names.names[i] = m->names.names[0];
		m->names.names[0] = manifest;
	}
	if (r == 0 && !m->names.n)
		return fail_unknown(&m->client, id, err);
	if (r == 0)
		r = http_client_run(&m->client, 1, delete_name, m, watch, err);
	return r < 0 ? r : http_client_run(&m->client, m->names.n, delete_name, m, watch, err);
}

static bool uses(const struct manifest *m, const char *pack)
{
	for (size_t i = m->n_files; i < place_n_files(m); i++) {
		struct place_file f = place_file(m, i);

		if (!strcmp(place_pack_name(&f), pack))
			return true;
	}
	return false;
}

/* Removes the packs that some checkpoint uses from the list of packs to be removed. */
static void keep_used(struct removal *m, const struct found_list *all)
{
	for (size_t k = 0; k < m->names.n;) {
		bool used = false;

		for (size_t i = 0; i < all->n && !used; i++)
			used = uses(&all->items[i].manifest, m->names.names[k]);
		if (!used) {
			k++;
			continue;
		}
		free(m->names.names[k]);
		m->names.names[k] = m->names.names[--m->names.n];
	}
}

/* Packs are listed before the manifests, so a pack uploaded in between is not on the list. */
static int remove_packs(struct removal *m, const struct http_watch *watch,
			struct brumate_error *err)
{
	auto_(found_list_fini) struct found_list all = FOUND_LIST_EMPTY;
	int r = list_below(m, PLACE_PACKS "/", watch, err);

	if (r < 0 || !m->names.n)
		return r;
	r = find_all(&m->client, &all, watch, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < all.n; i++)
		if (!all.items[i].text)
			return 0; /* it is unknown which packs that one needs */
	keep_used(m, &all);
	return http_client_run(&m->client, m->names.n, delete_name, m, watch, err);
}

int remote_remove(const struct remote_config *config, const struct remote_place *place,
		  const char *id, store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(removal_fini) struct removal m = { .client.stop_fd = -1 };
	struct http_watch watch = { progress, arg, 0 };
	int r;

	if (!manifest_id_is_valid(id) || !strcmp(id, PLACE_PACKS))
		return brumate_fail(err, EINVAL, "\"%s\" is not the id of a checkpoint", id);
	r = http_client_init(&m.client, config, place, err);
	if (r == 0)
		r = remove_files(&m, id, &watch, err);
	if (r == 0)
		r = remove_packs(&m, &watch, err);
	return r < 0 ? brumate_wrap(err, r, "remove %s", id) : 0;
}
