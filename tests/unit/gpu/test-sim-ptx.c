// SPDX-License-Identifier: MIT
/* What is read out of PTX, whatever surrounds it. */
#include "ptx.h"

#include <errno.h>
#include <string.h>

#include "check.h"

static const char text[] =
	"// .entry in_a_comment\n.version 8.0 /* .entry another */\n.target sm_90\n"
	".global .align 4 .u32 single;\n"
	".visible .global .align 8 .b8 buffer[1024];\n"
	".visible .global .f64 start = 17;\n"
	".visible .entry first(.param .u64 a) { ld.global.u64 %rd1, [%rd2]; ret; }\n"
	".entry\n\tsecond(\n) { }";

static void test_entries(void)
{
	char name[PTX_NAME_BYTES];
	size_t pos = 0;

	CHECK(ptx_recognize(text));
	CHECK(!ptx_recognize("\177ELF"));
	CHECK(ptx_next_entry(text, &pos, name));
	CHECK_STR(name, "first");
	CHECK(ptx_next_entry(text, &pos, name));
	CHECK_STR(name, "second");
	CHECK(!ptx_next_entry(text, &pos, name));
}

static void test_globals(void)
{
	struct ptx_global global;
	size_t pos = 0;

	CHECK(ptx_next_global(text, &pos, &global) == 1);
	CHECK_STR(global.name, "single");
	CHECK(global.element_bytes == 4 && global.count == 1 && global.value == 0);
	CHECK(ptx_next_global(text, &pos, &global) == 1);
	CHECK_STR(global.name, "buffer");
	CHECK(global.element_bytes == 1 && global.count == 1024);
	CHECK(ptx_next_global(text, &pos, &global) == 1);
	CHECK_STR(global.name, "start");
	CHECK(global.element_bytes == 8 && global.value == 17);
	CHECK(ptx_next_global(text, &pos, &global) == 0);
}

static void test_damaged(void)
{
	static const char *const damaged[] = { ".global",
					       ".global .u32",
					       ".global .u32 x[",
					       ".global .u32 x[0];",
					       ".global .u32 x = y;",
					       ".global .struct x;",
					       ".global .u32 x" };
	struct ptx_global global;

	for (size_t i = 0; i < sizeof(damaged) / sizeof(*damaged); i++) {
		size_t pos = 0;

		CHECK(ptx_next_global(damaged[i], &pos, &global) == -EINVAL);
	}
}

int main(void)
{
	test_entries();
	test_globals();
	test_damaged();
	return 0;
}
