// SPDX-License-Identifier: MIT
/* What operations come to: counted by result, and the time that a job stands still over several of them. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "check.h"
#include "job/counts.h"
#include "scratch.h"
#include "wire/wire.h"

static double count_of(const struct target *j, const char *kind, const char *key)
{
	auto_json json_t *counts = job_counts(j);

	return json_number_value(json_object_get(json_object_get(counts, kind), key));
}

static void count(const struct target *j, const char *kind, int result, uint64_t stopped_s,
		  uint64_t released_s)
{
	const struct job_outcome o = {
		.kind = kind,
		.result = result,
		.seconds = 2,
		.gpu_bytes = 100,
		.image_bytes = 10,
		.stopped_ns = stopped_s * NS_PER_S,
		.released_ns = released_s * NS_PER_S,
	};

	job_count(j, &o);
}

static void check_results(const struct target *j)
{
	count(j, "checkpoint", 0, 5, 8);
	count(j, "checkpoint", -EIO, 9, 9);
	count(j, "checkpoint", -ECANCELED, 0, 0);
	count(j, "checkpoint", 0, 10, 11);
	CHECK(count_of(j, "checkpoint", "done") == 2);
	CHECK(count_of(j, "checkpoint", "failed") == 1);
	CHECK(count_of(j, "checkpoint", "cancelled") == 1);
	CHECK(count_of(j, "checkpoint", "seconds") == 4);
	CHECK(count_of(j, "checkpoint", "standstill_s") == 4);
	CHECK(count_of(j, "checkpoint", "gpu_bytes") == 200);
	CHECK(count_of(j, "checkpoint", "image_bytes") == 20);
	CHECK(count_of(j, "checkpoint", "last_ms") > 1e12);
}

/* From the suspend to the resume, whatever is done meanwhile. */
static void check_standstill(const struct target *j)
{
	count(j, "suspend", 0, 20, 0);
	count(j, "checkpoint", 0, 0, 0);
	CHECK(count_of(j, "suspend", "standstill_s") == 0);
	count(j, "resume", 0, 49, 50);
	CHECK(count_of(j, "resume", "standstill_s") == 30);
	count(j, "suspend", 0, 60, 0);
	count(j, "restore", 0, 0, 90); /* of one that was ended meanwhile */
	count(j, "resume", 0, 100, 101);
	CHECK(count_of(j, "resume", "standstill_s") == 31);
}

static void check_damaged(const struct target *j)
{
	static const char damaged[] = "[1, 2";
	auto_free char *path = path_format("%s/counts.json", j->dir);

	CHECK(file_swap(AT_FDCWD, path, damaged, strlen(damaged), 0600) == 0);
	CHECK(count_of(j, "checkpoint", "done") == 0);
	count(j, "checkpoint", 0, 5, 8);
	CHECK(count_of(j, "checkpoint", "done") == 1);
}

int main(void)
{
	new_scratch();
	struct target j = { .id = "1a2b3c4d", .dir = scratch };

	check_results(&j);
	check_standstill(&j);
	check_damaged(&j);
	remove_scratch();
	return 0;
}
