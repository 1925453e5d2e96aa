// SPDX-License-Identifier: MIT
/*
 * Reserved addresses for our own mappings. A range that is released is kept for the next mapping of the same length,
 * which saves two calls of the driver. If the memory that was mapped there is small, it is kept as well, which saves
 * two more. Nothing is mapped there meanwhile: use after free faults as ever, and questions about such an address get
 * the answer for an unused one. What the program wants to reserve itself comes first, and so does memory that it wants
 * elsewhere.
 */
#include <stdlib.h>

#include "interpose/core/backend.h"
#include "interpose/core/memory.h"

/*
 * A program may free some hundreds of blocks before it allocates as many again; to look through so many for a length is
 * cheap compared with two calls of the driver. 16 GiB are next to nothing of the 128 TiB of addresses that a process
 * has. What is longer than 1 GiB has many pieces to be filled with, where two calls do not count; and a few such ranges
 * would drive all others out.
 */
#define SPARES_MAX	 256
#define SPARE_BYTES_MAX	 (16ull << 30)
#define SPARE_LENGTH_MAX (1ull << 30)

/* Memory is kept where it takes the driver no longer to make than to map, and of each GPU only a part that is not missed. */
#define KEPT_LENGTH_MAX (32ull << 20)
#define KEPT_PART	256

enum { NO_DEVICE = -1 };

/* The device of its memory. All that is kept of a device was made alike: see addresses_keep(). */
static int spare_device(const struct spare *spare)
{
	return spare->piece ? spare->piece->kind.device : NO_DEVICE;
}

/* With the lock: the memory of @spare, if any, is not kept any more. */
static void uncount_memory(const struct spare *spare)
{
	if (spare->piece)
		memory.devices[spare->piece->kind.device].kept_bytes -= spare->piece->bytes;
}

/* With the lock: out of the tables, with its memory. */
static struct spare *take_spare_at(struct spare **at)
{
	struct spare *spare = *at;

	*at = spare->next;
	tree_remove(&memory.spares, &spare->node);
	memory.n_spares--;
	memory.spare_bytes -= spare->node.bytes;
	uncount_memory(spare);
	return spare;
}

static bool free_spares(struct spare *gone)
{
	bool any = gone;

	while (gone) {
		struct spare *next = gone->next;

		backend_unreserve(gone->node.start, gone->node.bytes);
		if (gone->piece)
			piece_unpin(gone->piece);
		free(gone);
		gone = next;
	}
	return any;
}

bool addresses_drop(uint64_t va, size_t bytes)
{
	struct spare *gone = NULL;

	memory_lock();
	for (struct spare **at = &memory.newest_spare; *at;) {
		const struct node *node = &(*at)->node;

		if (node->start >= va ? node->start - va >= bytes
				      : va - node->start >= node->bytes) {
			at = &(*at)->next;
			continue;
		}

		struct spare *spare = take_spare_at(at);

		spare->next = gone;
		gone = spare;
	}
	memory_unlock();
	return free_spares(gone);
}

bool addresses_drop_all(void)
{
	return addresses_drop(0, SIZE_MAX);
}

/* With the lock: the memory of a device that was released first, where more than @most_bytes is kept; NULL. */
static struct piece *take_oldest_memory(int ordinal, uint64_t most_bytes)
{
	struct spare *oldest = NULL;
	struct piece *piece;

	if (memory.devices[ordinal].kept_bytes <= most_bytes)
		return NULL;
	for (struct spare *at = memory.newest_spare; at; at = at->next)
		if (spare_device(at) == ordinal)
			oldest = at;
	piece = oldest->piece;
	uncount_memory(oldest);
	oldest->piece = NULL;
	return piece;
}

static bool drop_memory_beyond(int ordinal, uint64_t most_bytes)
{
	struct piece *piece;
	bool any = false;

	do {
		memory_lock();
		piece = take_oldest_memory(ordinal, most_bytes);
		memory_unlock();
		if (piece)
			piece_unpin(piece);
		any |= piece != NULL;
	} while (piece);
	return any;
}

