// SPDX-License-Identifier: MIT
/* Listing the checkpoints of a place, and removing one with the packs that nothing else needs. */
#include "remote/remote.h"
#include "remote/find.h"
#include "remote/object.h"

#include <errno.h>
#include <string.h>

#include "base/array.h"
#include "base/paths.h"

int remote_list(const struct remote_config *config, const struct remote_place *place,
		remote_list_fn fn, void *fn_arg, store_progress_fn progress, void *arg,
		struct brumate_error *err)
{
	auto_(found_list_fini) struct found_list all = FOUND_LIST_EMPTY;
	struct client_watch watch = { progress, arg, 0 };
	auto_(client_fini) struct client c = { .stop_fd = -1 };
	int r = client_init(&c, config, place, err);

	if (r == 0)
		r = find_all(&c, &all, &watch, err);
	for (size_t i = 0; r == 0 && i < all.n; i++) {
		const struct found *f = &all.items[i];

		fn(fn_arg, f->id, f->text ? &f->manifest : NULL, f->text ? NULL : &f->why);
	}
	return r;
}

struct key_names {
	char **names; /* what follows the prefix; owned */
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
	struct client client;
	char *prefix; /* of what is listed; owned */
	struct key_names names;
};

static void removal_fini(struct removal *m)
{
	names_clear(&m->names);
	free(m->prefix);
	client_fini(&m->client);
}
DEFINE_AUTO_FINI(struct removal, removal_fini)

static int take_name(void *arg, const char *name, uint64_t len_bytes)
{
	struct key_names *l = arg;
	char **names = array_room(l->names, l->n, sizeof(*names));

	if (!names)
		return -ENOMEM;
	l->names = names;
	l->names[l->n] = strdup(name);
	return l->names[l->n++] ? 0 : -ENOMEM;
}

static int list_names(void *arg, struct connection *s, size_t i, struct brumate_error *err)
{
	struct removal *m = arg;
	int r = object_list(s, m->prefix, false, take_name, &m->names, err);

	return r == -ENOMEM ? brumate_fail(err, ENOMEM, "%m") : r;
}

static int delete_name(void *arg, struct connection *s, size_t i, struct brumate_error *err)
{
	const struct removal *m = arg;
	auto_free char *key = path_format("%s%s", m->prefix, m->names.names[i]);
	int r = key ? object_delete(s, key, err) : brumate_fail(err, ENOMEM, "%m");

	return r == -ENOENT ? 0 : r; /* somebody else has removed it */
}

/* Lists everything below the prefix @below of the place into m->names. */
static int list_below(struct removal *m, const char *below, const struct client_watch *watch,
		      struct brumate_error *err)
{
	names_clear(&m->names);
	free(m->prefix);
	m->prefix = place_key(m->client.place, below);
	if (!m->prefix)
		return brumate_fail(err, ENOMEM, "%m");
	return client_run(&m->client, 1, list_names, m, watch, err);
}

/* The manifest goes first: half of a checkpoint is never seen. */
static int remove_files(struct removal *m, const char *id, const struct client_watch *watch,
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
	if (r == 0 && !m->names.n) {
		brumate_fail(err, ENOENT, "no checkpoint %s in s3://%s/%s", id,
			     m->client.place->bucket, m->client.place->prefix);
		brumate_hint(err, "`brumate ls s3://%s/%s` lists them", m->client.place->bucket,
			     m->client.place->prefix);
		return -ENOENT;
	}
	if (r == 0)
		r = client_run(&m->client, 1, delete_name, m, watch, err);
	return r < 0 ? r : client_run(&m->client, m->names.n, delete_name, m, watch, err);
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

/* Takes the packs that some checkpoint uses off the list of those that go. */
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

/* Packs are listed before the manifests: one that is put in between is not on the list. */
static int remove_packs(struct removal *m, const struct client_watch *watch,
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
			return 0; /* which packs it needs cannot be told */
	keep_used(m, &all);
	return client_run(&m->client, m->names.n, delete_name, m, watch, err);
}

int remote_remove(const struct remote_config *config, const struct remote_place *place,
		  const char *id, store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(removal_fini) struct removal m = { .client.stop_fd = -1 };
	struct client_watch watch = { progress, arg, 0 };
	int r;

	if (!manifest_id_is_valid(id) || !strcmp(id, PLACE_PACKS))
		return brumate_fail(err, EINVAL, "\"%s\" is not the id of a checkpoint", id);
	r = client_init(&m.client, config, place, err);
	if (r == 0)
		r = remove_files(&m, id, &watch, err);
	if (r == 0)
		r = remove_packs(&m, &watch, err);
	return r < 0 ? brumate_wrap(err, r, "remove %s", id) : 0;
}
