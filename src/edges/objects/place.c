// SPDX-License-Identifier: MIT
/* Names of buckets, prefixes and keys; see place.h. */
#include "edges/objects/place.h"

#include <errno.h>
#include <string.h>

#include "base/paths.h"

static const char scheme[] = "s3://";
static const char pack_dir[] = MANIFEST_MEMORY_DIR "/";

void remote_place_fini(struct remote_place *p)
{
	free(p->prefix);
	*p = REMOTE_PLACE_EMPTY;
}

static bool bucket_is_valid(const char *name, size_t len)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789.-_";

	return len >= 1 && len < REMOTE_BUCKET_BYTES && strspn(name, allowed) >= len &&
	       !strchr(".-", name[0]);
}

static bool prefix_is_valid(const char *prefix)
{
	if (!*prefix)
		return true;
	for (const char *p = prefix; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return false;
	return strlen(prefix) <= REMOTE_PREFIX_BYTES_MAX && manifest_path_is_valid(prefix);
}

int remote_place_parse(struct remote_place *ret, const char *url, struct brumate_error *err)
{
	auto_(remote_place_fini) struct remote_place p = REMOTE_PLACE_EMPTY;

	if (strncmp(url, scheme, strlen(scheme)) != 0)
		return brumate_fail(err, EINVAL, "\"%s\": expected s3://BUCKET/PREFIX", url);

	const char *name = url + strlen(scheme);
	size_t len = strcspn(name, "/");
	if (!bucket_is_valid(name, len))
		return brumate_fail(err, EINVAL, "%s: \"%.*s\" is not the name of a bucket", url,
				    (int)len, name);
	memcpy(p.bucket, name, len);

	p.prefix = strdup(name[len] ? name + len + 1 : "");
	if (!p.prefix)
		return brumate_fail(err, ENOMEM, "%m");
	size_t prefix_len = strlen(p.prefix);
	if (prefix_len && p.prefix[prefix_len - 1] == '/')
		p.prefix[prefix_len - 1] = '\0';
	if (!prefix_is_valid(p.prefix))
		return brumate_fail(err, EINVAL,
				    "%s: expected names between single slashes, at most %d bytes",
				    url, REMOTE_PREFIX_BYTES_MAX);
	*ret = take_struct(p, REMOTE_PLACE_EMPTY);
	return 0;
}

int remote_place_split(struct remote_place *p, char **ret_word, struct brumate_error *err)
{
	char *slash = strrchr(p->prefix, '/');
	const char *last = slash ? slash + 1 : p->prefix;

	if (!*last) {
		brumate_fail(err, EINVAL, "s3://%s: which checkpoint?", p->bucket);
		brumate_hint(err, "s3://%s/PREFIX/ID; `brumate ls s3://%s/PREFIX` lists them",
			     p->bucket, p->bucket);
		return -EINVAL;
	}
	char *word = strdup(last);
	if (!word)
		return brumate_fail(err, ENOMEM, "%m");
	if (slash)
		*slash = '\0';
	else
		p->prefix[0] = '\0';
	*ret_word = word;
	return 0;
}

char *place_key(const struct remote_place *p, const char *below)
{
	return path_format("%s%s%s", p->prefix, *p->prefix ? "/" : "", below);
}

size_t place_n_files(const struct manifest *m)
{
	return m->n_files + m->memory.n_packs;
}

struct place_file place_file(const struct manifest *m, size_t i)
{
	if (i < m->n_files)
		return (struct place_file){ m->files[i].path, m->files[i].len_bytes,
					    &m->files[i].digest };

	const struct manifest_pack *pack = &m->memory.packs[i - m->n_files];
	return (struct place_file){ pack->path, pack->len_bytes, NULL };
}

const char *place_pack_name(const struct place_file *f)
{
	return f->path + strlen(pack_dir); /* the manifest's rules guarantee that prefix */
}

char *place_file_key(const struct remote_place *p, const char *id, const struct place_file *f)
{
	auto_free char *below = f->digest ? path_format("%s/%s", id, f->path)
					  : path_format(PLACE_PACKS "/%s", place_pack_name(f));

	return below ? place_key(p, below) : NULL;
}

char *place_encode(const char *text, bool keep_slash)
{
	static const char hex[] = "0123456789ABCDEF";
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789-._~";
	char *encoded = malloc(3 * strlen(text) + 1), *out = encoded;

	if (!encoded)
		return NULL;
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (strchr(plain, c) || (keep_slash && c == '/')) {
			*out++ = (char)c;
			continue;
		}
		*out++ = '%';
		*out++ = hex[c >> 4];
		*out++ = hex[c & 15];
	}
	*out = '\0';
	return encoded;
}
