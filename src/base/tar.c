// SPDX-License-Identifier: MIT
/* Headers of tar archives; see tar.h. */
#include "base/tar.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BINARY 0x80 /* in the first byte of a size: its last eight are big-endian */

size_t tar_padding(uint64_t len_bytes)
{
	return (size_t)(-len_bytes % TAR_BLOCK_BYTES);
}

static void fill_size(char ret[static 12], uint64_t len_bytes)
{
	if (len_bytes <= TAR_OCTAL_MAX) {
		snprintf(ret, 12, "%011" PRIo64, len_bytes);
		return;
	}
	ret[0] = (char)BINARY;
	for (size_t i = 11; i > 3; i--, len_bytes >>= 8)
		ret[i] = (char)(len_bytes & 0xff);
}

void tar_fill(struct tar_header *h, const char *name, char type, uint64_t len_bytes)
{
	unsigned sum = 0;

	memset(h, 0, sizeof(*h));
	memcpy(h->name, name, strnlen(name, sizeof(h->name)));
	memcpy(h->mode, type == TAR_DIRECTORY ? "0000700" : "0000600", 8);
	memcpy(h->uid, "0000000", 8);
	memcpy(h->gid, "0000000", 8);
	fill_size(h->size, len_bytes);
	memcpy(h->mtime, "00000000000", 12);
	h->type = type;
	memcpy(h->magic, "ustar", 6);
	memcpy(h->version, "00", 2);

	memset(h->checksum, ' ', sizeof(h->checksum));
	for (size_t i = 0; i < sizeof(*h); i++)
		sum += ((const uint8_t *)h)[i];
	snprintf(h->checksum, sizeof(h->checksum), "%06o", sum);
}

int tar_parse_octal(uint64_t *ret, const char *text, size_t digits)
{
	uint64_t value = 0;

	for (size_t i = 0; i < digits; i++) {
		if (text[i] < '0' || text[i] > '7')
			return -EBADMSG;
		value = value << 3 | (uint64_t)(text[i] - '0');
	}
	*ret = value;
	return 0;
}

static int parse_size(uint64_t *ret, const char size[static 12])
{
	uint64_t value = 0;

	if ((uint8_t)size[0] != BINARY)
		return tar_parse_octal(ret, size, 11);
	for (size_t i = 4; i < 12; i++)
		value = value << 8 | (uint8_t)size[i];
	*ret = value;
	return value > INT64_MAX ? -EBADMSG : 0;
}

int tar_parse(char ret_name[static TAR_NAME_BYTES + 1], uint64_t *ret_len_bytes,
	      const struct tar_header *h)
{
	static const struct tar_header end;
	struct tar_header same;
	char name[TAR_NAME_BYTES + 1];
	uint64_t len_bytes;

	if (!memcmp(h, &end, sizeof(end)))
		return 0;
	if (parse_size(&len_bytes, h->size) < 0)
		return -EBADMSG;
	memcpy(name, h->name, TAR_NAME_BYTES);
	name[TAR_NAME_BYTES] = '\0';
	tar_fill(&same, name, h->type, len_bytes);
	if (memcmp(&same, h, sizeof(same)) || (h->type != TAR_FILE && h->type != TAR_DIRECTORY) ||
	    (h->type == TAR_DIRECTORY && len_bytes))
		return -EBADMSG;
	strcpy(ret_name, name);
	*ret_len_bytes = len_bytes;
	return 1;
}
