// SPDX-License-Identifier: MIT
/* Memory in chunks: what is saved comes back, whatever its shape, and zeros cost nothing. */
#include "memory-job.h"

static const char when[] = "2026-01-01T00:00:00.000Z";

static void add_shapes(struct memory_job *j)
{
	static const size_t lengths[] = { 0,
					  1,
					  4095,
					  4096,
					  CHUNK_BYTES - 1,
					  CHUNK_BYTES,
					  CHUNK_BYTES + 1,
					  5 * CHUNK_BYTES + 12345 };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		for (int fill = FILL_ZERO; fill <= FILL_MIXED; fill++)
			add_region(j, lengths[i], (enum fill)fill, i * 10);
}

static void test_shapes(enum chunks_compress compress, unsigned threads, enum saved_from from)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct chunks_options options = { .compress = compress, .threads = threads };

	j.from = from;
	add_shapes(&j);
	struct chunks_sums sums = save(&j, "shapes", when, &options);
	CHECK(sums.total > 0 && sums.zero > sums.total / 4 && sums.written < sums.total);
	check_saved(&j, "shapes");
	CHECK(store_remove(dir, "shapes", NULL) == 0);
}

/* Digests that others computed are believed until it is loaded. */
static void test_wrong_digest(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = job_manifest("job", when);
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct digest digests[2] = { { { 1 } }, { { 2 } } };
	struct chunks_sums sums;

	add_region(&j, 2 * CHUNK_BYTES, FILL_RANDOM, 5);
	CHECK(store_begin(&w, dir, "wrong", NULL) == 0);
	CHECK(store_chunks_begin(&writer, &w, &(struct chunks_options){ 0 }, NULL) == 0);
	CHECK(chunks_add_known(writer, &j.regions[0], j.fds[0], 0, digests, NULL) == 0);
	CHECK(chunks_end(writer, &m, &sums, NULL, NULL, NULL) == 0);
	CHECK(store_commit(&w, &m, NULL, NULL, NULL) == 0);

	CHECK(store_open(&image, dir, "wrong", NULL) == 0);
	CHECK(store_chunks_open(&reader, &image, NULL) == 0);
	CHECK(load_region(reader, &j, 0, &err) == -EBADMSG);
	CHECK(strstr(err.text, "its digest does not match"));
	CHECK(verify("wrong", &err) == -EBADMSG);
	CHECK(store_remove(dir, "wrong", NULL) == 0);

	j.regions[0].len_bytes -= 4096;
	chunks_writer_free(take_ptr(&writer));
	store_abort(&w); /* which was committed: nothing of it goes */
	CHECK(store_begin(&w, dir, "half", NULL) == 0);
	CHECK(store_chunks_begin(&writer, &w, &(struct chunks_options){ 0 }, NULL) == 0);
	CHECK(chunks_add_known(writer, &j.regions[0], j.fds[0], 0, digests, NULL) == -EINVAL);
}

/* A job of nothing but zeros, or of no bytes at all. */
static void test_nothing(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct chunks_options options = { 0 };

	add_region(&j, 0, FILL_ZERO, 0);
	add_region(&j, 10 * CHUNK_BYTES, FILL_ZERO, 0);
	struct chunks_sums sums = save(&j, "nothing", when, &options);
	CHECK(sums.written == 0 && sums.shared == 0 && sums.zero == sums.total);
	check_saved(&j, "nothing");
	CHECK(store_remove(dir, "nothing", NULL) == 0);
}

/* The digests that the checkpoint tells are those of the bytes. */
static void test_digests(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	struct chunks_options options = { 0 };
	struct digest digests[4], want;

	add_region(&j, 4 * CHUNK_BYTES, FILL_MIXED, 1);
	add_region(&j, 3 * CHUNK_BYTES, FILL_ZERO, 0);
	add_region(&j, CHUNK_BYTES + 1, FILL_RANDOM, 2);
	save(&j, "digests", when, &options);
	CHECK(store_open(&image, dir, "digests", NULL) == 0);
	CHECK(store_chunks_open(&reader, &image, NULL) == 0);
	for (size_t i = 0; i < 2; i++) {
		CHECK(chunks_digests(reader, i, digests, 4 - i) == 1);
		for (size_t k = 0; k < 4 - i; k++) {
			CHECK(chunk_digest(&want, j.bytes[i] + k * CHUNK_BYTES, CHUNK_BYTES) == 0);
			CHECK(!memcmp(&digests[k], &want, sizeof(want)));
		}
	}
	CHECK(chunks_digests(reader, 0, digests, 3) == -EINVAL);
	CHECK(chunks_digests(reader, 2, digests, 2) == -EINVAL);
	CHECK(chunks_digests(reader, 3, digests, 1) == -EINVAL);
	CHECK(store_remove(dir, "digests", NULL) == 0);
}

static int refuse(void *arg, uint64_t offset, void *buf, size_t len)
{
	return offset ? -ESRCH : 0;
}

/* A process that goes away while its memory is saved. */
static void test_unreadable(void)
{
	auto_(store_abort) struct store_writer w = STORE_WRITER_EMPTY;
	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	auto_(chunks_writer_free) struct chunks_writer *writer = NULL;
	struct manifest_region region = { .pid = 1, .len_bytes = 3 * CHUNK_BYTES };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct chunks_sums sums;

	CHECK(store_begin(&w, dir, "unreadable", &err) == 0);
	CHECK(store_chunks_begin(&writer, &w, &(struct chunks_options){ 0 }, &err) == 0);
	CHECK(chunks_add_from(writer, &region, refuse, NULL, &err) == 0);
	CHECK(chunks_end(writer, &m, &sums, NULL, NULL, &err) == -ESRCH);
	CHECK(strstr(err.text, "checkpoint unreadable: memory cannot be read: No such process"));
}

int main(void)
{
	new_scratch();
	for (int compress = 0; compress < CHUNKS_COMPRESS__MAX; compress++)
		for (int from = 0; from < FROM__MAX; from++)
			test_shapes((enum chunks_compress)compress, from % 2 ? 3 : 0,
				    (enum saved_from)from);
	test_wrong_digest();
	test_unreadable();
	test_nothing();
	test_digests();
	remove_scratch();
	return 0;
}
