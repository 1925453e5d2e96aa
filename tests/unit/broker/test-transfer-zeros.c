// SPDX-License-Identifier: MIT
/* Memory that is all zero costs no pages, wherever it lies, and whatever the pool's memory held before. */
#include "pieces.h"
#include "process/hugetlb.h"
#include "sanitized.h"

#include <sys/stat.h>

#define POOL "[Broker]\nPool=1G\n"

enum { PIECES = 12 };

/* Where every access is looked at, what differs only in size is left out. */
enum { ALL_SIZES = !SANITIZED_THREADS };

static uint64_t seed = 1;

static uint64_t any(uint64_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % below;
}

static uint64_t uneven(size_t i)
{
	return (i % 5 + 1) * CHUNK;
}

static uint64_t longer(size_t i)
{
	return (i % 5 + 9) * CHUNK;
}

static uint64_t pages(const struct host_copy *c)
{
	uint64_t bytes = 0;
	struct stat st;

	for (size_t i = 0; i < host_copy_n_segments(c); i++) {
		CHECK(fstat(c->segments[i], &st) == 0);
		bytes += (uint64_t)st.st_blocks * 512;
	}
	return bytes;
}

/* All of it zero, but for runs of a few chunks. */
static uint64_t write_runs(const struct set *s, size_t n_runs)
{
	uint64_t written = 0;

	for (size_t i = 0; i < s->n; i++)
		piece_write(s, i, 0, s->pieces[i].len_bytes, 0);
	for (size_t k = 0; k < n_runs; k++) {
		size_t i = any(s->n);
		uint64_t chunks = s->pieces[i].len_bytes / CHUNK, first = any(chunks);
		uint64_t n = 1 + any(chunks - first);

		piece_write(s, i, first * CHUNK, n * CHUNK, 1000 + k);
		written += n * CHUNK;
	}
	return written;
}

/* The device memory of @s becomes what it was; its fds are others. */
static void take_away_and_back(struct set *s)
{
	auto_(transfer_client_close) struct transfer_client *client = session();

	set_close_fds(s);
	s->request.digests = true;
	in(client, s);
}

/* Segments that had bytes everywhere go back to the pool. */
static void warm(uint64_t (*bytes)(size_t i))
{
	struct set set = set_make(PIECES, bytes, 1);

	full(&set);
	set_free(&set);
}

/* Whatever of it is zero, on segments that held other bytes, and on fresh ones. */
static void test_runs(uint64_t (*bytes)(size_t i), int n_gpus, size_t n_rounds)
{
	for (size_t round = 0; round < n_rounds; round++) {
		if (round % 2 == 0)
			warm(bytes);
		struct set set = set_make(PIECES, bytes, n_gpus);
		uint64_t written = write_runs(&set, round),
			 total = host_copy_offset(set.pieces, PIECES);

		struct transfer_spared spared = full(&set);
		CHECK(spared.zero_bytes >= total - written);
		CHECK(round || pages(&set.copy) == 0);
		CHECK(round > 1 || pages(&set.copy) < total);
		set_check_digests(&set);
		take_away_and_back(&set);
		set_check_digests(&set);
		set_free(&set);
	}
}

/* A base whose zeros have no pages gets some where it has to, and what becomes zero is. */
static void test_update(void)
{
	struct set set = set_make(PIECES, uneven, 2);
	const uint64_t total = host_copy_offset(set.pieces, PIECES);

	write_runs(&set, 1);
	full(&set);
	for (size_t round = 0; round < 2; round++) {
		write_runs(&set, 2);
		update(&set);
		set_check_digests(&set);
		CHECK(update(&set).same_bytes == total);
	}
	take_away_and_back(&set);
	set_check_digests(&set);
	set_free(&set);
}

static void test_live(void)
{
	warm(longer);
	for (size_t round = 0; round < 2; round++) {
		struct set set = set_make(PIECES, longer, 2);
		auto_(transfer_client_close) struct transfer_client *s = session();

		set.request.digests = set.request.live = true;
		write_runs(&set, 1 + round);
		out(s, &set);
		CHECK(pages(&set.copy) < host_copy_offset(set.pieces, PIECES));
		set_check_digests(&set);
		set_free(&set);
	}
}

static void restart(const char *conf)
{
	end_broker(&b);
	node_conf(conf);
	broker_start();
}

/* Another broker, which computes no digests, or has no pool: it takes the copy for what it is too. */
static void test_other_broker(const char *conf)
{
	struct set set = set_make(PIECES, uneven, 1);

	restart(POOL);
	warm(uneven);
	write_runs(&set, 2);
	full(&set);
	restart(conf);
	set_close_fds(&set);
	auto_(transfer_client_close) struct transfer_client *s = session();
	set.request.digests = false;
	in(s, &set);
	set_check_digests(&set);
	transfer_client_close(take_ptr(&s));
	take_away_and_back(&set);
	set_check_digests(&set);
	set_free(&set);
}

/* What is on a disk has no zeros that could be left out, but those that come back are not read. */
static void test_spilled(void)
{
	struct set set = set_make(PIECES, uneven, 1);
	char *before[PIECES];

	restart("[Broker]\nPool=64M\nMemory=16M\n");
	write_runs(&set, 3);
	for (size_t i = 0; i < 5; i++) /* 30 MiB: more than Memory= */
		piece_write(&set, i, 0, set.pieces[i].len_bytes, 2000 + i);
	for (size_t i = 0; i < PIECES; i++) {
		before[i] = malloc(set.pieces[i].len_bytes);
		piece_read(&set, i, before[i]);
	}
	full(&set);
	CHECK(host_copy_is_spilled(&set.copy) || pool_bytes("disk_bytes") == 0);
	take_away_and_back(&set);
	for (size_t i = 0; i < PIECES; i++) {
		auto_free char *after = malloc(set.pieces[i].len_bytes);

		piece_read(&set, i, after);
		CHECK(memcmp(before[i], after, set.pieces[i].len_bytes) == 0);
		free(before[i]);
	}
	set_free(&set);
}

/* Damage where the copy has no pages is not read; where it has some it is found. */
static void test_damage(void)
{
	struct set set = set_make(2, longer, 1);
	struct brumate_error err;
	int fds[2];

	piece_write(&set, 0, 0, set.pieces[0].len_bytes, 0);
	full(&set);
	auto_(transfer_client_close) struct transfer_client *s = session();
	uint64_t at = host_copy_offset(set.pieces, 1) + 4711;
	CHECK(pwrite(set.copy.segments[at / set.copy.segment_bytes], "x", 1,
		     (off_t)(at % set.copy.segment_bytes)) == 1);
	CHECK(transfer_client_in(s, &set.request, &set.copy, fds, NULL, &err) == -EBADMSG);
	set_free(&set);
}

int main(void)
{
	if (hugetlb_free_bytes(2 << 20))
		SKIP("huge pages are set aside here: the pool's segments are of those, and have "
		     "them all at once");
	node_start();
	driver_open();
	node_conf(POOL);
	broker_start();
	test_runs(uneven, 2, ALL_SIZES ? 4 : 2); /* less than 256 MiB: segments of 8 MiB */
	if (ALL_SIZES) {
		test_runs(longer, 1, 2); /* more: of 64 MiB */
		test_live();
		test_other_broker("[Broker]\nPool=64M\nMemory=1G\n");
	}
	test_update();
	test_other_broker("[Broker]\nDigests=no\n");
	test_spilled();
	test_damage();
	end_broker(&b);
	node_end();
	return 0;
}
