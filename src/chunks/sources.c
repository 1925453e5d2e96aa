// SPDX-License-Identifier: MIT
/* The regions that a memory writer is given, and where it gets their bytes from. */
#include "chunks/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/huge-pages.h"

void chunks_region_fini(struct chunks_region *s)
{
	if (s->map)
		munmap(s->map, s->map_bytes);
	free(s->digests);
}

/* Maps what holds the region. */
static int map_source(struct chunks_region *s, int fd, uint64_t offset, struct brumate_error *err)
{
	uint64_t len = s->region.len_bytes, pad = offset % (uint64_t)sysconf(_SC_PAGESIZE), end;
	struct stat st;

	if (len == 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "memory: its file: %m");
	if (__builtin_add_overflow(offset, len, &end) || end > (uint64_t)st.st_size)
		return brumate_fail(err, EINVAL, "memory: its file ends before the region");
	s->map_bytes = (size_t)(len + pad);
	s->map = huge_pages_map(fd, offset - pad, s->map_bytes, PROT_READ);
	if (!s->map)
		return brumate_fail(err, errno, "memory: map its file: %m");
	s->data = (const uint8_t *)s->map + pad;
	return 0;
}

/* Takes the mapping over, on success only. */
static int add_source(struct chunks_writer *m, struct chunks_region *s)
{
	if (m->n_sources == MANIFEST_REGIONS_MAX)
		return -E2BIG;

	struct chunks_region *sources = array_room(m->sources, m->n_sources, sizeof(*sources));
	if (!sources)
		return -ENOMEM;
	m->sources = sources;
	int64_t first = ledger_add_parts(&m->ledger, chunk_parts(s->region.len_bytes));
	if (first < 0)
		return (int)first;
	s->first_part = (size_t)first;
	m->sources[m->n_sources++] = *s;
	return 0;
}

static int add(struct chunks_writer *m, struct chunks_region *s, struct brumate_error *err)
{
	pthread_mutex_lock(&m->lock);
	int r = add_source(m, s);
	pthread_cond_broadcast(&m->news);
	pthread_mutex_unlock(&m->lock);
	return r < 0 ? brumate_fail(err, -r, "memory: one region more: %m") : 0;
}

int chunks_add(struct chunks_writer *m, const struct manifest_region *region, int fd,
	       uint64_t offset, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region };
	int r = map_source(&s, fd, offset, err);

	if (r == 0)
		r = add(m, &s, err);
	if (r < 0)
		chunks_region_fini(&s);
	return r;
}

/* Those of the region, for it. */
static int copy_digests(struct chunks_region *s, const struct digest *digests,
			struct brumate_error *err)
{
	size_t n = (size_t)(s->region.len_bytes / CHUNK_BYTES_MAX);

	if (s->region.len_bytes % CHUNK_BYTES_MAX)
		return brumate_fail(err, EINVAL, "memory: digests of half a chunk");
	s->digests = calloc(n + 1, sizeof(*digests));
	if (!s->digests)
		return brumate_fail(err, ENOMEM, "%m");
	memcpy(s->digests, digests, n * sizeof(*digests));
	return 0;
}

int chunks_add_known(struct chunks_writer *m, const struct manifest_region *region, int fd,
		     uint64_t offset, const struct digest *digests, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region };
	int r = copy_digests(&s, digests, err);

	if (r == 0)
		r = map_source(&s, fd, offset, err);
	if (r == 0)
		r = add(m, &s, err);
	if (r < 0)
		chunks_region_fini(&s);
	return r;
}

int chunks_add_bytes(struct chunks_writer *m, const struct manifest_region *region,
		     const void *data, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region, .data = data };

	return add(m, &s, err);
}

int chunks_add_from(struct chunks_writer *m, const struct manifest_region *region,
		    chunks_source_fn source, void *arg, struct brumate_error *err)
{
	struct chunks_region s = { .region = *region, .read = source, .read_arg = arg };

	return add(m, &s, err);
}
