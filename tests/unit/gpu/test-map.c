// SPDX-License-Identifier: MIT
/* Names, UUIDs as text, and the completion of GPU maps to permutations. */
#include "check.h"
#include "gpu/gpu.h"

#include <errno.h>
#include <string.h>

enum { GPUS = 4 };

static struct dev_gpu gpus[GPUS];

static void make_gpus(void)
{
	for (int i = 0; i < GPUS; i++) {
		uint8_t uuid[DEV_UUID_BYTES] = { 0xab, [15] = (uint8_t)i };

		dev_uuid_format(gpus[i].uuid, uuid);
	}
}

static void test_names(void)
{
	for (int i = 0; i < DEV_STATE__MAX; i++)
		CHECK(dev_state_name((enum dev_state)i) == dev_state_names[i]);
	for (int i = 0; i < DEV_ACTION__MAX; i++) {
		enum dev_action action;

		CHECK(dev_action_parse(dev_action_name((enum dev_action)i), &action) == 0);
		CHECK(action == (enum dev_action)i);
	}
	enum dev_action action;
	CHECK(dev_action_parse("explode", &action) == -EINVAL);
	CHECK(1u << (DEV_N_FEATURES - 1) == DEV_CUSTOM_STORAGE);
	CHECK_STR(dev_feature_names[DEV_N_FEATURES - 1], "custom-storage");
}

static void test_uuid(void)
{
	static const char text[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";
	static const char *const bad[] = {
		"",
		"GPU-",
		"0",
		"GPU-01234567-89ab-cdef-0123-456789abcde",
		"GPU-01234567-89ab-cdef-0123-456789abcdef0",
		"GPU-01234567-89ab-cdef-0123+456789abcdef",
		"GPU-0123456789ab-cdef-0123-456789abcdef-",
		"GPU-g1234567-89ab-cdef-0123-456789abcdef",
		"TPU-01234567-89ab-cdef-0123-456789abcdef",
	};
	uint8_t uuid[DEV_UUID_BYTES], other[DEV_UUID_BYTES];
	char back[DEV_UUID_TEXT_BYTES];

	CHECK(dev_uuid_parse(uuid, text) == 0);
	CHECK(uuid[0] == 0x01 && uuid[4] == 0x89 && uuid[15] == 0xef);
	dev_uuid_format(back, uuid);
	CHECK_STR(back, text);
	CHECK(dev_uuid_parse(other, text + 4) == 0 && !memcmp(uuid, other, sizeof(uuid)));
	CHECK(dev_uuid_parse(other, "gpu-01234567-89AB-CDEF-0123-456789ABCDEF") == 0);
	CHECK(!memcmp(uuid, other, sizeof(uuid)));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(dev_uuid_parse(uuid, bad[i]) == -EINVAL);
}

static struct dev_gpu_pair pair(int from, int to)
{
	struct dev_gpu_pair p;

	strcpy(p.from, gpus[from].uuid);
	strcpy(p.to, gpus[to].uuid);
	return p;
}

/* Completes the map "01 12" (0 to 1, 1 to 2) and compares it with the four targets in @want. */
static void check_map(const char *given, const char *want)
{
	struct dev_gpu_pair pairs[GPUS], full[GPUS];
	struct brumate_error err;
	size_t n = 0;

	for (const char *p = given; *p; p += 2)
		pairs[n++] = pair(p[0] - '0', p[1] - '0');
	CHECK(dev_map_complete(full, gpus, GPUS, pairs, n, &err) == 0);
	for (int i = 0; i < GPUS; i++) {
		CHECK_STR(full[i].from, gpus[i].uuid);
		CHECK_STR(full[i].to, gpus[want[i] - '0'].uuid);
	}
}

static void test_map(void)
{
	check_map("", "0123");
	check_map("11", "0123");
	check_map("01", "1023"); /* the one pushed out swaps */
	check_map("0110", "1023");
	check_map("0112", "1203"); /* a chain: 2 goes to where it began */
	check_map("0123", "1032"); /* two swaps */
	check_map("01122330", "1230");
	check_map("032132", "3012");
}

/* A whole map whose old GPUs are another machine's is kept as it is; half of one is refused. */
static void test_foreign_map(void)
{
	struct dev_gpu_pair full[GPUS], pairs[GPUS];
	struct brumate_error err;

	for (int i = 0; i < GPUS; i++) {
		pairs[i] = pair(i, (i + 1) % GPUS);
		snprintf(pairs[i].from, sizeof(pairs[i].from),
			 "GPU-%08x-89ab-cdef-0123-456789abcdef", 0xfffff000u + (unsigned)i);
	}
	CHECK(dev_map_complete(full, gpus, GPUS, pairs, GPUS, &err) == 0);
	CHECK(!memcmp(full, pairs, sizeof(full)));
	CHECK(dev_map_complete(full, gpus, GPUS, pairs, GPUS - 1, &err) == -EINVAL);
	pairs[1] = pairs[0];
	CHECK(dev_map_complete(full, gpus, GPUS, pairs, GPUS, &err) == -EINVAL);
}

static void test_bad_maps(void)
{
	struct dev_gpu_pair full[GPUS], unknown = pair(0, 1), garbage = pair(0, 1);
	struct dev_gpu_pair twice_from[] = { pair(0, 1), pair(0, 2) };
	struct dev_gpu_pair twice_to[] = { pair(0, 1), pair(2, 1) };
	struct brumate_error err;

	strcpy(unknown.to, "GPU-99999999-89ab-cdef-0123-456789abcdef");
	CHECK(dev_map_complete(full, gpus, GPUS, &unknown, 1, &err) == -EINVAL);
	CHECK(strstr(err.text, unknown.to) && err.hint[0]);
	strcpy(garbage.from, "0");
	CHECK(dev_map_complete(full, gpus, GPUS, &garbage, 1, &err) == -EINVAL);
	CHECK(strstr(err.text, "'0' is not the UUID"));
	CHECK(dev_map_complete(full, gpus, GPUS, twice_from, 2, &err) == -EINVAL);
	CHECK(strstr(err.text, "twice as the old GPU"));
	CHECK(dev_map_complete(full, gpus, GPUS, twice_to, 2, &err) == -EINVAL);
	CHECK(strstr(err.text, "twice as the new GPU"));
	CHECK(dev_map_complete(full, gpus, 0, twice_to, 1, &err) == -EINVAL);
}

int main(void)
{
	make_gpus();
	test_names();
	test_uuid();
	test_map();
	test_foreign_map();
	test_bad_maps();
	return 0;
}
