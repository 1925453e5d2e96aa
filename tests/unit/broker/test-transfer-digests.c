// SPDX-License-Identifier: MIT
/* What need not be copied is not, and what was copied is told apart from what was saved. */
#include "pieces.h"

enum { PIECES = 7 };

static uint64_t few(size_t i)
{
	return (i % 3 + 1) * CHUNK;
}

static int try_update(struct set *set, struct brumate_error *err)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	set->request.digests = true;
	return transfer_client_update(s, &set->request, set->fds, &set->copy, NULL, err);
}

static void test_zero(void)
{
	struct set set = set_make(PIECES, few, 2);
	uint64_t len = set.pieces[2].len_bytes;

	struct transfer_spared spared = full(&set);
	CHECK(spared.zero_bytes == 0 && spared.same_bytes == 0);
	set_check_digests(&set);
	/* Into memory that has held other bytes, and in the middle of a piece. */
	piece_write(&set, 2, 0, len, 0);
	piece_write(&set, 5, 2 * CHUNK, CHUNK, 0);
	spared = full(&set);
	CHECK(spared.zero_bytes == len + CHUNK && spared.same_bytes == 0);
	set_check_digests(&set);
	set_free(&set);
}

static void test_changed(void)
{
	struct set set = set_make(PIECES, few, 2);
	const uint64_t total = host_copy_offset(set.pieces, PIECES);

	full(&set);
	CHECK(update(&set).same_bytes == total);
	piece_write(&set, 5, 2 * CHUNK + CHUNK - 8, 8, 77); /* the last word of a chunk */
	struct transfer_spared spared = update(&set);
	CHECK(spared.same_bytes == total - CHUNK && spared.zero_bytes == 0);
	set_check_digests(&set);
	piece_write(&set, 0, 0, CHUNK, 0);
	spared = update(&set);
	CHECK(spared.same_bytes == total - CHUNK && spared.zero_bytes == CHUNK);
	set_check_digests(&set);
	/* Without digests all is copied, and nothing more is known of it. */
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct brumate_error err;
	set.request.digests = false;
	must(transfer_client_update(s, &set.request, set.fds, &set.copy, &spared, &err), &err);
	CHECK(spared.same_bytes == 0 && !digest_table_is_whole(set.copy.digests));
	CHECK(update(&set).same_bytes == 0);
	set_check_digests(&set);
	set_free(&set);
}

/* A copy that is half up to date is never taken for one that is whole. */
static void test_interrupted(const char *fault, int want)
{
	struct set set = set_make(PIECES, few, 2);
	struct brumate_error err;

	full(&set);
	for (size_t i = 0; i < PIECES; i++)
		piece_write(&set, i, 0, set.pieces[i].len_bytes, 100 + i);
	node_fault(fault);
	CHECK(try_update(&set, &err) == want);
	CHECK(!digest_table_is_whole(set.copy.digests));
	if (want == -EPIPE) {
		broker_client_close(&b);
		broker_start();
	}
	CHECK(update(&set).same_bytes == 0);
	set_check_digests(&set);
	CHECK(update(&set).same_bytes == host_copy_offset(set.pieces, PIECES));
	set_free(&set);
}

/* The table is refused before anything is written: it still tells the truth. */
static void test_refused(void)
{
	struct set set = set_make(2, few, 2), other = set_make(3, few, 2);
	struct brumate_error err;

	full(&set);
	full(&other);
	node_fault("data.digests error:5\n");
	CHECK(try_update(&set, &err) == -EIO && digest_table_is_whole(set.copy.digests));
	struct digest_table *mine = set.copy.digests;
	set.copy.digests = other.copy.digests;
	CHECK(try_update(&set, &err) == -EBADF && strstr(err.text, "digests"));
	set.copy.digests = mine;
	CHECK(update(&set).same_bytes == host_copy_offset(set.pieces, 2));
	CHECK(digest_table_is_whole(other.copy.digests));
	set_free(&set);
	set_free(&other);
}

