// SPDX-License-Identifier: MIT
/* Keys of a store: reads and derives them. */
#include "chunks/key.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

enum { FILE_BYTES_MAX = 2 * SEAL_KEY_BYTES + 1, PACK_PATH_MAX = 4096 };

void store_key_fini(struct store_key *k)
{
	explicit_bzero(k, sizeof(*k));
}

int store_key_make(struct store_key *ret, const struct seal_key *from)
{
	auto_(store_key_fini) struct store_key k;
	auto_(seal_key_fini) struct seal_key digests = { { 0 } }, id = { { 0 } };
	char text[DIGEST_TEXT_BYTES];
	struct digest d;

	if (seal_derive(&digests, from, "chunk digests", NULL, 0) < 0 ||
	    seal_derive(&k.chunks, from, "chunks", NULL, 0) < 0 ||
	    seal_derive(&k.files, from, "files", NULL, 0) < 0 ||
	    seal_derive(&k.manifest, from, "manifest", NULL, 0) < 0 ||
	    seal_derive(&id, from, "id", NULL, 0) < 0)
		return -ENOMEM;
	memcpy(k.digests.bytes, digests.bytes, sizeof(k.digests.bytes));
	memcpy(d.bytes, id.bytes, sizeof(d.bytes));
	digest_format(text, &d);
	memcpy(k.id, text, STORE_KEY_ID_BYTES - 1);
	k.id[STORE_KEY_ID_BYTES - 1] = '\0';
	*ret = k;
	return 0;
}

static int fail_key(struct brumate_error *err, int code, const char *path, const char *what)
{
	brumate_fail(err, code, "key %s: %s", path, what);
	brumate_hint(err, "a key is 32 random bytes: (umask 077; openssl rand -hex 32 >FILE)");
	return -code;
}

static int check_owner(int fd, const char *what, const char *path, struct brumate_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s %s: %m", what, path);
	if (!S_ISREG(st.st_mode))
		return brumate_fail(err, EINVAL, "%s %s: no regular file", what, path);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return brumate_fail(err, EACCES, "%s %s: belongs to uid %u, not to you or root",
				    what, path, st.st_uid);
	if (!(st.st_mode & 077))
		return 0;
	brumate_fail(err, EACCES, "%s %s: users other than its owner may use it (mode %04o)", what,
		     path, st.st_mode & 07777);
	brumate_hint(err, "chmod go= %s; if other users may have read it, make a new one", path);
	return -EACCES;
}

int store_key_open(const char *what, const char *path, struct brumate_error *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0)
		return brumate_fail(err, errno == ENOENT ? ENOKEY : errno, "%s %s: %s", what, path,
				    strerror(errno));
	int r = check_owner(fd, what, path, err);
	return r < 0 ? r : take_fd(&fd);
}

static int parse(struct seal_key *ret, const char *from, const void *text, size_t len_bytes,
		 struct brumate_error *err)
{
	return seal_key_parse(ret, text, len_bytes) < 0
		       ? fail_key(err, EINVAL, from,
				  "gives neither 32 bytes nor 64 hexadecimal digits")
		       : 0;
}

int store_key_parse(struct store_key *ret, const char *from, const void *text, size_t len_bytes,
		    struct brumate_error *err)
{
	auto_(seal_key_fini) struct seal_key key = { { 0 } };
	int r = parse(&key, from, text, len_bytes, err);

	if (r < 0)
		return r;
	r = store_key_make(ret, &key);
	return r < 0 ? brumate_fail(err, -r, "key %s: %m", from) : 0;
}

int store_key_read(struct seal_key *ret, const char *path, struct brumate_error *err)
{
	uint8_t text[FILE_BYTES_MAX + 1];
	auto_close int fd = store_key_open("key", path, err);

	if (fd < 0)
		return fd;
	int r;
	ssize_t n = fd_read_full(fd, text, sizeof(text));
	r = n < 0 ? brumate_fail(err, (int)-n, "key %s: %m", path)
		  : parse(ret, path, text, (size_t)n, err);
	explicit_bzero(text, sizeof(text));
	return r;
}

int store_key_load(struct store_key *ret, const char *path, struct brumate_error *err)
{
	auto_(seal_key_fini) struct seal_key key = { { 0 } };
	int r = store_key_read(&key, path, err);

	if (r < 0)
		return r;
	r = store_key_make(ret, &key);
	return r < 0 ? brumate_fail(err, -r, "key %s: %m", path) : 0;
}

int store_key_chunk(const struct store_key *k, const struct digest *digest, const char *pack,
		    uint64_t offset, void *data, size_t len_bytes)
{
	auto_(seal_key_fini) struct seal_key once = { { 0 } };
	uint8_t context[DIGEST_BYTES + 8 + PACK_PATH_MAX];
	size_t pack_len = strlen(pack);

	if (pack_len > PACK_PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(context, digest->bytes, DIGEST_BYTES);
	for (int i = 0; i < 8; i++)
		context[DIGEST_BYTES + i] = (uint8_t)(offset >> (8 * i));
	memcpy(context + DIGEST_BYTES + 8, pack, pack_len);
	int r = seal_derive(&once, &k->chunks, "chunk", context, DIGEST_BYTES + 8 + pack_len);
	return r < 0 ? r : seal_stream(data, &once, data, len_bytes);
}
