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
					  MEMORY_CHUNK_BYTES - 1,
					  MEMORY_CHUNK_BYTES,
					  MEMORY_CHUNK_BYTES + 1,
					  5 * MEMORY_CHUNK_BYTES + 12345 };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		for (int fill = FILL_ZERO; fill <= FILL_MIXED; fill++)
			add_region(j, lengths[i], (enum fill)fill, i * 10);
}

static void test_shapes(enum memory_compress compress, unsigned threads)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct memory_options options = { .compress = compress, .threads = threads };

	add_shapes(&j);
	struct memory_sums sums = save(&j, "shapes", when, &options);
	CHECK(sums.total > 0 && sums.zero > sums.total / 4 && sums.written < sums.total);
	check_saved(&j, "shapes");
	CHECK(store_remove(dir, "shapes", NULL) == 0);
}

/* A job of nothing but zeros, or of no bytes at all. */
static void test_nothing(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct memory_options options = { 0 };

	add_region(&j, 0, FILL_ZERO, 0);
	add_region(&j, 10 * MEMORY_CHUNK_BYTES, FILL_ZERO, 0);
	struct memory_sums sums = save(&j, "nothing", when, &options);
	CHECK(sums.written == 0 && sums.shared == 0 && sums.zero == sums.total);
	check_saved(&j, "nothing");
	CHECK(store_remove(dir, "nothing", NULL) == 0);
}

int main(void)
{
	new_scratch();
	for (int compress = 0; compress < MEMORY_COMPRESS__MAX; compress++)
		for (unsigned threads = 0; threads <= 3; threads += 3)
			test_shapes((enum memory_compress)compress, threads);
	test_nothing();
	remove_scratch();
	return 0;
}
