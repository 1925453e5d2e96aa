// SPDX-License-Identifier: MIT
/* Sealed files: they come back as they were, by their key, at their place, unchanged, or not at all. */
#include "scratch.h"

#include "chunks/key.h"
#include "store/sealed.h"

enum { BLOCK = 64 << 10, BOX = BLOCK + SEAL_EXTRA_BYTES, HEAD = 48, LEN_MAX = 3 * BLOCK };

static const size_t lens[] = { 0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 77, LEN_MAX };
enum { N_LENS = sizeof(lens) / sizeof(lens[0]) };

static uint8_t data[LEN_MAX];
static struct store_key key;
static int plain, sealed, opened;

static void make_key(struct store_key *ret, uint8_t first)
{
	const struct seal_key from = { { first } };

	CHECK(store_key_make(ret, &from) == 0);
}

static int fresh(int *at, const char *name)
{
	auto_free char *path = path_format("%s/%s", scratch, name);

	CHECK(path);
	cleanup_close(at);
	CHECK(remove_tree(AT_FDCWD, path) == 0 && mkdir(path, 0700) == 0);
	*at = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(*at >= 0);
	return *at;
}

static int reopen(struct brumate_error *err)
{
	*err = BRUMATE_ERROR_NONE;
	return sealed_open_dir(fresh(&opened, "opened"), sealed, &key, "ckpt-1", err);
}

static void check_file(int dir_fd, const char *name, size_t len)
{
	auto_free char *text = NULL;
	size_t n = 0;

	CHECK(file_read(dir_fd, name, 1 << 20, &text, &n) == 0);
	CHECK(n == len && !memcmp(text, data, n));
}

static void seal_one(size_t len)
{
	put_file(fresh(&plain, "plain"), "pages-1.img", data, len);
	CHECK(sealed_close_dir(fresh(&sealed, "sealed"), plain, &key, "ckpt-1", NULL) == 0);
}

static void test_round(void)
{
	struct brumate_error err;
	char name[32];
	struct stat st;

	fresh(&plain, "plain");
	CHECK(mkdirat(plain, "a", 0700) == 0 && mkdirat(plain, "a/b", 0700) == 0);
	for (size_t i = 0; i < N_LENS; i++) {
		snprintf(name, sizeof(name), "%s%zu", i % 2 ? "a/b/" : "", lens[i]);
		put_file(plain, name, data, lens[i]);
	}
	CHECK(sealed_close_dir(fresh(&sealed, "sealed"), plain, &key, "ckpt-1", NULL) == 0);
	CHECK(reopen(&err) == 0);
	for (size_t i = 0; i < N_LENS; i++) {
		snprintf(name, sizeof(name), "%s%zu", i % 2 ? "a/b/" : "", lens[i]);
		check_file(opened, name, lens[i]);
		CHECK(fstatat(sealed, name, &st, 0) == 0 && (st.st_mode & 07777) == 0600);
		CHECK(st.st_size ==
		      (off_t)(HEAD + lens[i] + (lens[i] / BLOCK + 1) * SEAL_EXTRA_BYTES));
	}
}

static char *read_sealed(size_t *ret_len)
{
	char *text = NULL;

	CHECK(file_read(sealed, "pages-1.img", 1 << 20, &text, ret_len) == 0);
	return text;
}

static void check_refused(void)
{
	struct brumate_error err;

	CHECK(reopen(&err) == -EBADMSG && strstr(err.text, "pages-1.img: "));
}

/* Nothing that was in the clear can be seen. */
static void test_hidden(void)
{
	size_t len;

	memcpy(data + 500, "a secret that would be seen", 27);
	seal_one(1000);
	auto_free char *text = read_sealed(&len);
	CHECK(!memmem(text, len, "a secret", 8));
}

