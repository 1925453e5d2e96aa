// SPDX-License-Identifier: MIT
/*
 * Checkpoints that share chunks: what did not change is not written again, each is complete by itself,
 * and removing any of them leaves the others whole.
 */
#include "memory-job.h"

enum { CHUNKS = 100 };

static const struct chunks_options plain = { .job = "id-job", .compress = CHUNKS_COMPRESS_NONE };

static const char *stamp(int second)
{
	static char text[2][32];
	char *ret = text[second % 2];

	snprintf(ret, sizeof(text[0]), "2026-01-01T00:00:%02d.000Z", second % 60);
	return ret;
}

/* 2 % changed: that much is written, and nothing of the rest. */
static void test_little_changed(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };

	add_region(&j, CHUNKS * CHUNK_BYTES, FILL_RANDOM, 1);
	struct chunks_sums first = save(&j, "first", stamp(1), &plain);
	CHECK(first.written == first.total && first.shared == 0);
	fill_random(j.bytes[0] + 7 * CHUNK_BYTES, 100, 2);
	fill_random(j.bytes[0] + 50 * CHUNK_BYTES, 100, 3);
	struct chunks_sums second = save(&j, "second", stamp(2), &plain);
	CHECK(second.written == 2 * CHUNK_BYTES);
	CHECK(second.shared == 98ull * CHUNK_BYTES);
	check_saved(&j, "second");
	CHECK(store_remove(dir, "first", NULL) == 0);
	check_saved(&j, "second");
	CHECK(store_remove(dir, "second", NULL) == 0);
}

/* Damage of a shared pack is told of with all who have it, and is theirs too. */
static void test_shared_damage(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	uint8_t byte;

	add_region(&j, 3 * CHUNK_BYTES, FILL_RANDOM, 11);
	save(&j, "one", stamp(1), &plain);
	save(&j, "two", stamp(2), &plain);
	save(&j, "three", stamp(3), &plain);
	CHECK(store_open(&i, dir, "two", NULL) == 0);
	auto_close int fd = openat(i.dir_fd, i.manifest.memory.packs[0].path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && pread(fd, &byte, 1, 5) == 1);
	byte ^= 0x10;
	CHECK(pwrite(fd, &byte, 1, 5) == 1);
	CHECK(verify("two", &err) == -EBADMSG && strstr(err.text, "; shared with one, three"));
	CHECK(verify("one", &err) == -EBADMSG && verify("three", &err) == -EBADMSG);
	store_image_fini(&i);
	CHECK(store_remove(dir, "one", NULL) == 0 && store_remove(dir, "three", NULL) == 0);
	CHECK(verify("two", &err) == -EBADMSG && !strstr(err.text, "shared with"));
	CHECK(store_remove(dir, "two", NULL) == 0);
}

/* Within one checkpoint, and among jobs. */
static void test_replicas(void)
{
	auto_(memory_job_fini) struct memory_job one = { 0 }, ten = { 0 };

	add_region(&one, 9 * CHUNK_BYTES + 17, FILL_RANDOM, 4);
	for (int i = 0; i < 10; i++)
		add_region(&ten, 9 * CHUNK_BYTES + 17, FILL_RANDOM, 4);
	struct chunks_sums alone = save(&one, "one", stamp(1), &plain);
	struct chunks_sums all =
		save(&ten, "ten-alone", stamp(2), &(struct chunks_options){ .no_sharing = true });
	CHECK(all.written == alone.written && all.shared == 9 * alone.total);
	struct chunks_sums more = save(&ten, "ten", stamp(3), &(struct chunks_options){ 0 });
	CHECK(more.written == 0);
	check_saved(&ten, "ten");
	check_saved(&ten, "ten-alone");
	CHECK(store_remove(dir, "one", NULL) == 0 && store_remove(dir, "ten-alone", NULL) == 0);
	check_saved(&ten, "ten");
	CHECK(store_remove(dir, "ten", NULL) == 0);
}

/* Nothing of another user's is taken over. */
static void test_users(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct chunks_options other = { .uid = 12345 };

	add_region(&j, 2 * CHUNK_BYTES, FILL_RANDOM, 5);
	save(&j, "mine", stamp(1), &plain);
	CHECK(save(&j, "theirs", stamp(2), &other).shared == 0);
	CHECK(store_remove(dir, "mine", NULL) == 0 && store_remove(dir, "theirs", NULL) == 0);
}

/* A pack of which less than a quarter is used is not dragged along. */
static void test_dead_packs(void)
{
	auto_(memory_job_fini) struct memory_job j = { 0 };
	struct chunks_options options = { .threads = 1 };

	add_region(&j, 20 * CHUNK_BYTES, FILL_RANDOM, 6);
	save(&j, "old", stamp(1), &options);
	fill_random(j.bytes[0], 17 * CHUNK_BYTES, 7);
	struct chunks_sums little = save(&j, "little", stamp(2), &options);
	CHECK(little.written == little.total && little.shared == 0);
	check_saved(&j, "little");
	CHECK(store_remove(dir, "little", NULL) == 0);

	fill_random(j.bytes[0], 15 * CHUNK_BYTES, 6); /* the first 15 as in "old" */
	fill_random(j.bytes[0] + 5 * CHUNK_BYTES, 10 * CHUNK_BYTES, 8);
	struct chunks_sums enough = save(&j, "enough", stamp(3), &options);
	CHECK(enough.shared == 8ull * CHUNK_BYTES);
	CHECK(enough.written == 12ull * CHUNK_BYTES);
	CHECK(store_remove(dir, "old", NULL) == 0);
	check_saved(&j, "enough");
	CHECK(store_remove(dir, "enough", NULL) == 0);
}

/* A chain of checkpoints, each a little different: whichever subset is removed, the others stay. */
static void test_subsets(void)
{
	enum { CHAIN = 3 };
	struct memory_job j[CHAIN] = { 0 };
	char id[32];

	for (unsigned subset = 1; subset < 1u << CHAIN; subset++) {
		for (int i = 0; i < CHAIN; i++) {
			memory_job_fini(&j[i]);
			add_region(&j[i], 6 * CHUNK_BYTES + 99, FILL_RANDOM, 9);
			for (int k = 0; k <= i; k++)
				j[i].bytes[0][k * CHUNK_BYTES] ^= 1;
			snprintf(id, sizeof(id), "link-%d", i);
			save(&j[i], id, stamp(i), &plain);
		}
		for (int i = 0; i < CHAIN; i++) {
			snprintf(id, sizeof(id), "link-%d", i);
			if (subset & 1u << i)
				CHECK(store_remove(dir, id, NULL) == 0);
		}
		for (int i = 0; i < CHAIN; i++) {
			snprintf(id, sizeof(id), "link-%d", i);
			if (subset & 1u << i)
				continue;
			check_saved(&j[i], id);
			CHECK(store_remove(dir, id, NULL) == 0);
		}
	}
	for (int i = 0; i < CHAIN; i++)
		memory_job_fini(&j[i]);
}

int main(void)
{
	new_scratch();
	test_little_changed();
	test_shared_damage();
	test_replicas();
	test_users();
	test_dead_packs();
	test_subsets();
	remove_scratch();
	return 0;
}
