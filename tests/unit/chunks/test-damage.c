// SPDX-License-Identifier: MIT
/*
 * A flipped bit anywhere in a checkpoint with memory in chunks is found and named: by verifying, and by
 * loading where what is loaded is concerned. Half a stream leaves nothing.
 */
#include "memory-job.h"

#include <dirent.h>

static struct memory_job job;

static void flip(const char *path, off_t at_byte, unsigned bit)
{
	auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, at_byte) == 1);
	byte ^= (uint8_t)(1u << bit);
	CHECK(pwrite(fd, &byte, 1, at_byte) == 1);
}

static uint64_t size_of(const char *path)
{
	struct stat st;

	CHECK(stat(path, &st) == 0);
	return (uint64_t)st.st_size;
}

struct told {
	int n;
	char path[256], text[1024];
	enum store_problem_kind kind;
};

static void tell(void *arg, const struct store_problem *p)
{
	struct told *t = arg;

	t->n++;
	t->kind = p->kind;
	snprintf(t->path, sizeof(t->path), "%s", p->path);
	snprintf(t->text, sizeof(t->text), "%s", p->text ? p->text : "");
}

/* With the bit flipped, the checkpoint is bad for @name, and good again after. */
static void try_flip(const char *id, const char *name, uint64_t byte, unsigned bit, bool chunk)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct told told = { 0 };
	const char *path = at("%s/%s", id, name);

	flip(path, (off_t)byte, bit);
	int r = verify(id, &err);
	if (r != -EBADMSG || !strstr(err.text, name))
		fprintf(stderr, "%s byte %llu: %d %s\n", name, (unsigned long long)byte, r,
			err.text);
	CHECK(r == -EBADMSG && strstr(err.text, name));
	CHECK(!chunk || (strstr(err.text, ": chunk ") && strstr(err.text, " of process ")));
	CHECK(store_open(&i, dir, id, NULL) == 0);
	CHECK(store_verify_all(&i, tell, &told, NULL, NULL, &err) == 1 && told.n == 1);
	CHECK_STR(told.path, name);
	CHECK(told.kind == (chunk ? STORE_CHUNK : STORE_DIGEST));
	CHECK(!chunk || !strncmp(told.text, "chunk ", 6));
	flip(path, (off_t)byte, bit);
}

/* Every part of a pack: the first, a middle and the last byte of each chunk, and what fills up. */
static void sweep_packs(const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	CHECK(store_open(&i, dir, id, NULL) == 0);
	for (size_t k = 0; k < i.manifest.memory.n_packs; k++) {
		const struct manifest_pack *p = &i.manifest.memory.packs[k];
		uint64_t step = p->len_bytes / 13 | 1;

		for (uint64_t byte = 0; byte < p->len_bytes; byte += step)
			try_flip(id, p->path, byte, (unsigned)(byte % 8), true);
		try_flip(id, p->path, p->len_bytes - 1, 7, true);
	}
	CHECK(verify(id, &(struct brumate_error){ 0 }) == 0);
}

static void sweep_table(const char *id)
{
	uint64_t len = size_of(at("%s/%s", id, MANIFEST_TABLE_PATH));
	struct brumate_error err;

	for (uint64_t byte = 0; byte < len; byte += 37) {
		try_flip(id, MANIFEST_TABLE_PATH, byte, (unsigned)(byte % 8), false);
		flip(at("%s/%s", id, MANIFEST_TABLE_PATH), (off_t)byte, 3);
		CHECK(load_all(&job, id, &err) == -EBADMSG);
		flip(at("%s/%s", id, MANIFEST_TABLE_PATH), (off_t)byte, 3);
	}
}

static void sweep_manifest(const char *id)
{
	uint64_t len = size_of(at("%s/manifest.json", id));
	struct brumate_error err;

	for (uint64_t byte = 0; byte < len; byte += 29) {
		flip(at("%s/manifest.json", id), (off_t)byte, (unsigned)(byte % 8));
		int r = verify(id, &err);
		CHECK(r == -EBADMSG || r == -EPROTONOSUPPORT);
		flip(at("%s/manifest.json", id), (off_t)byte, (unsigned)(byte % 8));
	}
}