static void test_tampered(void)
{
	size_t len;

	seal_one(2 * BLOCK + 77);
	auto_free char *text = read_sealed(&len);
	for (size_t at = 0; at < len; at = at < 100 ? at + 1 : at + 9973) {
		text[at] ^= 4;
		put_file(sealed, "pages-1.img", text, len);
		check_refused();
		text[at] ^= 4;
	}
	static const size_t cuts[] = { 0, HEAD - 1, HEAD, HEAD + BOX, HEAD + 2 * BOX };
	for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
		put_file(sealed, "pages-1.img", text, cuts[i]);
		check_refused();
	}
	/* Two blocks that change places. */
	auto_free char *swapped = malloc(len);
	CHECK(swapped);
	memcpy(swapped, text, len);
	memcpy(swapped + HEAD, text + HEAD + BOX, BOX);
	memcpy(swapped + HEAD + BOX, text + HEAD, BOX);
	put_file(sealed, "pages-1.img", swapped, len);
	check_refused();
}

static void test_elsewhere(void)
{
	struct brumate_error err;
	struct store_key right = key;

	seal_one(100);
	CHECK(sealed_open_dir(fresh(&opened, "opened"), sealed, &key, "ckpt-2", &err) == -EBADMSG);
	make_key(&key, 2);
	check_refused();
	key = right;
	CHECK(reopen(&err) == 0);
	CHECK(renameat(sealed, "pages-1.img", sealed, "pages-2.img") == 0);
	CHECK(reopen(&err) == -EBADMSG && strstr(err.text, "pages-2.img: "));
	put_file(fresh(&sealed, "sealed"), "pages-1.img", data, 100);
	check_refused();
}

static void test_load(void)
{
	auto_free char *path = path_format("%s/key", scratch);
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct store_key k, same;
	char hex[65];

	CHECK(path && store_key_load(&k, path, &err) == -ENOKEY);
	memset(hex, 'a', sizeof(hex));
	put_file(AT_FDCWD, path, hex, 64);
	CHECK(chmod(path, 0640) == 0 && store_key_load(&k, path, &err) == -EACCES && err.hint[0]);
	CHECK(chmod(path, 0600) == 0 && store_key_load(&k, path, &err) == 0);
	memset(hex, 0xaa, 32);
	put_file(AT_FDCWD, path, hex, 32);
	CHECK(store_key_load(&same, path, &err) == 0 && !memcmp(&k, &same, sizeof(k)));
	CHECK(strlen(k.id) == STORE_KEY_ID_BYTES - 1 && strcmp(k.id, key.id));
	put_file(AT_FDCWD, path, hex, 31);
	CHECK(store_key_load(&k, path, &err) == -EINVAL && strstr(err.hint, "openssl rand"));
	CHECK(store_key_load(&k, scratch, &err) == -EINVAL);
}

static void test_chunk(void)
{
	uint8_t chunk[1000];
	struct digest d, e;

	memcpy(chunk, data, sizeof(chunk));
	CHECK(chunk_digest_keyed(&d, &key.digests, chunk, sizeof(chunk)) == 0);
	CHECK(chunk_digest(&e, chunk, sizeof(chunk)) == 0 && memcmp(&d, &e, sizeof(d)));
	CHECK(store_key_chunk(&key, &d, "memory/1.pack", 4096, chunk, sizeof(chunk)) == 0);
	CHECK(memcmp(chunk, data, 16));
	CHECK(store_key_chunk(&key, &d, "memory/1.pack", 4096, chunk, sizeof(chunk)) == 0);
	CHECK(!memcmp(chunk, data, sizeof(chunk)));
	/* The same chunk elsewhere looks different. */
	uint8_t other[16] = { 0 }, moved[16] = { 0 }, renamed[16] = { 0 };
	CHECK(store_key_chunk(&key, &d, "memory/1.pack", 4096, other, 16) == 0);
	CHECK(store_key_chunk(&key, &d, "memory/1.pack", 8192, moved, 16) == 0);
	CHECK(store_key_chunk(&key, &d, "memory/2.pack", 4096, renamed, 16) == 0);
	CHECK(memcmp(other, moved, 16) && memcmp(other, renamed, 16) && memcmp(moved, renamed, 16));
}

int main(void)
{
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 31 + i / 255);
	new_scratch();
	make_key(&key, 1);
	plain = sealed = opened = -1;
	test_round();
	test_hidden();
	test_tampered();
	test_elsewhere();
	test_load();
	test_chunk();
	cleanup_close(&plain);
	cleanup_close(&sealed);
	cleanup_close(&opened);
	remove_scratch();
	return 0;
}
