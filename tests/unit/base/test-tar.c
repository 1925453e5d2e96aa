// SPDX-License-Identifier: MIT
/* Headers of tar archives: what is written is read, and nothing else is. */
#include <errno.h>
#include <string.h>

#include "base/tar.h"
#include "check.h"

static void check_same(const char *name, char type, uint64_t len_bytes)
{
	struct tar_header h;
	char found[TAR_NAME_BYTES + 1];
	uint64_t found_bytes = 1;

	tar_fill(&h, name, type, len_bytes);
	CHECK(tar_parse(found, &found_bytes, &h) == 1);
	CHECK_STR(found, name);
	CHECK(found_bytes == len_bytes);
}

static void check_both_ways(void)
{
	char longest[TAR_NAME_BYTES + 1];

	memset(longest, 'n', TAR_NAME_BYTES);
	longest[TAR_NAME_BYTES] = '\0';
	check_same("checkpoint/pages-1.img", TAR_FILE, 4096);
	check_same("checkpoint/", TAR_DIRECTORY, 0);
	check_same("empty", TAR_FILE, 0);
	check_same(longest, TAR_FILE, TAR_OCTAL_MAX);
	check_same("large", TAR_FILE, TAR_OCTAL_MAX + 1);
	check_same("larger", TAR_FILE, 1ull << 45);
}

static int parse(const struct tar_header *h)
{
	char name[TAR_NAME_BYTES + 1];
	uint64_t len_bytes;

	return tar_parse(name, &len_bytes, h);
}

static void check_refused(void)
{
	struct tar_header h = { .name = "" };

	CHECK(parse(&h) == 0); /* the end */
	tar_fill(&h, "link", '2', 0);
	CHECK(parse(&h) == -EBADMSG);
	tar_fill(&h, "directory/", TAR_DIRECTORY, 512);
	CHECK(parse(&h) == -EBADMSG);
	tar_fill(&h, "file", TAR_FILE, 512);
	h.prefix[0] = '/';
	CHECK(parse(&h) == -EBADMSG);
	tar_fill(&h, "file", TAR_FILE, 512);
	h.size[3] = '8';
	CHECK(parse(&h) == -EBADMSG);
	tar_fill(&h, "file", TAR_FILE, UINT64_MAX);
	CHECK(parse(&h) == -EBADMSG);
	/* A size that has a shorter way to be written. */
	tar_fill(&h, "file", TAR_FILE, TAR_OCTAL_MAX + 1);
	memset(h.size + 4, 0, sizeof(h.size) - 4);
	CHECK(parse(&h) == -EBADMSG);
}

int main(void)
{
	check_both_ways();
	check_refused();
	return 0;
}
