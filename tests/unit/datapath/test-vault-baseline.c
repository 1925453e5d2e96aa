// SPDX-License-Identifier: MIT
/* A host copy kept while its job runs is used for the same pieces alone, and only while its digests are
 * whole. The job is this process. */
#include "datapath/vault.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"

enum { PIECES = 3, SEGMENTS = 2 };
#define CHUNK (2ull << 20)

static char dir[] = "/tmp/brumate-kept-XXXXXX";
static const struct target_owner test_owner;

static struct vault_piece *make_pieces(void)
{
	struct vault_piece *pieces = calloc(PIECES, sizeof(*pieces));

	CHECK(pieces);
	for (unsigned i = 0; i < PIECES; i++) {
		pieces[i] = (struct vault_piece){ .process = { 7, 8 },
						  .id = i + 1,
						  .va = 0x7f0000000000ull + i * CHUNK,
						  .len_bytes = CHUNK,
						  .fd = -1 };
		strcpy(pieces[i].gpu, "GPU-1");
	}
	return pieces;
}

/* As after a suspend. */
static struct vault suspended(bool whole)
{
	struct vault h = VAULT_EMPTY;

	h.pieces = make_pieces();
	h.n_pieces = PIECES;
	h.copy.total_bytes = PIECES * CHUNK;
	h.copy.segment_bytes = 2 * CHUNK;
	h.copy.segments = calloc(SEGMENTS, sizeof(int));
	CHECK(h.copy.segments);
	for (; h.copy.n_segments < SEGMENTS; h.copy.n_segments++) {
		int fd = memfd_create("segment", MFD_CLOEXEC);

		CHECK(fd >= 0 && ftruncate(fd, 2 * CHUNK) == 0);
		h.copy.segments[h.copy.n_segments] = fd;
	}
	CHECK(digest_table_new(&h.copy.digests, h.copy.total_bytes) == 0);
	digest_table_set_whole(h.copy.digests, whole);
	h.copied = true;
	return h;
}

/* As after a resume, and when the job is parked again with the same pieces. */
static struct vault parked_again(void)
{
	struct target owner = { .owned_by = &test_owner, .id = "0123abcd", .dir = dir };
	struct vault h = suspended(true);

	CHECK(vault_make_baseline(&h, NULL));
	CHECK(!h.copied && !h.copy.n_segments && vault_baseline_bytes(&h) == PIECES * CHUNK);
	vault_release(&h, &owner);
	CHECK(!h.n_pieces && vault_baseline_bytes(&h) == PIECES * CHUNK);
	h.pieces = make_pieces();
	h.n_pieces = PIECES;
	return h;
}

static void test_same(void)
{
	struct vault h = parked_again();
	struct host_copy base = HOST_COPY_EMPTY;

	CHECK(vault_take_baseline(&h, &base) == 1);
	CHECK(base.n_segments == SEGMENTS && digest_table_is_whole(base.digests));
	CHECK(!vault_baseline_bytes(&h) && vault_take_baseline(&h, &base) == 0);
	vault_give_up_baseline(&h, &base);
	CHECK(!base.n_segments);
	vault_fini(&h);
}

static void expect_dropped(struct vault *h)
{
	struct host_copy base = HOST_COPY_EMPTY;

	CHECK(vault_take_baseline(h, &base) == 0 && !base.n_segments && !vault_baseline_bytes(h));
	vault_fini(h);
}

static void test_others(void)
{
	struct vault h = parked_again();
	h.pieces[1].id = 9;
	expect_dropped(&h);
	h = parked_again();
	h.pieces[2].len_bytes *= 2;
	expect_dropped(&h);
	h = parked_again();
	h.pieces[0].process.start_ticks++; /* a pid used again */
	expect_dropped(&h);
	h = parked_again();
	h.n_pieces--;
	expect_dropped(&h);
	h = parked_again();
	digest_table_set_whole(h.baseline.copy.digests, false);
	expect_dropped(&h);
}

static void test_not_kept(void)
{
	struct vault h = suspended(false);

	CHECK(!vault_make_baseline(&h, NULL) && h.copied);
	digest_table_free(h.copy.digests);
	h.copy.digests = NULL;
	CHECK(!vault_make_baseline(&h, NULL) && h.copied);
	vault_fini(&h);
}

/* Others get fds of their own of the same memory. */
static void test_shared(void)
{
	struct vault h = suspended(true);
	struct host_copy saved = HOST_COPY_EMPTY;
	int first = h.copy.segments[0];

	CHECK(pwrite(first, "x", 1, 5) == 1 && vault_make_baseline(&h, &saved));
	CHECK(saved.n_segments == SEGMENTS && saved.segments[0] != first && !saved.digests);
	vault_drop_baseline(&h);
	char c = 0;
	CHECK(pread(saved.segments[0], &c, 1, 5) == 1 && c == 'x');
	host_copy_fini(&saved);
	vault_fini(&h);
}

/* The table tells the next shim what is kept. */
static void test_table(void)
{
	struct target owner = { .owned_by = &test_owner, .id = "0123abcd", .dir = dir };
	struct vault h = suspended(true), again = VAULT_EMPTY;
	struct brumate_error err;
	size_t segments = 0;

	CHECK(vault_make_baseline(&h, NULL));
	vault_release(&h, &owner);
	auto_free char *text = vault_encode(&h);
	CHECK(text && vault_decode(&again, &segments, text, strlen(text), &err) == 0);
	CHECK(again.of_running && segments == SEGMENTS && again.n_pieces == PIECES);
	vault_fini(&again);
	vault_fini(&h);
}

int main(void)
{
	CHECK(mkdtemp(dir));
	test_same();
	test_others();
	test_not_kept();
	test_shared();
	test_table();
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}
