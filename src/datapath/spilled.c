// SPDX-License-Identifier: MIT
/* Reads and writes the parts of a host copy that are in files. See spilled.h. */
#include "datapath/spilled.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/host-copy.h"

struct spilled_place {
	struct spilled_place *next;
	const struct spilled *spilled;
	uint64_t offset;
};

struct spilled {
	uint64_t segment_bytes;
	size_t n;
	int *fds; /* -1: the segment is in memory */
	struct seal_disk_key key;
	struct spilled_place *sources;
	struct spilled *older;
};

static int open_segments(struct spilled *s, const struct host_copy *copy)
{
	for (size_t i = 0; i < s->n; i++) {
		if (!host_copy_is_on_disk(copy, i))
			continue;
		s->fds[i] = spill_open(copy->segments[i]);
		if (s->fds[i] < 0)
			return s->fds[i];
	}
	return 0;
}

int spilled_open(struct spilled **ret, const struct host_copy *copy, struct brumate_error *err)
{
	auto_(spilled_free) struct spilled *s = NULL;

	*ret = NULL;
	if (!host_copy_is_spilled(copy))
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return brumate_fail(err, ENOMEM, "%m");
	s->segment_bytes = copy->segment_bytes;
	s->fds = calloc(host_copy_n_segments(copy), sizeof(int));
	if (!s->fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (; s->n < host_copy_n_segments(copy); s->n++)
		s->fds[s->n] = -1;
	int r = spill_key_read(&s->key, copy->segments[s->n]);
	if (r == 0)
		r = open_segments(s, copy);
	if (r < 0)
		return brumate_fail(err, -r, "host copy on disk: %m");
	*ret = take_ptr(&s);
	return 0;
}

void spilled_free(struct spilled *s)
{
	while (s) {
		struct spilled *older = s->older;

		for (size_t i = 0; i < s->n; i++)
			cleanup_close(&s->fds[i]);
		for (struct spilled_place *at = s->sources, *next; at; at = next) {
			next = at->next;
			free(at);
		}
		seal_disk_key_fini(&s->key);
		free(s->fds);
		free(s);
		s = older;
	}
}

void spilled_chain(struct spilled *s, struct spilled *older)
{
	s->older = older;
}

bool spilled_has(const struct spilled *s, size_t i)
{
	return s && i < s->n && s->fds[i] >= 0;
}

static int read_spilled(const struct spilled *s, uint64_t offset, void *buf, size_t len_bytes)
{
	size_t i = (size_t)(offset / s->segment_bytes);
	auto_free void *aligned = aligned_alloc(SEAL_DISK_UNIT_BYTES, len_bytes);

	if (!spilled_has(s, i))
		return -EINVAL;
	if (!aligned)
		return -ENOMEM;
	int r = spill_read(s->fds[i], &s->key, i * s->segment_bytes, offset, aligned, len_bytes);
	if (r == 0)
		memcpy(buf, aligned, len_bytes);
	return r;
}

void *spilled_source(struct spilled *s, uint64_t offset)
{
	struct spilled_place *source = calloc(1, sizeof(*source));

	if (!source)
		return NULL;
	*source = (struct spilled_place){ s->sources, s, offset };
	s->sources = source;
	return source;
}

int spilled_source_read(void *source, uint64_t offset, void *buf, size_t len_bytes)
{
	const struct spilled_place *from = source;

	return read_spilled(from->spilled, from->offset + offset, buf, len_bytes);
}
