// SPDX-License-Identifier: MIT
/* Packs of a checkpoint that are not in its directory, but somewhere else: who opens it says where they are
 * read from (chunks_open()). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct pack_source {
	unsigned threads; /* how many may read at a time, at least 1 */

	/** For one thread. @ret_reader: for the others, owned until close(). */
	int (*open)(void *arg, void **ret_reader, struct brumate_error *err);

	/** Fills @buf with @len_bytes of pack number @pack of the manifest from @offset: all of them, or <0. */
	int (*read)(void *reader, uint32_t pack, uint64_t offset, void *buf, size_t len_bytes,
		    struct brumate_error *err);

	/** From any thread: what it reads, and will read, ends with -ECANCELED. */
	void (*stop)(void *reader);

	void (*close)(void *reader);
	void *arg;
};
