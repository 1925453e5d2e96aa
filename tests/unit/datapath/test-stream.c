// SPDX-License-Identifier: MIT
/* Device memory that comes through a ring of the broker's, filled by several threads in any order. */
#include "../broker/pieces.h"

#include <semaphore.h>
#include <stdatomic.h>

#include "datapath/feed.h"
#include "wire/transfer-packets.h"

/* More than the ring holds, and slots do not end where pieces do. */
enum { PIECES = 15, READERS = 3, HELD = 3 };

static uint64_t some(size_t i)
{
	return (i % 5 + 1) * 2 * CHUNK;
}

struct stream {
	struct set *set;
	char *bytes; /* of the host copy that there is not */
	uint64_t total_bytes;
	enum feed_kind zeros; /* what chunks of zeros are */
	struct digest_table *digests;

	struct feed *feed;
	struct transfer_client *client;
	pthread_t thread;
	bool started;
	atomic_size_t next;
	size_t give_up_at; /* item; SIZE_MAX: none */
	bool late;	   /* the readers look whether all is sent only when the stream has ended */
	sem_t ended;
	size_t most_told;
	int r;
};

/* Every fifth chunk, and a piece, is zero. */
static bool is_zero(size_t chunk)
{
	return chunk % 5 == 4 || (chunk >= 40 && chunk < 46);
}

static void make(struct stream *s, struct set *set, enum feed_kind zeros, bool known)
{
	*s = (struct stream){ .set = set, .zeros = zeros, .give_up_at = SIZE_MAX };
	CHECK(sem_init(&s->ended, 0, 0) == 0);
	s->total_bytes = host_copy_offset(set->pieces, set->n);
	s->bytes = malloc(s->total_bytes);
	CHECK(s->bytes && digest_table_new(&s->digests, s->total_bytes) == 0);
	pattern((uint64_t *)s->bytes, s->total_bytes, 7);
	for (size_t i = 0; i < s->total_bytes / CHUNK; i++) {
		char *at = s->bytes + i * CHUNK;

		if (is_zero(i))
			memset(at, 0, CHUNK);
		CHECK(chunk_digest(&digest_table_digests(s->digests)[i], at, CHUNK) == 0);
	}
	digest_table_set_whole(s->digests, known);
}

static void fini(struct stream *s)
{
	digest_table_free(s->digests);
	free(s->bytes);
	set_close_fds(s->set);
}

/* ---- the feeding ---- */

static void fill_item(struct stream *s, size_t item)
{
	memcpy(feed_room(s->feed, item), s->bytes + feed_chunk(s->feed, item) * CHUNK, CHUNK);
	feed_filled(s->feed, item);
}

/* Holds several items, and fills the last of them first. */
static void *run_reader(void *arg)
{
	struct stream *s = arg;
	size_t held[HELD], n = 0;
	bool more = true;

	while (more || n) {
		size_t item = s->next;
		int r = more && item < feed_n(s->feed) && n < HELD
				? feed_admit(s->feed, item, n == 0)
				: 0;

		if (item >= s->give_up_at)
			transfer_client_abort(s->client);
		if (r < 0)
			return NULL;
		if (r == 1 && atomic_compare_exchange_strong(&s->next, &item, item + 1))
			held[n++] = item;
		else if (r == 0 && n)
			fill_item(s, held[--n]);
		more = s->next < feed_n(s->feed);
	}
	return NULL;
}

