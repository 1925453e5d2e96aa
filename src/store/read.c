// SPDX-License-Identifier: MIT
/* One file of a checkpoint, read whole for somebody who looks into it: what the manifest says it is, or nothing. */
#include "store/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fd.h"
#include "base/paths.h"
#include "chunks/files.h"
#include "store/sealed.h"

static int compare_paths(const void *key, const void *item)
{
	return strcmp(key, ((const struct manifest_file *)item)->path);
}

/* Reads all of @fd from its start. */
static int read_whole(char **ret, int fd, size_t len_bytes)
{
	auto_free char *text = malloc(len_bytes + 1);

	if (!text)
		return -ENOMEM;
	for (size_t done = 0; done < len_bytes;) {
		ssize_t n = pread(fd, text + done, len_bytes - done, (off_t)done);

		if (n <= 0)
			return n < 0 ? -errno : -EBADMSG;
		done += (size_t)n;
	}
	text[len_bytes] = '\0';
	*ret = take_ptr(&text);
	return 0;
}

static int check_digest(const struct manifest_file *f, const char *text)
{
	struct digest digest;
	int r = digest_buffer(&digest, text, f->len_bytes);

	if (r == 0 && memcmp(&digest, &f->digest, sizeof(digest)))
		return -EBADMSG;
	return r;
}

/* What is in a sealed file. It goes to no disk on the way. */
static int unseal(char **ret, size_t *ret_len, const struct store_image *i, int fd,
		  const char *name)
{
	auto_close int plain = memfd_create("brumate-image", MFD_CLOEXEC);
	struct stat st;

	if (plain < 0)
		return -errno;
	int r = sealed_open_file(plain, fd, i->key, i->manifest.id, name);
	if (r == 0 && fstat(plain, &st) < 0)
		r = -errno;
	if (r == 0)
		r = read_whole(ret, plain, (size_t)st.st_size);
	if (r == 0)
		*ret_len = (size_t)st.st_size;
	return r;
}

static int read_file(char **ret, size_t *ret_len, const struct store_image *i,
		     const struct manifest_file *f, const char *name)
{
	auto_close int fd = files_open(i->dir_fd, f->path, NULL);
	auto_free char *text = NULL;
	int r = fd < 0 ? fd : read_whole(&text, fd, f->len_bytes);

	if (r == 0)
		r = check_digest(f, text);
	if (r == 0 && *i->manifest.key_id)
		return unseal(ret, ret_len, i, fd, name);
	if (r < 0)
		return r;
	*ret = take_ptr(&text);
	*ret_len = f->len_bytes;
	return 0;
}

int store_read_image(char **ret, size_t *ret_len_bytes, const struct store_image *i,
		     const char *name, size_t max_bytes, struct brumate_error *err)
{
	const struct manifest *m = &i->manifest;
	auto_free char *path = path_format("criu/%s", name);

	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	const struct manifest_file *f =
		bsearch(path, m->files, m->n_files, sizeof(*f), compare_paths);
	if (!f)
		return -ENOENT;
	if (f->len_bytes > max_bytes)
		return brumate_fail(err, EFBIG, "%s: %llu bytes, expected at most %zu", path,
				    (unsigned long long)f->len_bytes, max_bytes);
	if (*m->key_id && !i->key)
		return brumate_fail(err, ENOKEY, "%s: is encrypted, and no key is configured",
				    path);
	int r = read_file(ret, ret_len_bytes, i, f, name);
	if (r == -EBADMSG)
		return brumate_fail(err, EBADMSG, "%s: damaged: it is not what the manifest says",
				    path);
	return r < 0 ? brumate_fail(err, r == -ENOENT ? EBADMSG : -r, "%s: %s", path, strerror(-r))
		     : 0;
}
