// SPDX-License-Identifier: MIT
/* Feeding a stream with chunks that are read in any order. See feed.h. */
#include "datapath/feed.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/array.h"
#include "base/fault.h"
#include "base/huge-pages.h"
#include "wire/transfer-packets.h"

enum { WAKE_SHARE = 4 };

/* Adjacent chunks that fill a slot. Windows get slots in the order of the array; those of one lane are sent in that
 * order, too. */
struct window {
	size_t chunk, n;   /* position in the host copy */
	size_t lane, next; /* next: the following window of the lane; SIZE_MAX: none */
	unsigned slot;
	size_t missing; /* chunks still to be filled; under the lock, like has_slot */
	bool has_slot;
};

/* The windows of one GPU. */
struct feed_lane {
	const char *gpu;
	size_t first, last; /* SIZE_MAX: none */
	size_t to_send;	    /* under the lock */
	size_t at;	    /* a cursor for order_windows() */
};

struct item {
	uint32_t chunk, window;
};

struct feed {
	const struct device_piece *pieces;
	size_t n_pieces, n_chunks;
	uint8_t *kinds; /* enum feed_kind of each chunk */
	struct feed_lane *lanes;
	size_t n_lanes;
	struct window *windows;
	size_t n_windows;
	struct item *items;
	size_t n_items;

	struct transfer_client *client;
	char *ring;
	size_t ring_bytes;

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	uint32_t free_slots;
	size_t n_slots;
	size_t n_placed; /* windows that got a slot so far */
	bool stopped;
};

int feed_new(struct feed **ret, const struct device_piece *pieces, size_t n)
{
	struct feed *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	f->pieces = pieces;
	f->n_pieces = n;
	f->n_chunks = (size_t)(host_copy_offset(pieces, n) / CHUNK_BYTES_MAX);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	f->kinds = calloc(f->n_chunks + 1, sizeof(*f->kinds));
	if (!f->kinds) {
		feed_free(f);
		return -ENOMEM;
	}
	*ret = f;
	return 0;
}

void feed_free(struct feed *f)
{
	if (!f)
		return;
	if (f->ring)
		munmap(f->ring, f->ring_bytes);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->changed);
	free(f->kinds);
	free(f->lanes);
	free(f->windows);
	free(f->items);
	free(f);
}

size_t feed_n_chunks(const struct feed *f)
{
	return f->n_chunks;
}

void feed_chunk_is(struct feed *f, size_t chunk, enum feed_kind kind)
{
	f->kinds[chunk] = (uint8_t)kind;
}

/* ---- the order ---- */

static struct feed_lane *find_lane(struct feed *f, const char *gpu)
{
	for (size_t i = 0; i < f->n_lanes; i++)
		if (!strcmp(f->lanes[i].gpu, gpu))
			return &f->lanes[i];
	struct feed_lane *lanes = array_room(f->lanes, f->n_lanes, sizeof(*lanes));
	if (!lanes)
		return NULL;
	f->lanes = lanes;
	lanes[f->n_lanes] = (struct feed_lane){ .gpu = gpu, .first = SIZE_MAX, .last = SIZE_MAX };
	return &lanes[f->n_lanes++];
}

static int add_window(struct feed *f, struct feed_lane *lane, size_t chunk)
{
	struct window *windows = array_room(f->windows, f->n_windows, sizeof(*windows));

	if (!windows)
		return -ENOMEM;
	f->windows = windows;
	windows[f->n_windows] = (struct window){ .chunk = chunk,
						 .lane = (size_t)(lane - f->lanes),
						 .next = SIZE_MAX };
	if (lane->first == SIZE_MAX)
		lane->first = f->n_windows;
	else
		windows[lane->last].next = f->n_windows;
	lane->last = f->n_windows++;
	return 0;
}

/* Adds a chunk that has to be sent. */
static int add_chunk(struct feed *f, struct feed_lane *lane, size_t chunk)
{
	struct window *w = lane->last == SIZE_MAX ? NULL : &f->windows[lane->last];

	if (!w || w->chunk + w->n != chunk || w->n == TRANSFER_SLOT_BYTES / CHUNK_BYTES_MAX) {
		int r = add_window(f, lane, chunk);

		if (r < 0)
			return r;
		w = &f->windows[lane->last];
	}
	w->n++;
	return 0;
}

