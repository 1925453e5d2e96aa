// SPDX-License-Identifier: MIT
/*
 * Reserved addresses for our own mappings. What is let go is kept for the next that wants as many, which
 * spares the driver two calls. Nothing is mapped there meanwhile: use after free faults as ever, and
 * whoever asks is told what is told of addresses that nobody has. What the program wants to reserve
 * itself comes first.
 */
#include <stdlib.h>

#include "interpose/memory.h"

/*
 * A program may free some hundreds of blocks before it allocates as many again; to look through so many for
 * a length is little beside two calls of the driver. Of the 128 TiB of addresses that a process has 16 GiB
 * are nothing to it. What is longer than 1 GiB has many pieces to be filled with, where two calls do not
 * count; and a few such ranges would drive all others out.
 */
#define SPARES_MAX	 256
#define SPARE_BYTES_MAX	 (16ull << 30)
#define SPARE_LENGTH_MAX (1ull << 30)

/* With the lock. */
static struct spare *take_at(struct spare **at)
{
	struct spare *spare = *at;

	*at = spare->next;
	tree_remove(&memory.spares, &spare->node);
	memory.n_spares--;
	memory.spare_bytes -= spare->node.bytes;
	return spare;
}

static bool free_all(struct spare *gone)
{
	bool any = gone;

	while (gone) {
		struct spare *next = gone->next;

		driver.cuMemAddressFree(gone->node.start, gone->node.bytes);
		free(gone);
		gone = next;
	}
	return any;
}

bool addresses_drop(CUdeviceptr va, size_t bytes)
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

		struct spare *spare = take_at(at);

		spare->next = gone;
		gone = spare;
	}
	memory_unlock();
	return free_all(gone);
}

bool addresses_drop_all(void)
{
	return addresses_drop(0, SIZE_MAX);
}

static struct spare *take_spare(size_t bytes)
{
	struct spare **at = &memory.newest_spare, *spare = NULL;

	memory_lock();
	while (*at && (*at)->node.bytes != bytes)
		at = &(*at)->next;
	if (*at)
		spare = take_at(at);
	memory_unlock();
	return spare;
}

CUresult addresses_reserve(CUdeviceptr *ret, size_t bytes)
{
	struct spare *spare = take_spare(bytes);
	CUresult r;

	if (spare) {
		*ret = spare->node.start;
		free(spare);
		return CUDA_SUCCESS;
	}
	r = driver.cuMemAddressReserve(ret, bytes, 0, 0, 0);
	if (r && addresses_drop_all())
		r = driver.cuMemAddressReserve(ret, bytes, 0, 0, 0);
	return r;
}

/* With the lock: those that were let go first have to go. */
static struct spare *take_too_many(void)
{
	struct spare *gone = NULL;

	while (memory.n_spares > SPARES_MAX || memory.spare_bytes > SPARE_BYTES_MAX) {
		struct spare **at = &memory.newest_spare, *spare;

		while ((*at)->next)
			at = &(*at)->next;
		spare = take_at(at);
		spare->next = gone;
		gone = spare;
	}
	return gone;
}

void addresses_release(CUdeviceptr va, size_t bytes, CUresult unmapped)
{
	bool keep = !unmapped && bytes <= SPARE_LENGTH_MAX;
	struct spare *spare = keep ? calloc(1, sizeof(*spare)) : NULL, *gone;

	if (!spare) {
		driver.cuMemAddressFree(va, bytes);
		return;
	}
	spare->node = (struct node){ .start = va, .bytes = bytes };
	memory_lock();
	tree_add(&memory.spares, &spare->node);
	spare->next = memory.newest_spare;
	memory.newest_spare = spare;
	memory.n_spares++;
	memory.spare_bytes += bytes;
	gone = take_too_many();
	memory_unlock();
	free_all(gone);
}

bool addresses_are_spare(CUdeviceptr va)
{
	bool spare;

	memory_lock();
	spare = tree_find(&memory.spares, va);
	memory_unlock();
	return spare;
}
