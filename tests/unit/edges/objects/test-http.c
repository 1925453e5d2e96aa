// SPDX-License-Identifier: MIT
/* What is tried again, and how large parts are. The rest of it is tested against a server (s3.py). */
#include "check.h"
#include "edges/objects/http.h"
#include "edges/objects/object.h"

static void check_verdicts(void)
{
	CHECK(http_judge(200, "") == HTTP_DONE);
	CHECK(http_judge(204, "") == HTTP_DONE);
	CHECK(http_judge(200, "AccessDenied") == HTTP_REFUSED);
	CHECK(http_judge(200, "InternalError") == HTTP_AGAIN);
	CHECK(http_judge(500, "") == HTTP_AGAIN);
	CHECK(http_judge(503, "SlowDown") == HTTP_AGAIN);
	CHECK(http_judge(429, "TooManyRequests") == HTTP_AGAIN);
	CHECK(http_judge(408, "") == HTTP_AGAIN);
	CHECK(http_judge(400, "RequestTimeout") == HTTP_AGAIN);
	CHECK(http_judge(400, "BadDigest") == HTTP_AGAIN);
	CHECK(http_judge(400, "EntityTooSmall") == HTTP_REFUSED);
	CHECK(http_judge(403, "AccessDenied") == HTTP_REFUSED);
	CHECK(http_judge(404, "") == HTTP_REFUSED);
	CHECK(http_judge(301, "PermanentRedirect") == HTTP_REFUSED);
}

static void check_parts(void)
{
	const uint64_t mib = 1 << 20, lens[] = {
		1, 32 * mib, 160000 * mib, 160001 * mib, 5000000 * mib, 10000 * mib - 1
	};

	CHECK(upload_part_bytes(100 * mib, 16 * mib) == 16 * mib);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		uint64_t part = upload_part_bytes(lens[i], 5 * mib);

		CHECK(part >= 5 * mib && part % mib == 0);
		CHECK((lens[i] + part - 1) / part <= UPLOAD_PARTS_MAX);
	}
}

int main(void)
{
	check_verdicts();
	check_parts();
	return 0;
}
