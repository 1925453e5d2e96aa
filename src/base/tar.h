// SPDX-License-Identifier: MIT
/* Headers of POSIX tar archives (POSIX.1-2001). Pure: no files here. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TAR_BLOCK_BYTES = 512, TAR_NAME_BYTES = 100 };
enum { TAR_FILE = '0', TAR_DIRECTORY = '5' };

/** Sizes up to this are octal; a larger one has a separate record in front, or is binary. */
#define TAR_OCTAL_MAX 077777777777ull

struct tar_header {
	char name[TAR_NAME_BYTES], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type,
		link[100];
	char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], unused[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK_BYTES, "a header is one block");

/** A header for root's file, mode 0600, or directory, mode 0700, dated 1970. A name longer than the field is
 * truncated. A size beyond TAR_OCTAL_MAX becomes binary, as in GNU tar. */
void tar_fill(struct tar_header *ret, const char *name, char type, uint64_t len_bytes);

/** The number of zeros after @len_bytes of a file. */
size_t tar_padding(uint64_t len_bytes);

/** Reads @digits octal digits. 0 or -EBADMSG. */
int tar_parse_octal(uint64_t *ret, const char *text, size_t digits);

/** Parses a header made by tar_fill(): its name, NUL-terminated, and its size, 0 for a directory. 1: there is one; 0:
 * this is the end; -EBADMSG. */
int tar_parse(char ret_name[static TAR_NAME_BYTES + 1], uint64_t *ret_len_bytes,
	      const struct tar_header *h);
