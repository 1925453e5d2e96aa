// SPDX-License-Identifier: MIT
/* Regions of memory to be saved and loaded by tests: made from a seed, in memfds. */
#pragma once

#include "scratch.h"

#include <sys/mman.h>

#include "chunks/chunks.h"

enum { REGIONS_MAX = 32 };

/* Where the store gets the bytes: of fds, with digests that were computed before where regions are whole
 * chunks, from a function, of our memory. */
enum saved_from { FROM_FD, FROM_FD_KNOWN, FROM_FUNCTION, FROM_MEMORY, FROM__MAX };

/* A job's memory. */
struct memory_job {
	struct manifest_region regions[REGIONS_MAX];
	uint8_t *bytes[REGIONS_MAX]; /* mappings of fds */
	int fds[REGIONS_MAX];
	size_t n;
	enum saved_from from;
};

/* What regions are filled with. */
enum fill { FILL_ZERO, FILL_RANDOM, FILL_TEXT, FILL_MIXED };

static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static inline void fill_random(uint8_t *at, size_t len, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;

	for (size_t i = 0; i < len; i += sizeof(state)) {
		uint64_t word = next_random(&state);

		memcpy(at + i, &word, len - i < sizeof(word) ? len - i : sizeof(word));
	}
}

/* Lines that compress well, each page another. */
static inline void fill_text(uint8_t *at, size_t len, uint64_t seed)
{
	char line[64];

	for (size_t i = 0; i < len;) {
		int n = snprintf(line, sizeof(line), "line %zu of text %llu, loss 0.12345\n",
				 i / 64, (unsigned long long)seed);
		size_t room = len - i < (size_t)n ? len - i : (size_t)n;

		memcpy(at + i, line, room);
		i += room;
	}
}

static inline void fill_memory(uint8_t *at, size_t len, enum fill fill, uint64_t seed)
{
	if (fill == FILL_RANDOM) {
		fill_random(at, len, seed);
	} else if (fill == FILL_TEXT) {
		fill_text(at, len, seed);
	} else if (fill == FILL_MIXED) {
		for (size_t i = 0, k = 0; i < len; i += CHUNK_BYTES / 2 + 4096, k++) {
			size_t n = CHUNK_BYTES / 2 + 4096;

			fill_memory(at + i, len - i < n ? len - i : n, (enum fill)(k % 3),
				    seed + k);
		}
	}
}

static inline void add_region(struct memory_job *j, size_t len, enum fill fill, uint64_t seed)
{
	size_t i = j->n++;

	CHECK(i < REGIONS_MAX);
	j->regions[i] = (struct manifest_region){
		.kind = i % 2 ? MANIFEST_REGION_DEVICE : MANIFEST_REGION_HOST,
		.pid = 100 + (pid_t)i,
		.id = i % 2 ? i : 0,
		.va = 0x700000000000ull + (i << 36),
		.len_bytes = len,
	};
	if (i % 2)
		strcpy(j->regions[i].gpu, "GPU-1");
	j->fds[i] = memfd_create("region", MFD_CLOEXEC);
	CHECK(j->fds[i] >= 0 && ftruncate(j->fds[i], (off_t)len + 1) == 0);
	j->bytes[i] = mmap(NULL, len + 1, PROT_READ | PROT_WRITE, MAP_SHARED, j->fds[i], 0);
	CHECK(j->bytes[i] != MAP_FAILED);
	fill_memory(j->bytes[i], len, fill, seed);
}

static inline void memory_job_fini(struct memory_job *j)
{
	for (size_t i = 0; i < j->n; i++) {
		munmap(j->bytes[i], j->regions[i].len_bytes + 1);
		close(j->fds[i]);
	}
	j->n = 0;
}
DEFINE_AUTO_FINI(struct memory_job, memory_job_fini)

/* What chunks_add_from() asks: a region of a job. */
struct question {
	const struct memory_job *job;
	size_t region;
};

static inline int answer(void *arg, uint64_t offset, void *buf, size_t len)
{
	const struct question *q = arg;

	CHECK(offset + len <= q->job->regions[q->region].len_bytes);
	memcpy(buf, q->job->bytes[q->region] + offset, len);
	return 0;
}

static inline int add_known(struct chunks_writer *writer, const struct memory_job *j, size_t i,
			    struct brumate_error *err)
{
	size_t n = (size_t)(j->regions[i].len_bytes / CHUNK_BYTES);
	auto_free struct digest *digests = calloc(n + 1, sizeof(*digests));

	for (size_t k = 0; k < n; k++)
		CHECK(chunk_digest(&digests[k], j->bytes[i] + k * CHUNK_BYTES, CHUNK_BYTES) == 0);
	return chunks_add_known(writer, &j->regions[i], j->fds[i], 0, digests, err);
}

