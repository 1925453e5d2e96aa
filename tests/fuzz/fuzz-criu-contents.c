// SPDX-License-Identifier: MIT
/* All images of a checkpoint at a time: each is a byte with the length of its name, the name, four bytes with the
 * length of the rest, and the rest. */
#include "criu/images.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

struct images {
	const uint8_t *data;
	size_t len_bytes;
};

/* The bytes of the image that is next; NULL at the end. */
static const uint8_t *next_image(struct images *i, const char *name, size_t *ret_len, int *ret_is)
{
	size_t name_len = i->len_bytes ? i->data[0] : 0;

	if (i->len_bytes < 1 + name_len + 4)
		return NULL;
	const uint8_t *p = i->data + 1 + name_len;
	size_t left = i->len_bytes - 1 - name_len - 4;
	size_t len = (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;

	*ret_len = len < left ? len : left;
	*ret_is = strlen(name) == name_len && !memcmp(i->data + 1, name, name_len);
	i->data = p + 4 + *ret_len;
	i->len_bytes = left - *ret_len;
	return p + 4;
}

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len,
		      struct brumate_error *err)
{
	struct images i = *(struct images *)arg;
	const uint8_t *p;
	int is;

	(void)err;
	while ((p = next_image(&i, name, ret_len, &is))) {
		if (!is)
			continue;
		*ret = malloc(*ret_len + 1);
		if (!*ret)
			return -ENOMEM;
		memcpy(*ret, p, *ret_len);
		return 0;
	}
	return -ENOENT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct images images = { data, len_bytes };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	json_t *told = NULL;
	int r = criu_contents_read(&told, read_image, &images, &err);

	/* One of both, and a refusal says why. */
	if ((r == 0) != (told != NULL) || (r < 0 && !err.text[0]))
		abort();
	json_decref(told);
	return 0;
}