/* Makes the windows of each lane, one lane after the other. */
static int make_windows(struct feed *f)
{
	size_t chunk = 0;

	for (size_t i = 0; i < f->n_pieces; i++) {
		struct feed_lane *lane = find_lane(f, f->pieces[i].gpu);
		size_t end = chunk + (size_t)(f->pieces[i].len_bytes / CHUNK_BYTES_MAX);

		if (!lane)
			return -ENOMEM;
		if (f->pieces[i].len_bytes % CHUNK_BYTES_MAX)
			return -ENODATA;
		for (; chunk < end; chunk++) {
			if (f->kinds[chunk] == FEED_NONE)
				return -ENODATA;
			int r = f->kinds[chunk] == FEED_SPARED ? 0 : add_chunk(f, lane, chunk);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* Interleaves the windows of all lanes, so that no GPU waits until another has all of its memory. */
static int order_windows(struct feed *f)
{
	struct window *ordered = calloc(f->n_windows + 1, sizeof(*ordered));
	size_t n = 0;

	if (!ordered)
		return -ENOMEM;
	for (size_t i = 0; i < f->n_lanes; i++) {
		f->lanes[i].at = f->lanes[i].first;
		f->lanes[i].first = f->lanes[i].last = SIZE_MAX;
	}
	while (n < f->n_windows)
		for (size_t i = 0; i < f->n_lanes; i++) {
			struct feed_lane *lane = &f->lanes[i];

			if (lane->at == SIZE_MAX)
				continue;
			ordered[n] = f->windows[lane->at];
			lane->at = ordered[n].next;
			ordered[n].next = SIZE_MAX;
			if (lane->first == SIZE_MAX)
				lane->first = n;
			else
				ordered[lane->last].next = n;
			lane->last = n++;
		}
	free(f->windows);
	f->windows = ordered;
	return 0;
}

static int make_items(struct feed *f)
{
	f->items = calloc(f->n_chunks + 1, sizeof(*f->items));
	if (!f->items)
		return -ENOMEM;
	for (size_t k = 0; k < f->n_windows; k++) {
		struct window *w = &f->windows[k];

		for (size_t i = w->chunk; i < w->chunk + w->n; i++) {
			if (f->kinds[i] != FEED_READ)
				continue;
			w->missing++;
			f->items[f->n_items++] = (struct item){ (uint32_t)i, (uint32_t)k };
		}
		w->missing++; /* one more, until place_window() has written the zeros */
	}
	for (size_t i = 0; i < f->n_lanes; i++)
		f->lanes[i].to_send = f->lanes[i].first;
	return 0;
}

int feed_plan(struct feed *f)
{
	int r = make_windows(f);

	if (r == 0)
		r = order_windows(f);
	return r < 0 ? r : make_items(f);
}

size_t feed_n(const struct feed *f)
{
	return f->n_items;
}

size_t feed_chunk(const struct feed *f, size_t item)
{
	return f->items[item].chunk;
}

/* ---- slots ---- */

int feed_begin(struct feed *f, struct transfer_client *c, int fd, size_t n_slots,
	       struct brumate_error *err)
{
	size_t bytes = n_slots * TRANSFER_SLOT_BYTES;
	char *ring = huge_pages_map(fd, 0, bytes, PROT_READ | PROT_WRITE);

	if (!ring)
		return brumate_fail(err, errno, "ring: %m");
	/* The init of a pid namespace may be forked now. It lives as long as its job, and would keep the memory. */
	madvise(ring, bytes, MADV_DONTFORK);
	pthread_mutex_lock(&f->lock);
	f->ring = ring;
	f->ring_bytes = bytes;
	f->client = c;
	f->n_slots = n_slots;
	f->free_slots = n_slots < 32 ? (1u << n_slots) - 1 : UINT32_MAX;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

/* Readers that are faster than the GPU wait here. They are woken only once several slots are free: until then enough
 * copies are under way, and those complete without the readers. */
void feed_freed(struct feed *f, uint32_t slots)
{
	pthread_mutex_lock(&f->lock);
	f->free_slots |= slots;
	if ((size_t)__builtin_popcount(f->free_slots) >= f->n_slots / WAKE_SHARE)
		pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

void feed_stop(struct feed *f)
{
	pthread_mutex_lock(&f->lock);
	f->stopped = true;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

static char *room_of(const struct feed *f, const struct window *w, size_t chunk)
{
	return f->ring + w->slot * TRANSFER_SLOT_BYTES + (chunk - w->chunk) * CHUNK_BYTES_MAX;
}

/* Under the lock: sends the complete windows of the lane, in their order. */
static void send_whole(struct feed *f, struct feed_lane *lane)
{
	while (!f->stopped && lane->to_send != SIZE_MAX) {
		const struct window *w = &f->windows[lane->to_send];

		if (!w->has_slot || w->missing)
			return;
		if (transfer_client_fill(f->client, w->slot, w->chunk * (uint64_t)CHUNK_BYTES_MAX,
					 w->n * (uint64_t)CHUNK_BYTES_MAX) < 0) {
			f->stopped = true; /* the cause comes with the end of the stream */
			pthread_cond_broadcast(&f->changed);
			return;
		}
		lane->to_send = w->next;
	}
}

/* Counts down the window's missing chunks by one. */
static int fill(struct feed *f, struct window *w)
{
	pthread_mutex_lock(&f->lock);
	if (--w->missing == 0)
		send_whole(f, &f->lanes[w->lane]);
	int r = f->stopped ? -ECANCELED : 0;
	pthread_mutex_unlock(&f->lock);
	return r;
}

/* Gives the next window a slot. The caller holds the lock, which is released in between. */
static void place_window(struct feed *f)
{
	struct window *w = &f->windows[f->n_placed++];

	w->slot = (unsigned)__builtin_ctz(f->free_slots);
	f->free_slots &= ~(1u << w->slot);
	w->has_slot = true;
	pthread_mutex_unlock(&f->lock);
	for (size_t i = w->chunk; i < w->chunk + w->n; i++)
		if (f->kinds[i] == FEED_ZERO)
			memset(room_of(f, w, i), 0, CHUNK_BYTES_MAX);
	fill(f, w);
	pthread_mutex_lock(&f->lock);
}

/* Gives slots to all windows before @end. Returns 1, 0 or -ECANCELED. */
static int place(struct feed *f, size_t end, bool block)
{
	int r = 1;

	pthread_mutex_lock(&f->lock);
	while (r == 1 && f->n_placed < end) {
		while (block && !f->stopped && !f->free_slots && f->n_placed < end)
			pthread_cond_wait(&f->changed, &f->lock);
		if (f->stopped)
			break;
		if (f->n_placed < end && !f->free_slots)
			r = 0;
		else if (f->n_placed < end)
			place_window(f);
	}
	if (f->stopped)
		r = -ECANCELED;
	pthread_mutex_unlock(&f->lock);
	return r;
}

int feed_admit(struct feed *f, size_t item, bool block)
{
	return place(f, f->items[item].window + 1, block);
}

void *feed_room(struct feed *f, size_t item)
{
	const struct item *i = &f->items[item];

	return room_of(f, &f->windows[i->window], i->chunk);
}

int feed_filled(struct feed *f, size_t item)
{
	if (fault_point("data.feed") < 0) {
		feed_stop(f);
		return -ECANCELED;
	}
	return fill(f, &f->windows[f->items[item].window]);
}

static bool is_all_sent(struct feed *f)
{
	bool all = true;

	pthread_mutex_lock(&f->lock);
	for (size_t i = 0; i < f->n_lanes; i++)
		all = all && f->lanes[i].to_send == SIZE_MAX;
	pthread_mutex_unlock(&f->lock);
	return all;
}

/* After the last slot was sent, the stream may end and stop the feed before place() returns. Nothing is missing then. */
int feed_finish(struct feed *f)
{
	place(f, f->n_windows, true);
	return is_all_sent(f) ? 0 : -ECANCELED;
}
