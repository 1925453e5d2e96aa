// SPDX-License-Identifier: MIT
/* Lists the checkpoints of a store in the order in which they were made. */
#include "store/image.h"
#include "store/names.h"

#include <errno.h>
#include <string.h>

struct entry {
	const char *id;					       /* borrowed from the names */
	char created[sizeof(((struct manifest *)0)->created)]; /* empty: damaged */
};

static int by_age(const void *a, const void *b)
{
	const struct entry *left = a, *right = b;

	if (!left->created[0] != !right->created[0])
		return left->created[0] ? -1 : 1;

	int order = strcmp(left->created, right->created);
	return order ? order : strcmp(left->id, right->id);
}

/* Manifests are read twice, once for the order: all of them at a time could be gigabytes. */
static struct entry *sort(int store_fd, const char *store, const struct dir_names *all)
{
	struct entry *entries = calloc(all->n ? all->n : 1, sizeof(*entries));

	for (size_t i = 0; entries && i < all->n; i++) {
		auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

		entries[i].id = all->ids[i];
		if (image_load(&image, store_fd, store, all->ids[i], NULL) == 0)
			memcpy(entries[i].created, image.manifest.created,
			       sizeof(entries[i].created));
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
	auto_free struct entry *entries = sort(store_fd, store, &all);
	if (!entries)
		return brumate_fail(err, ENOMEM, "%m");

	for (size_t i = 0; i < all.n; i++) {
		auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
		struct brumate_error why = BRUMATE_ERROR_NONE;

		r = image_load(&image, store_fd, store, entries[i].id, &why);
		if (r == -ENOENT)
			continue; /* removed meanwhile */
		fn(arg, entries[i].id, r < 0 ? NULL : &image, r < 0 ? &why : NULL);
	}
	return 0;
}
