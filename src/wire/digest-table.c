// SPDX-License-Identifier: MIT
/* Digests of a host copy's chunks, in a memfd. See digest-table.h. */
#include "wire/digest-table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static const char magic[8] = "brumdig1";

struct digest_file {
	char magic[8];
	uint64_t total_bytes;
	_Atomic uint32_t whole;
	char reserved[44];
	struct digest digests[];
};
_Static_assert(sizeof(struct digest_file) == 64, "part of what two processes share");

static size_t count_chunks(uint64_t total_bytes)
{
	return (size_t)((total_bytes + CHUNK_BYTES_MAX - 1) / CHUNK_BYTES_MAX);
}

static size_t file_bytes(size_t n)
{
	return sizeof(struct digest_file) + n * sizeof(struct digest);
}

/* Takes @fd. */
static int map_table(struct digest_table **ret, int fd, uint64_t total_bytes)
{
	auto_close int mine = fd;
	auto_free struct digest_table *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->n = count_chunks(total_bytes);
	void *at = mmap(NULL, file_bytes(t->n), PROT_READ | PROT_WRITE, MAP_SHARED, mine, 0);
	if (at == MAP_FAILED)
		return -errno;
	t->file = at;
	t->fd = take_fd(&mine);
	*ret = take_ptr(&t);
	return 0;
}

int digest_table_new(struct digest_table **ret, uint64_t total_bytes)
{
	auto_close int fd = memfd_create("brumate-digests", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct digest_table *t;

	if (fd < 0 || ftruncate(fd, (off_t)file_bytes(count_chunks(total_bytes))) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SEALS) < 0)
		return -errno;
	int r = map_table(&t, take_fd(&fd), total_bytes);
	if (r < 0)
		return r;
	memcpy(t->file->magic, magic, sizeof(magic));
	t->file->total_bytes = total_bytes;
	*ret = t;
	return 0;
}

int digest_table_open(struct digest_table **ret, int fd, uint64_t total_bytes)
{
	struct digest_table *t;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 ||
	    (uint64_t)st.st_size != file_bytes(count_chunks(total_bytes)))
		return -EBADF;
	int mine = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	int r = mine < 0 ? -errno : map_table(&t, mine, total_bytes);
	if (r < 0)
		return r;
	if (memcmp(t->file->magic, magic, sizeof(magic)) || t->file->total_bytes != total_bytes) {
		digest_table_free(t);
		return -EBADF;
	}
	*ret = t;
	return 0;
}

void digest_table_free(struct digest_table *t)
{
	if (!t)
		return;
	munmap(t->file, file_bytes(t->n));
	cleanup_close(&t->fd);
	free(t);
}

bool digest_table_is_whole(const struct digest_table *t)
{
	return atomic_load(&t->file->whole) == 1;
}

void digest_table_set_whole(struct digest_table *t, bool whole)
{
	atomic_store(&t->file->whole, whole);
}

struct digest *digest_table_digests(struct digest_table *t)
{
	return t->file->digests;
}
