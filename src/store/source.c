// SPDX-License-Identifier: MIT
/* The kinds of places that a program has; see source.h. */
#include "store/source.h"

#include <errno.h>
#include <string.h>

/* Behind a function: compilers take the address of an array for one that is never NULL, weak or not. */
static const struct source_kind *const *first_kind(void)
{
	static const struct source_kind *const none[] = { NULL };
	const struct source_kind *const *volatile kinds = source_kinds;

	return kinds ? kinds : none;
}

bool source_is_url(const char *word)
{
	size_t n = strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789+.-");

	return n && !strncmp(word + n, "://", 3);
}

int source_find_kind(const struct source_kind **ret, const char *url, struct brumate_error *err)
{
	const struct source_kind *const *k = first_kind();

	if (!*k)
		return brumate_fail(err, EINVAL,
				    "\"%s\": this installation reads directories alone", url);
	for (const char *end = strstr(url, "://"); end && *k; k++)
		if (strlen((*k)->scheme) == (size_t)(end - url) &&
		    !strncmp((*k)->scheme, url, (size_t)(end - url))) {
			*ret = *k;
			return 0;
		}
	k = first_kind();
	brumate_fail(err, EINVAL, "\"%s\": expected %s", url, (*k)->example);
	if (!strstr(url, "://"))
		brumate_hint(err, "--dir DIR names a directory of this machine");
	else if ((*k)->hint)
		brumate_hint(err, "%s", (*k)->hint);
	return -EINVAL;
}

void source_close(struct image_source *s)
{
	if (s)
		s->kind->close(s);
}

int source_sweep(const char *dir)
{
	int n = 0;

	for (const struct source_kind *const *k = first_kind(); *k; k++)
		n += (*k)->sweep(dir);
	return n;
}
