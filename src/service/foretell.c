// SPDX-License-Identifier: MIT
/* What a restore would do; see foretell.h. CRIU's part is read by criu/contents.c; here is what we do ourselves. */
#include "service/foretell.h"

#include <errno.h>

#include "criu/images.h"
#include "image/escape.h"

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
		      struct brumate_error *err)
{
	return store_read_image(ret, ret_len_bytes, arg, name, CRIU_IMAGE_BYTES_MAX, err);
}

static json_t *escaped(const char *text)
{
	auto_free char *safe = text ? text_escape(text, SIZE_MAX) : NULL;

	return safe ? json_string(safe) : NULL;
}

/* Descriptors that lead outside the job, and what stands in their place. */
static json_t *replaced(const struct manifest *m)
{
	json_t *all = json_array();

	for (size_t i = 0; i < m->n_externals; i++)
		json_array_append_new(all,
				      json_pack("{s:o,s:o}", "was", escaped(m->externals[i].key),
						"becomes", escaped(m->externals[i].become)));
	return all;
}

static json_t *gpus(const struct manifest *m)
{
	json_t *all = json_array();

	for (size_t i = 0; i < m->n_gpus; i++)
		json_array_append_new(all,
				      json_pack("{s:o,s:o,s:I}", "uuid", escaped(m->gpus[i].uuid),
						"name", escaped(m->gpus[i].name), "used_bytes",
						(json_int_t)m->gpus[i].used_bytes));
	return all;
}

/* Whether a restore would believe it, and why not. */
static json_t *doubt(const struct store_image *image, const struct authority *authority)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	return authentic_check_image(image, authority, &why) < 0 ? escaped(why.text) : NULL;
}

static json_t *tell_ours(const struct store_image *image, const struct authority *authority)
{
	const struct manifest *m = &image->manifest;

	return json_pack("{s:o*,s:I,s:I,s:o*,s:o,s:o}", "doubt", doubt(image, authority), "uid",
			 (json_int_t)m->job.uid, "gid", (json_int_t)m->job.gid, "log",
			 escaped(m->job.log), "replaced", replaced(m), "gpus", gpus(m));
}

int foretell_restore(json_t **ret, struct store_image *image, const struct authority *authority,
		     struct brumate_error *err)
{
	json_t *contents = NULL;
	int r = store_unlock(image, authority->has_key ? &authority->key : NULL, err);

	if (r < 0)
		return r;
	r = criu_contents_read(&contents, read_image, image, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", image->manifest.id);
	json_t *all = tell_ours(image, authority);
	r = all && json_object_update(all, contents) == 0 ? 0 : brumate_fail(err, ENOMEM, "%m");
	json_decref(contents);
	if (r < 0)
		json_decref(all);
	else
		*ret = all;
	return r;
}
