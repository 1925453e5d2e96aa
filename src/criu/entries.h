// SPDX-License-Identifier: MIT
/* The frame of CRIU's image files: numbers that say what it is, then messages, each behind its length. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { CRIU_IMAGE_BYTES_MAX = 64 << 20 }; /* of an image that is read */

/** What is left of an image, or the bytes of one entry of it: a message. Borrowed. */
struct criu_entries {
	const uint8_t *p;
	size_t left;
};

/** The first number of an image, and the second of those that contents.c reads. */
#define CRIU_MAGIC_IMAGE       0x54564319u
#define CRIU_MAGIC_INVENTORY   0x58313116u
#define CRIU_MAGIC_FDINFO      0x56213732u
#define CRIU_MAGIC_IDS	       0x54432030u
#define CRIU_MAGIC_MM	       0x57492820u
#define CRIU_MAGIC_FS	       0x51403912u
#define CRIU_MAGIC_REMAP_FPATH 0x59133954u
#define CRIU_MAGIC_FILES       0x56303138u
#define CRIU_MAGIC_MEMFD_INODE 0x48453499u

/** Begins an image with these two numbers. -EBADMSG: they are others. */
int criu_entries_open(struct criu_entries *ret, const void *buf, size_t len_bytes, uint32_t first,
		      uint32_t second);

/** The same of an image that begins with one number only. */
int criu_entries_open_bare(struct criu_entries *ret, const void *buf, size_t len_bytes,
			   uint32_t number);

/** Finds the next entry. 1, or 0 at the end; -EBADMSG. */
int criu_entries_next(struct criu_entries *image, struct criu_entries *ret);