static inline int add_to(struct chunks_writer *writer, const struct memory_job *j, size_t i,
			 struct question *q, struct brumate_error *err)
{
	*q = (struct question){ j, i };
	if (j->from == FROM_FUNCTION)
		return chunks_add_from(writer, &j->regions[i], answer, q, err);
	if (j->from == FROM_MEMORY)
		return chunks_add_bytes(writer, &j->regions[i], j->bytes[i], err);
	if (j->from == FROM_FD_KNOWN && j->regions[i].len_bytes % CHUNK_BYTES == 0)
		return add_known(writer, j, i, err);
	return chunks_add(writer, &j->regions[i], j->fds[i], 0, err);
}

static inline int try_save(const struct memory_job *j, const char *id, const char *created,
			   const struct chunks_options *options, struct chunks_sums *ret,
			   struct brumate_error *err)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = job_manifest("job", created);
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	struct question questions[REGIONS_MAX];
	m.job.uid = options->uid;
	int r = store_begin(&w, dir, id, err);

	if (r == 0)
		r = store_chunks_begin(&writer, &w, options, err);
	for (size_t i = 0; r == 0 && i < j->n; i++)
		r = add_to(writer, j, i, &questions[i], err);
	if (r == 0)
		r = chunks_end(writer, &m, ret, NULL, NULL, err);
	if (r == 0)
		r = store_commit(&w, &m, NULL, NULL, err);
	return r;
}

static inline struct chunks_sums save(const struct memory_job *j, const char *id,
				      const char *created, const struct chunks_options *options)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct chunks_sums sums = { 0 };

	if (try_save(j, id, created, options, &sums, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(!err.code);
	return sums;
}

/* Where a region is loaded to; filled with something else before. */
struct target {
	uint8_t *bytes;
	uint64_t len;
	_Atomic uint64_t got;
};

static inline int put_loaded(void *arg, uint64_t offset, const void *data, size_t len)
{
	struct target *t = arg;

	CHECK(offset % CHUNK_BYTES == 0 && offset + len <= t->len);
	if (data)
		memcpy(t->bytes + offset, data, len);
	else
		memset(t->bytes + offset, 0, len);
	t->got += len;
	return 0;
}

static inline int load_region(struct chunks_reader *reader, const struct memory_job *j, size_t i,
			      struct brumate_error *err)
{
	struct target t = { .len = j->regions[i].len_bytes };
	auto_free uint8_t *bytes = malloc(t.len + 1);

	CHECK(bytes);
	memset(bytes, 0xa5, t.len + 1);
	t.bytes = bytes;
	const struct chunks_place place = { i, put_loaded, &t };
	int r = chunks_load_all(reader, &place, 1, 2, NULL, NULL, err);
	if (r < 0)
		return r;
	CHECK(t.got == t.len && bytes[t.len] == 0xa5);
	CHECK(!memcmp(bytes, j->bytes[i], t.len));
	return 0;
}

/* All regions by one call. */
static inline int load_at_once(struct chunks_reader *reader, const struct memory_job *j,
			       struct brumate_error *err)
{
	auto_free struct target *targets = calloc(j->n + 1, sizeof(*targets));
	auto_free struct chunks_place *places = calloc(j->n + 1, sizeof(*places));

	CHECK(targets && places);
	for (size_t i = 0; i < j->n; i++) {
		targets[i].len = j->regions[i].len_bytes;
		CHECK(!posix_memalign((void **)&targets[i].bytes, 4096, targets[i].len + 1));
		memset(targets[i].bytes, 0xa5, targets[i].len + 1);
		places[i] = (struct chunks_place){ i, put_loaded, &targets[i] };
	}
	int r = chunks_load_all(reader, places, j->n, 2, NULL, NULL, err);
	for (size_t i = 0; i < j->n; i++) {
		CHECK(r < 0 || (targets[i].got == targets[i].len &&
				!memcmp(targets[i].bytes, j->bytes[i], targets[i].len)));
		free(targets[i].bytes);
	}
	return r;
}

/* Opens, loads and compares all. The first failure. */
static inline int load_all(const struct memory_job *j, const char *id, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	int r = store_open(&image, dir, id, err);

	if (r == 0)
		r = store_chunks_open(&reader, &image, err);
	if (r == 0)
		CHECK(image.manifest.memory.n_regions == j->n);
	for (size_t i = 0; r == 0 && i < j->n; i++) {
		CHECK(!memcmp(&image.manifest.memory.regions[i], &j->regions[i],
			      sizeof(j->regions[i])));
		r = load_region(reader, j, i, err);
	}
	return r < 0 ? r : load_at_once(reader, j, err);
}

/* Verified, and loaded as it was. */
static inline void check_saved(const struct memory_job *j, const char *id)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (verify(id, &err) < 0 || load_all(j, id, &err) < 0)
		fprintf(stderr, "%s: %s\n", id, err.text);
	CHECK(!err.code);
}
