// SPDX-License-Identifier: MIT
/* Appending chunks to pack files; see pack.h. */
#include "chunks/pack.h"
#include "base/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* A name that no other pack has, in this store or any other: packs are linked under their own name. */
static int new_name(char *ret, size_t room)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -errno;
	snprintf(ret, room, "%016" PRIx64 ".pack", random);
	return 0;
}

int pack_prepare(struct pack *p, char ret_path[static 32])
{
	char name[24];
	int r;

	if (p->file)
		return 0;
	do {
		r = fault_point("store.pack-create");
		if (r == 0)
			r = new_name(name, sizeof(name));
		if (r == 0)
			r = io_file_create(&p->file, p->io, p->dir_fd, name);
	} while (r == -EEXIST);
	if (r < 0)
		return r;
	snprintf(ret_path, 32, MANIFEST_MEMORY_DIR "/%s", name);
	snprintf(p->path, sizeof(p->path), "%s", ret_path);
	p->end = 0;
	return 1;
}

bool pack_is_full(const struct pack *p)
{
	return p->file && p->end >= PACK_BYTES_MAX;
}

int pack_append_buffer(struct pack *p, struct io_buffer *b, size_t len_bytes, uint64_t *ret_offset)
{
	size_t padded = chunk_padded(len_bytes);
	int r = fault_point("store.pack-write");

	if (r < 0) {
		io_buffer_put(b);
		return r;
	}
	memset((char *)b->data + len_bytes, 0, padded - len_bytes);
	r = io_write(p->file, b, padded, p->end);
	if (r < 0)
		return r;
	*ret_offset = p->end;
	p->end += padded;
	return 0;
}

static bool is_aligned(const void *buf, size_t len)
{
	return ((uintptr_t)buf | len) % IO_ALIGN_BYTES == 0;
}

int pack_append(struct pack *p, const void *buf, size_t len_bytes, uint64_t *ret_offset)
{
	if (!is_aligned(buf, len_bytes)) {
		struct io_buffer *b = io_buffer_get(p->io);

		memcpy(b->data, buf, len_bytes);
		return pack_append_buffer(p, b, len_bytes, ret_offset);
	}
	int r = fault_point("store.pack-write");
	if (r == 0)
		r = io_write_memory(p->file, buf, len_bytes, p->end);
	if (r < 0)
		return r;
	*ret_offset = p->end;
	p->end += len_bytes;
	return 0;
}

int pack_finish(struct pack *p, uint64_t *ret_len_bytes)
{
	if (!p->file)
		return 0;
	int r = fault_point("store.pack-sync");
	if (r == 0)
		r = io_file_finish(p->file, p->end);
	if (r == 0)
		*ret_len_bytes = p->end;
	pack_abandon(p);
	return r;
}

void pack_abandon(struct pack *p)
{
	io_file_close(p->file);
	p->file = NULL;
}