bool addresses_drop_memory(void)
{
	bool any = false;

	for (int i = 0; i < DEVICES_MAX; i++)
		any |= drop_memory_beyond(i, 0);
	return any;
}

/* The newest as long that has memory of that device (NO_DEVICE: none at all), or else the newest as long. */
static struct spare *take_spare(size_t bytes, int ordinal)
{
	struct spare **best = NULL, *spare;

	memory_lock();
	for (struct spare **at = &memory.newest_spare; *at; at = &(*at)->next) {
		bool fits = spare_device(*at) == ordinal;

		if ((*at)->node.bytes != bytes || (best && !fits))
			continue;
		best = at;
		if (fits || (ordinal != NO_DEVICE && !memory.devices[ordinal].kept_bytes))
			break;
	}
	spare = best ? take_spare_at(best) : NULL;
	memory_unlock();
	return spare;
}

int addresses_reserve_with(uint64_t *ret, struct piece **ret_piece, size_t bytes, int ordinal)
{
	struct spare *spare = take_spare(bytes, ordinal);
	int r;

	*ret_piece = NULL;
	if (spare) {
		*ret = spare->node.start;
		if (spare_device(spare) == ordinal)
			*ret_piece = spare->piece;
		else if (spare->piece)
			piece_unpin(spare->piece);
		free(spare);
		return 0;
	}
	r = backend_reserve(ret, bytes);
	if (r && addresses_drop_all())
		r = backend_reserve(ret, bytes);
	return r;
}

int addresses_reserve(uint64_t *ret, size_t bytes)
{
	struct piece *none;

	return addresses_reserve_with(ret, &none, bytes, NO_DEVICE);
}

/* With the lock: takes out those that were released first. */
static struct spare *take_oldest_spares(void)
{
	struct spare *gone = NULL;

	while (memory.n_spares > SPARES_MAX || memory.spare_bytes > SPARE_BYTES_MAX) {
		struct spare **at = &memory.newest_spare, *spare;

		while ((*at)->next)
			at = &(*at)->next;
		spare = take_spare_at(at);
		spare->next = gone;
		gone = spare;
	}
	return gone;
}

void addresses_release_with(uint64_t va, size_t bytes, int unmapped, struct piece *piece)
{
	bool keep = !unmapped && bytes <= SPARE_LENGTH_MAX;
	struct spare *spare = keep ? calloc(1, sizeof(*spare)) : NULL, *gone;
	int ordinal;

	if (!spare) {
		backend_unreserve(va, bytes);
		if (piece)
			piece_unpin(piece);
		return;
	}
	spare->node = (struct node){ .start = va, .bytes = bytes };
	spare->piece = piece;
	ordinal = spare_device(spare);
	memory_lock();
	tree_add(&memory.spares, &spare->node);
	spare->next = memory.newest_spare;
	memory.newest_spare = spare;
	memory.n_spares++;
	memory.spare_bytes += bytes;
	if (piece)
		memory.devices[ordinal].kept_bytes += piece->bytes;
	gone = take_oldest_spares();
	memory_unlock();
	if (ordinal != NO_DEVICE)
		drop_memory_beyond(ordinal, memory.devices[ordinal].total_bytes / KEPT_PART);
	free_spares(gone);
}

void addresses_release(uint64_t va, size_t bytes, int unmapped)
{
	addresses_release_with(va, bytes, unmapped, NULL);
}

struct piece *addresses_keep(uint64_t va, size_t bytes)
{
	struct piece *piece;

	if (bytes > KEPT_LENGTH_MAX)
		return NULL;
	memory_lock();
	piece = piece_at(va);
	/* Where a network card may have registered it, the driver has to see it go. */
	if (piece && (piece->bytes != bytes || piece->refs || piece->given || piece->lent ||
		      piece_is_alias(piece) || piece->shared || piece->imported || piece->away ||
		      piece->kind.rdma))
		piece = NULL;
	if (piece)
		piece->pins++;
	memory_unlock();
	return piece;
}

bool addresses_are_spare(uint64_t va)
{
	bool spare;

	memory_lock();
	spare = tree_find(&memory.spares, va);
	memory_unlock();
	return spare;
}
