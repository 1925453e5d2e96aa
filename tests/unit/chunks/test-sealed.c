// SPDX-License-Identifier: MIT
/*
 * Memory that is encrypted: it comes back by its key alone, is shared among checkpoints of that key alone,
 * and can be verified and moved by who has none.
 */
#include "memory-job.h"

static struct store_key key, other;

static void make_key(struct store_key *ret, uint8_t first)
{
	const struct seal_key from = { { first } };

	CHECK(store_key_make(ret, &from) == 0);
}

static uint64_t save_sealed(const struct memory_job *j, const char *id, const struct store_key *k)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = job_manifest("job", "2026-01-01T00:00:00.000Z");
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	const struct chunks_options options = { .job = "id-job", .compress = CHUNKS_COMPRESS_LZ4 };
	struct chunks_sums sums;

	CHECK(store_begin(&w, dir, id, NULL) == 0);
	w.key = k;
	CHECK(store_chunks_begin(&writer, &w, &options, NULL) == 0);
	for (size_t i = 0; i < j->n; i++)
		CHECK(chunks_add(writer, &j->regions[i], j->fds[i], 0, NULL) == 0);
	CHECK(chunks_end(writer, &m, &sums, NULL, NULL, NULL) == 0);
	CHECK(store_commit(&w, &m, NULL, NULL, NULL) == 0);
	return sums.shared;
}

static int load_sealed(const struct memory_job *j, const char *id, const struct store_key *k,
		       struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;

	*err = BRUMATE_ERROR_NONE;
	CHECK(store_open(&image, dir, id, NULL) == 0);
	int r = store_unlock(&image, k, err);
	if (r == 0)
		r = store_chunks_open(&reader, &image, err);
	for (size_t i = 0; r == 0 && i < j->n; i++)
		r = load_region(reader, j, i, err);
	return r;
}

/* Reads all packs of a checkpoint, one after the other. */
static uint8_t *read_packs(const char *id, size_t *ret_len, char *ret_last)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	uint8_t *all = NULL;

	*ret_len = 0;
	CHECK(store_open(&image, dir, id, NULL) == 0);
	for (size_t i = 0; i < image.manifest.memory.n_packs; i++) {
		const char *path = image.manifest.memory.packs[i].path;
		auto_free char *text = NULL;
		size_t len;

		CHECK(file_read(image.dir_fd, path, 64 << 20, &text, &len) == 0);
		all = realloc(all, *ret_len + len);
		CHECK(all);
		memcpy(all + *ret_len, text, len);
		*ret_len += len;
		snprintf(ret_last, PATH_MAX, "%s/%s", at("%s", id), path);
	}
	return all;
}

static void test_keys(const struct memory_job *j)
{
	struct brumate_error err;

	CHECK(save_sealed(j, "one", &key) == 0);
	CHECK(verify("one", &err) == 0);
	CHECK(load_sealed(j, "one", &key, &err) == 0);
	CHECK(load_sealed(j, "one", NULL, &err) == -ENOKEY);
	CHECK(strstr(err.text, "encrypted") && strstr(err.hint, "EncryptionKeyFile="));
	CHECK(brumate_exit_code(&err) == EXIT_PERMISSION);
	CHECK(load_sealed(j, "one", &other, &err) == -EKEYREJECTED);
	CHECK(strstr(err.text, "not by") && brumate_exit_code(&err) == EXIT_PERMISSION);
	CHECK(load_all(j, "one", &err) == -ENOKEY); /* nobody unlocked it */
}

/* What is stored looks like nothing, and is named by digests that are known to nobody. */
static void test_hidden(const struct memory_job *j)
{
	char last[PATH_MAX];
	size_t len, table_len;
	auto_free uint8_t *packs = read_packs("one", &len, last);
	auto_free char *table = NULL;
	struct digest d;

	CHECK(len > 2 * CHUNK_BYTES && !memmem(packs, len, "of text", 7));
	CHECK(!memmem(packs, len, j->bytes[0] + 4096, 32));
	CHECK(file_read(AT_FDCWD, at("one/%s", MANIFEST_TABLE_PATH), 1 << 20, &table, &table_len) ==
	      0);
	CHECK(chunk_digest(&d, j->bytes[0], CHUNK_BYTES) == 0);
	CHECK(!memmem(table, table_len, &d, sizeof(d)));
	CHECK(chunk_digest_keyed(&d, &key.digests, j->bytes[0], CHUNK_BYTES) == 0);
	CHECK(memmem(table, table_len, &d, sizeof(d)));
}

static void test_shared(const struct memory_job *j)
{
	struct brumate_error err;

	CHECK(save_sealed(j, "two", &key) > 0);
	CHECK(save_sealed(j, "other", &other) == 0 && save_sealed(j, "plain", NULL) == 0);
	CHECK(load_sealed(j, "two", &key, &err) == 0);
	CHECK(load_sealed(j, "other", &other, &err) == 0);
	CHECK(load_sealed(j, "plain", &key, &err) == 0 && load_all(j, "plain", &err) == 0);
	CHECK(store_remove(dir, "one", NULL) == 0);
	CHECK(verify("two", &err) == 0 && load_sealed(j, "two", &key, &err) == 0);
}

/* Moved by who has no key. */
static void test_moved(const struct memory_job *j)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct bytes s = { 0 };
	char id[MANIFEST_ID_BYTES];

	CHECK(store_open(&image, dir, "two", NULL) == 0);
	CHECK(store_export(&image, write_bytes, &s, NULL, NULL, NULL) == 0);
	store_image_fini(&image);
	CHECK(store_remove(dir, "two", NULL) == 0);
	CHECK(store_import(id, dir, &AUTHORITY_EMPTY, read_bytes, &s, NULL, NULL, &err) == 0);
	free(s.data);
	CHECK(verify("two", &err) == 0 && load_sealed(j, "two", &key, &err) == 0);
}

/* Found by who has no key, and by who has. */
static void test_damaged(const struct memory_job *j)
{
	char path[PATH_MAX];
	struct brumate_error err;
	size_t len;
	auto_free uint8_t *packs = read_packs("two", &len, path);
	auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
	char byte;

	CHECK(packs && fd >= 0 && pread(fd, &byte, 1, 1000) == 1);
	byte ^= 1;
	CHECK(pwrite(fd, &byte, 1, 1000) == 1);
	CHECK(verify("two", &err) == -EBADMSG && strstr(err.text, ".pack"));
	/* A bit of a compressed chunk may make no difference to what is loaded, which is compared. */
	int r = load_sealed(j, "two", &key, &err);
	CHECK(r == -EBADMSG || r == 0);
	byte ^= 1;
	CHECK(pwrite(fd, &byte, 1, 1000) == 1);
	CHECK(verify("two", &err) == 0 && load_sealed(j, "two", &key, &err) == 0);
}

int main(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };

	new_scratch();
	make_key(&key, 1);
	make_key(&other, 2);
	add_region(&j, 2 * CHUNK_BYTES + 77, FILL_RANDOM, 1);
	add_region(&j, CHUNK_BYTES, FILL_ZERO, 0);
	add_region(&j, 3 * CHUNK_BYTES, FILL_TEXT, 2);
	test_keys(&j);
	test_hidden(&j);
	test_shared(&j);
	test_moved(&j);
	test_damaged(&j);
	remove_scratch();
	return 0;
}