/* A bit that falls over in host memory is found when it has reached the GPU. */
static void test_damage(void)
{
	struct set set = set_make(PIECES, few, 2);
	auto_(transfer_client_close) struct transfer_client *s = session();
	uint64_t at = host_copy_offset(set.pieces, 2) + 2 * CHUNK + 12345;
	struct brumate_error err;
	int fds[PIECES];

	full(&set);
	must(transfer_client_in(s, &set.request, &set.copy, fds, NULL, &err), &err);
	for (size_t i = 0; i < PIECES; i++)
		close(fds[i]);
	char *map = mmap(NULL, set.copy.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			 set.copy.segments[at / set.copy.segment_bytes], 0);
	CHECK(map != MAP_FAILED);
	map[at % set.copy.segment_bytes] ^= 1;
	CHECK(transfer_client_in(s, &set.request, &set.copy, fds, NULL, &err) == -EBADMSG);
	CHECK(strstr(err.text, "piece 3 of 7") && strstr(err.text, "0x400000 to 0x600000"));
	transfer_client_close(take_ptr(&s));
	map[at % set.copy.segment_bytes] ^= 1;
	munmap(map, set.copy.segment_bytes);
	s = session();
	set_close_fds(&set);
	in(s, &set);
	set_check_device(&set);
	set_free(&set);
}

/* Writes a piece over and over, with something and with what was there. */
struct writer {
	const struct set *set;
	size_t i;
	_Atomic bool stop;
};

static void *write_on(void *arg)
{
	struct writer *w = arg;
	uint64_t bytes = w->set->pieces[w->i].len_bytes;
	CUcontext ctx;

	CHECK(cu.retain(&ctx, w->set->gpus[w->i]) == CUDA_SUCCESS && cu.set(ctx) == CUDA_SUCCESS);
	for (uint64_t seed = 500; !w->stop; seed ^= 1)
		piece_write(w->set, w->i, 0, bytes, seed);
	return NULL;
}

static struct transfer_spared live(struct set *set, bool again)
{
	struct transfer_request request = set->request;
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct brumate_error err;

	request.digests = request.live = true;
	must(again ? transfer_client_update(s, &request, set->fds, &set->copy, &set->spared, &err)
		   : transfer_client_out(s, &request, set->fds, &set->copy, &set->spared, &err),
	     &err);
	CHECK(digest_table_is_whole(set->copy.digests));
	return set->spared;
}

/* The digests of a live copy are of what it holds: brought up to date, it is right. */
static void test_live(void)
{
	struct set set = set_make(PIECES, few, 2);
	const uint64_t total = host_copy_offset(set.pieces, PIECES);
	struct writer writer = { .set = &set, .i = 2 };
	struct brumate_error err;
	pthread_t thread;

	piece_write(&set, 5, 2 * CHUNK, CHUNK, 0);
	CHECK(live(&set, false).zero_bytes == CHUNK);
	set_check_digests(&set); /* nobody wrote */
	CHECK(live(&set, true).same_bytes == total);
	CHECK(pthread_create(&thread, NULL, write_on, &writer) == 0);
	live(&set, true);
	live(&set, true);
	writer.stop = true;
	pthread_join(thread, NULL);
	CHECK(update(&set).same_bytes >= total - set.pieces[2].len_bytes);
	set_check_digests(&set);
	piece_write(&set, 0, 0, CHUNK, 9);
	node_fault("data.live error:5\n");
	auto_(transfer_client_close) struct transfer_client *s = session();
	set.request.live = true;
	CHECK(transfer_client_update(s, &set.request, set.fds, &set.copy, NULL, &err) == -EIO);
	set.request.live = false;
	CHECK(!digest_table_is_whole(set.copy.digests));
	CHECK(update(&set).same_bytes == 0);
	set_check_digests(&set);
	set_free(&set);
}

int main(void)
{
	node_start();
	driver_open();
	broker_start();
	test_zero();
	test_changed();
	test_interrupted("data.copy error:5\n", -EIO);
	test_interrupted("data.copy kill\n", -EPIPE);
	test_refused();
	test_damage();
	test_live();
	end_broker(&b);
	node_end();
	return 0;
}
