// SPDX-License-Identifier: MIT
/* The pure parts of the service: GPU maps. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "service/resolve.h"
#include "wire/wire.h"

static void check_map(void)
{
	static const struct dev_gpu gpus[] = { { .uuid = "GPU-a" }, { .uuid = "GPU-b" } };
	auto_json json_t *given = json_pack("[{s:s,s:s},{s:s,s:s}]", "from", "0", "to", "1", "from",
					    "GPU-x", "to", "0");
	auto_json json_t *bad = json_pack("[{s:s,s:s}]", "from", "0", "to", "2");
	auto_json json_t *plain = json_pack("[{s:s,s:s}]", "from", "GPU-a", "to", "GPU-b");
	auto_json json_t *odd = json_pack("[{s:s,s:i}]", "from", "GPU-a", "to", 1);
	auto_json json_t *want = json_pack("[{s:s,s:s},{s:s,s:s}]", "from", "GPU-a", "to", "GPU-b",
					   "from", "GPU-x", "to", "GPU-a");
	auto_json json_t *got = NULL;
	json_t *untouched = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(gpu_map_has_numbers(given) && !gpu_map_has_numbers(plain));
	CHECK(gpu_map_resolve(&got, given, gpus, 2, NULL) == 0);
	CHECK(json_equal(got, want));
	CHECK(gpu_map_resolve(&untouched, bad, gpus, 2, &err) == -EINVAL);
	CHECK_STR(err.text, "GPU map: there is no GPU 2 (this machine has 2)");
	CHECK(gpu_map_resolve(&untouched, odd, gpus, 2, &err) == -EINVAL);
	CHECK(!untouched);
}

int main(void)
{
	check_map();
	return 0;
}