/* A bad chunk is refused by name when it is loaded, and nothing else is given in its place. */
static void test_load(const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(store_open(&i, dir, id, NULL) == 0);
	const char *path = i.manifest.memory.packs[0].path;
	flip(at("%s/%s", id, path), 0, 0);
	CHECK(load_all(&job, id, &err) == -EBADMSG);
	CHECK(strstr(err.text, path) && strstr(err.text, "chunk 0 (bytes 0-"));
	CHECK(strstr(err.text, "it holds 0x7") && strstr(err.text, " of process 10"));
	flip(at("%s/%s", id, path), 0, 0);
	CHECK(load_all(&job, id, &err) == 0);
}

/* Missing, cut and longer packs, and files that nobody named. */
static void test_files(const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct told told = { 0 };
	char path[PATH_MAX], aside[PATH_MAX];

	CHECK(store_open(&i, dir, id, NULL) == 0);
	const struct manifest_pack *p = &i.manifest.memory.packs[0];
	snprintf(path, sizeof(path), "%s", at("%s/%s", id, p->path));
	snprintf(aside, sizeof(aside), "%s", at("aside"));

	CHECK(rename(path, aside) == 0);
	CHECK(verify(id, &err) == -EBADMSG && strstr(err.text, ": missing, expected "));
	CHECK(load_all(&job, id, &err) == -EBADMSG && strstr(err.text, p->path));
	CHECK(store_verify_all(&i, tell, &told, NULL, NULL, &err) == 1);
	CHECK(told.kind == STORE_MISSING);
	CHECK(rename(aside, path) == 0);

	CHECK(truncate(path, (off_t)p->len_bytes - 4096) == 0);
	CHECK(verify(id, &err) == -EBADMSG && strstr(err.text, "truncated"));
	CHECK(store_check(&i, &err) == -EBADMSG);
	CHECK(store_verify_all(&i, tell, &told, NULL, NULL, &err) == 1);
	CHECK(told.kind == STORE_SIZE);
	CHECK(load_all(&job, id, &err) == -EBADMSG);
	CHECK(strstr(err.text, "truncated") || strstr(err.text, "digest"));
}

/* There and back; a damaged pack neither leaves nor enters. */
static void test_stream(const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct bytes s = { 0 }, half = { 0 };
	char came[MANIFEST_ID_BYTES];

	CHECK(store_open(&i, dir, id, NULL) == 0);
	CHECK(store_export(&i, write_bytes, &s, NULL, NULL, &err) == 0);
	flip(at("%s/%s", id, i.manifest.memory.packs[0].path), 100, 1);
	CHECK(store_export(&i, write_bytes, &half, NULL, NULL, &err) == -EBADMSG);
	CHECK(strstr(err.text, ": chunk 0 "));
	store_image_fini(&i);
	CHECK(store_remove(dir, id, NULL) == 0);

	/* The last block but the end and the padding is of the last pack. */
	s.data[s.len - 1024 - 4096] ^= 1;
	int r = store_import(came, dir, &AUTHORITY_EMPTY, read_bytes, &s, NULL, NULL, &err);
	CHECK(r == -EBADMSG && strstr(err.text, ": chunk "));
	CHECK(store_sweep(dir) == 0 && !is_there(at("%s", id)));
	s.data[s.len - 1024 - 4096] ^= 1;
	s.at = 0;
	CHECK(store_import(came, dir, &AUTHORITY_EMPTY, read_bytes, &s, NULL, NULL, &err) == 0);
	CHECK_STR(came, id);
	check_saved(&job, id);
	free(s.data);
	free(half.data);
}

int main(void)
{
	static const enum chunks_compress ways[] = { CHUNKS_COMPRESS_NONE, CHUNKS_COMPRESS_LZ4,
						     CHUNKS_COMPRESS_ZSTD };

	new_scratch();
	add_region(&job, 2 * CHUNK_BYTES + 777, FILL_MIXED, 1);
	add_region(&job, 5000, FILL_TEXT, 2);
	add_region(&job, CHUNK_BYTES, FILL_TEXT, 3);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct chunks_options options = { .compress = ways[i], .threads = 2 };

		save(&job, "image", "2026-01-01T00:00:00.000Z", &options);
		sweep_packs("image");
		if (i == 1) {
			sweep_table("image");
			sweep_manifest("image");
		}
		test_load("image");
		test_stream("image");
		test_files("image");
		CHECK(store_remove(dir, "image", NULL) == 0);
	}
	memory_job_fini(&job);
	remove_scratch();
	return 0;
}
