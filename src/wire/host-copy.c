// SPDX-License-Identifier: MIT
/* See host-copy.h. */
#include "wire/host-copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

enum {
	TABLE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	KEY_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL,
};

/* ---- segments in memory ---- */

int segment_check(int fd, uint64_t len_bytes)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!(seals & F_SEAL_SHRINK) || st.st_size < 0 || (uint64_t)st.st_size < len_bytes)
		return -EBADF;
	return 0;
}

/* ---- segments on a disk ---- */

int spill_key_new(struct seal_disk_key *ret, int *ret_fd)
{
	auto_(seal_disk_key_fini) struct seal_disk_key key;
	auto_close int fd = memfd_create("brumate-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (getrandom(&key, sizeof(key), 0) != (ssize_t)sizeof(key))
		return -errno;
	int r = fd_write_at(fd, &key, sizeof(key), 0);
	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, KEY_SEALS) < 0)
		return -errno;
	*ret = key;
	*ret_fd = take_fd(&fd);
	return 0;
}

int spill_key_read(struct seal_disk_key *ret, int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & KEY_SEALS) != KEY_SEALS || fstat(fd, &st) < 0 ||
	    st.st_size != (off_t)sizeof(*ret) ||
	    pread(fd, ret, sizeof(*ret), 0) != (ssize_t)sizeof(*ret))
		return -EBADF;
	return 0;
}

bool spill_is_segment(int fd, uint64_t len_bytes)
{
	struct stat st;

	return fcntl(fd, F_GET_SEALS) < 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       st.st_nlink == 0 && st.st_size >= 0 && (uint64_t)st.st_size >= len_bytes;
}

int spill_open(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int own = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (own < 0 && errno == EINVAL)
		own = open(path, O_RDWR | O_CLOEXEC);
	return own < 0 ? -errno : own;
}

int spill_read(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
	       size_t len_bytes)
{
	ssize_t n = fd_read_at(fd, buf, len_bytes, at - start);

	if (n < (ssize_t)len_bytes)
		return n < 0 ? (int)n : -EIO;
	return seal_disk(buf, key, SEAL_DISK_OPEN, at, buf, len_bytes);
}

int spill_write(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
		size_t len_bytes)
{
	int r = seal_disk(buf, key, SEAL_DISK_CLOSE, at, buf, len_bytes);

	return r < 0 ? r : fd_write_at(fd, buf, len_bytes, at - start);
}

/* ---- digests ---- */

enum { MAGIC_BYTES = 8 };

static const char magic[MAGIC_BYTES + 1] = "brumdig1";

struct digest_file {
	char magic[MAGIC_BYTES];
	uint64_t total_bytes;
	_Atomic uint32_t whole;
	char reserved[44];
	struct digest digests[];
};
_Static_assert(sizeof(struct digest_file) == 64, "part of what two processes share");

static size_t chunks_of(uint64_t total_bytes)
{
	return (size_t)((total_bytes + CHUNK_BYTES_MAX - 1) / CHUNK_BYTES_MAX);
}

static size_t table_bytes(size_t n)
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
	t->n = chunks_of(total_bytes);
	void *at = mmap(NULL, table_bytes(t->n), PROT_READ | PROT_WRITE, MAP_SHARED, mine, 0);
	if (at == MAP_FAILED)
		return -errno;
	madvise(at, table_bytes(t->n),
		MADV_DONTFORK); /* or a forked child that lives as long as the job would keep the memory */
	t->file = at;
	t->fd = take_fd(&mine);
	*ret = take_ptr(&t);
	return 0;
}

int digest_table_new(struct digest_table **ret, uint64_t total_bytes)
{
	auto_close int fd = memfd_create("brumate-digests", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct digest_table *t;

	if (fd < 0 || ftruncate(fd, (off_t)table_bytes(chunks_of(total_bytes))) < 0 ||
	    fcntl(fd, F_ADD_SEALS, TABLE_SEALS) < 0)
		return -errno;
	int r = map_table(&t, take_fd(&fd), total_bytes);
	if (r < 0)
		return r;
	memcpy(t->file->magic, magic, MAGIC_BYTES);
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
	    (uint64_t)st.st_size != table_bytes(chunks_of(total_bytes)))
		return -EBADF;
	int mine = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	int r = mine < 0 ? -errno : map_table(&t, mine, total_bytes);
	if (r < 0)
		return r;
	if (memcmp(t->file->magic, magic, MAGIC_BYTES) || t->file->total_bytes != total_bytes) {
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
	munmap(t->file, table_bytes(t->n));
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
