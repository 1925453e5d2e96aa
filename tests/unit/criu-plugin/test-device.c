// SPDX-License-Identifier: MIT
/* Records of devices: only well-formed ones of devices are taken, and only those that were named. */
#include "check.h"
#include "base/paths.h"
#include "criu-plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static int decode(struct device_record *ret, const char *text)
{
	return device_decode(ret, text, strlen(text));
}

int main(void)
{
	struct device_record f;
	char longer[DEVICE_PATH_BYTES + 64] = "/dev/";

	CHECK(decode(&f, "/dev/nvidia0 802\n") == 0);
	CHECK_STR(f.path, "/dev/nvidia0");
	CHECK(f.flags == (O_RDWR | O_NONBLOCK));

	const char *bad[] = { "",
			      "\n",
			      "/dev/nvidia0",
			      "/dev/nvidia0 2",
			      "/dev/nvidia0 2\nmore",
			      "/etc/passwd 0\n",
			      "/dev/../etc/passwd 0\n",
			      "/dev/nvidia0 40\n", /* would create */
			      "/dev/nvidia0 x\n" };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(decode(&f, bad[i]) == -EBADMSG);
	CHECK(device_decode(&f, "/dev/nvidia0\0 2\n", 16) == -EBADMSG);
	memset(longer + 5, 'x', sizeof(longer) - 10);
	strcat(longer, " 2\n");
	CHECK(decode(&f, longer) == -EBADMSG);

	CHECK(path_begins_with_one("/dev/nvidia0", 12, "/dev/nvidia"));
	CHECK(path_begins_with_one("/dev/fuse", 9, "/dev/nvidia:/dev/fuse"));
	CHECK(!path_begins_with_one("/dev/null", 9, "/dev/nvidia:/dev/fuse"));
	CHECK(!path_begins_with_one("/dev/null", 9, "") &&
	      !path_begins_with_one("/dev/null", 9, NULL));
	CHECK(!path_begins_with_one("/dev/null", 9, "::"));
	return 0;
}
