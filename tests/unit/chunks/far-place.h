// SPDX-License-Identifier: MIT
/* Packs that are somewhere else: a source that answers, fails, or never answers. */
#pragma once

#include "memory-job.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "chunks/chunks.h"

enum mood { SOUND, FLIPS_ONCE, FLIPS, FAILS, HANGS };

/* A place that is far away. */
struct place {
	struct store_image image; /* whose packs are read */
	enum mood mood; /* of the request at which @until_mood is 0; FLIPS: from there on */
	atomic_int until_mood;
	atomic_int n_reads, n_open, n_most;
	_Atomic uint64_t most_bytes; /* of one request */
};

struct far_reader {
	struct place *place;
	int stop_fd;
};

static inline int far_open(void *arg, void **ret, struct brumate_error *err)
{
	struct place *p = arg;
	struct far_reader *r = calloc(1, sizeof(*r));
	int n = atomic_fetch_add(&p->n_open, 1) + 1;

	CHECK(r);
	*r = (struct far_reader){ p, eventfd(0, EFD_CLOEXEC) };
	CHECK(r->stop_fd >= 0);
	for (int most = p->n_most; n > most && !atomic_compare_exchange_weak(&p->n_most, &most, n);)
		;
	*ret = r;
	return 0;
}

static inline void far_stop(void *reader)
{
	const struct far_reader *r = reader;

	eventfd_write(r->stop_fd, 1);
}

static inline void far_close(void *reader)
{
	struct far_reader *r = reader;

	atomic_fetch_sub(&r->place->n_open, 1);
	close(r->stop_fd);
	free(r);
}

static inline bool is_stopped(const struct far_reader *r, int timeout_ms)
{
	struct pollfd fd = { .fd = r->stop_fd, .events = POLLIN };

	return poll(&fd, 1, timeout_ms) == 1;
}

static inline int far_read(void *reader, uint32_t pack, uint64_t offset, void *buf, size_t len,
			   struct brumate_error *err)
{
	struct far_reader *r = reader;
	struct place *p = r->place;
	int until = atomic_fetch_sub(&p->until_mood, 1);
	bool now = until == 0;
	const char *path = p->image.manifest.memory.packs[pack].path;
	auto_close int fd = openat(p->image.dir_fd, path, O_RDONLY | O_CLOEXEC);

	atomic_fetch_add(&p->n_reads, 1);
	for (uint64_t most = p->most_bytes;
	     len > most && !atomic_compare_exchange_weak(&p->most_bytes, &most, len);)
		;
	if (now && p->mood == FAILS)
		return brumate_fail(err, EREMOTEIO, "the network is gone");
	/* All but the one that fails wait for ever, or until they are told to stop. */
	if ((p->mood == FAILS || p->mood == HANGS) && is_stopped(r, -1))
		return brumate_fail(err, ECANCELED, "stopped");
	CHECK(fd >= 0 && pread(fd, buf, len, (off_t)offset) == (ssize_t)len);
	if ((now && p->mood == FLIPS_ONCE) || (until <= 0 && p->mood == FLIPS))
		((uint8_t *)buf)[len / 2] ^= 1;
	return 0;
}

static inline struct pack_source source_of(struct place *p, unsigned threads)
{
	return (struct pack_source){ .threads = threads,
				     .open = far_open,
				     .read = far_read,
				     .stop = far_stop,
				     .close = far_close,
				     .arg = p };
}