static void *run_feed(void *arg)
{
	struct stream *s = arg;
	pthread_t readers[READERS];

	for (int i = 0; i < READERS; i++)
		CHECK(pthread_create(&readers[i], NULL, run_reader, s) == 0);
	for (int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	if (s->late)
		sem_wait(&s->ended);
	s->r = feed_finish(s->feed);
	return NULL;
}

static int begin(void *arg, int fd, size_t n_slots, struct brumate_error *err)
{
	struct stream *s = arg;

	CHECK(n_slots * TRANSFER_SLOT_BYTES < s->total_bytes);
	CHECK(feed_begin(s->feed, s->client, fd, n_slots, err) == 0);
	CHECK(pthread_create(&s->thread, NULL, run_feed, s) == 0);
	s->started = true;
	return 0;
}

static void freed(void *arg, uint32_t slots)
{
	struct stream *s = arg;

	feed_freed(s->feed, slots);
}

static void told(void *arg, const int *fds, size_t n_filled)
{
	struct stream *s = arg;

	CHECK(n_filled >= s->most_told && n_filled <= s->set->n);
	s->most_told = n_filled;
}

static int run(struct stream *s, struct brumate_error *err)
{
	const struct transfer_stream how = {
		.digests = s->digests, .begin = begin, .freed = freed, .arg = s
	};
	auto_(transfer_client_close) struct transfer_client *c = session();

	s->client = c;
	s->set->request.digests = true;
	s->set->request.filled = told;
	s->set->request.arg = s;
	s->most_told = 0;
	s->next = 0;
	s->started = false;
	CHECK(feed_new(&s->feed, s->set->pieces, s->set->n) == 0);
	CHECK(feed_n_chunks(s->feed) == s->total_bytes / CHUNK && feed_plan(s->feed) == -ENODATA);
	feed_free(s->feed);
	CHECK(feed_new(&s->feed, s->set->pieces, s->set->n) == 0);
	for (size_t i = 0; i < feed_n_chunks(s->feed); i++)
		feed_chunk_is(s->feed, i, is_zero(i) ? s->zeros : FEED_READ);
	CHECK(feed_plan(s->feed) == 0);
	int r = transfer_client_stream(c, &s->set->request, &how, s->set->fds, &s->set->compared,
				       err);
	feed_stop(s->feed);
	sem_post(&s->ended);
	if (s->started)
		pthread_join(s->thread, NULL);
	feed_free(s->feed);
	return r;
}

static void check_device(const struct stream *s)
{
	for (size_t i = 0; i < s->set->n; i++) {
		uint64_t len = s->set->pieces[i].len_bytes;
		auto_free char *buf = malloc(len);

		piece_read(s->set, i, buf);
		CHECK(!memcmp(buf, s->bytes + host_copy_offset(s->set->pieces, i), len));
	}
}

/* ---- the tests ---- */

static void comes_whole(struct set *set, enum feed_kind zeros, bool known, bool late)
{
	struct brumate_error err;
	struct stream s;

	make(&s, set, zeros, known);
	s.late = late;
	must(run(&s, &err), &err);
	CHECK(s.r == 0 && set->compared == known && s.most_told <= set->n);
	check_device(&s);
	fini(&s);
}

static void what_differs_is_found(struct set *set)
{
	struct brumate_error err;
	struct stream s;

	make(&s, set, FEED_SPARED, true);
	s.bytes[50 * CHUNK + 12345] ^= 1;
	CHECK(run(&s, &err) == -EBADMSG && strstr(err.text, "not those that were saved"));
	fini(&s);
}

static void given_up(struct set *set)
{
	struct brumate_error err;
	struct stream s;

	make(&s, set, FEED_SPARED, true);
	s.give_up_at = 30;
	CHECK(run(&s, &err) == -EPIPE && s.r == -ECANCELED);
	s.give_up_at = SIZE_MAX;
	must(run(&s, &err), &err);
	check_device(&s);
	fini(&s);
}

/* The next attempt is with another broker. */
static void killed(struct set *set)
{
	struct brumate_error err;
	struct stream s;

	make(&s, set, FEED_SPARED, true);
	node_fault("data.filled delay:1\ndata.filled delay:1\ndata.filled kill\n");
	CHECK(run(&s, &err) == -EPIPE);
	broker_client_close(&b);
	broker_start();
	must(run(&s, &err), &err);
	check_device(&s);
	fini(&s);
}

static void fails(struct set *set)
{
	struct brumate_error err;
	struct stream s;

	make(&s, set, FEED_SPARED, true);
	node_fault("data.copy delay:1\ndata.copy error:5\n");
	CHECK(run(&s, &err) == -EIO && s.started);
	node_fault("data.ring error:12\n");
	CHECK(run(&s, &err) == -ENOMEM && !s.started);
	must(run(&s, &err), &err);
	check_device(&s);
	fini(&s);
}

/* What a client may say that does not know better. */
struct wrong {
	struct transfer_client *client;
	unsigned slot, other_slot;
	uint64_t offset, bytes;
};

static int begin_wrong(void *arg, int fd, size_t n_slots, struct brumate_error *err)
{
	const struct wrong *w = arg;

	CHECK(transfer_client_fill(w->client, w->slot, w->offset, w->bytes) == 0);
	if (w->other_slot < TRANSFER_SLOTS_MAX)
		CHECK(transfer_client_fill(w->client, w->other_slot, w->offset, w->bytes) == 0);
	return 0;
}

static void freed_wrong(void *arg, uint32_t slots)
{
}

static void wrong_slots(struct set *set)
{
	const uint64_t total = host_copy_offset(set->pieces, set->n);
	struct wrong wrongs[] = {
		{ .slot = 0, .other_slot = 0, .bytes = CHUNK },	  /* it is not free */
		{ .slot = 31, .other_slot = 99, .bytes = CHUNK }, /* there is none */
		{ .slot = 0, .other_slot = 99, .offset = CHUNK, .bytes = CHUNK }, /* too early */
		{ .slot = 0, .other_slot = 99, .bytes = 4 * CHUNK },		  /* of two GPUs */
		{ .slot = 0, .other_slot = 99, .offset = total, .bytes = CHUNK },
		{ .slot = 0, .other_slot = 99, .bytes = CHUNK / 2 },
		{ .slot = 0, .other_slot = 99, .bytes = 5 * CHUNK },
	};

	for (size_t i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
		auto_(transfer_client_close) struct transfer_client *c = session();
		const struct transfer_stream how = { .begin = begin_wrong,
						     .freed = freed_wrong,
						     .arg = &wrongs[i] };
		struct brumate_error err;

		wrongs[i].client = c;
		set->request.filled = NULL;
		CHECK(transfer_client_stream(c, &set->request, &how, set->fds, NULL, &err) ==
		      -EBADMSG);
	}
}

int main(void)
{
	node_start();
	driver_open();
	node_conf("[Broker]\nPool=64M\n");
	broker_start();
	struct set one = set_make(PIECES, some, 1), two = set_make(PIECES, some, 2);
	set_close_fds(&one);
	set_close_fds(&two);
	comes_whole(&one, FEED_SPARED, true, false);
	comes_whole(&two, FEED_SPARED, true, false);
	comes_whole(&two, FEED_SPARED, true, true);
	comes_whole(&two, FEED_ZERO, false, false);
	what_differs_is_found(&two);
	given_up(&two);
	fails(&one);
	wrong_slots(&two);
	killed(&two);
	set_free(&one);
	set_free(&two);
	end_broker(&b);
	node_end();
	return 0;
}
