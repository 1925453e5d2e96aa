// SPDX-License-Identifier: MIT
/* Errors: text, prefixes, truncation, exit codes. */
#include "base/error.h"

#include <errno.h>
#include <string.h>

#include "check.h"

static void test_fail_and_wrap(void)
{
	struct brumate_error err = { .hint = "old", .exit_code = EXIT_USAGE };

	CHECK(brumate_fail(&err, ENOENT, "open %s: %m", "x") == -ENOENT);
	CHECK(err.code == ENOENT && !err.hint[0] && !err.exit_code);
	CHECK_STR(err.text, "open x: No such file or directory");
	brumate_hint(&err, "look %s", "there");
	CHECK(brumate_wrap(&err, -ENOENT, "chunk %d", 12) == -ENOENT);
	CHECK(brumate_wrap(&err, -ENOENT, "restore") == -ENOENT);
	CHECK_STR(err.text, "restore: chunk 12: open x: No such file or directory");
	CHECK_STR(err.hint, "look there");
	CHECK(err.code == ENOENT);
}

static void test_wrap_starts(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(brumate_wrap(&err, -EIO, "disk") == -EIO);
	CHECK(err.code == EIO);
	CHECK_STR(err.text, "disk: Input/output error");
}

static void test_nowhere(void)
{
	CHECK(brumate_fail(NULL, EIO, "%m") == -EIO);
	CHECK(brumate_wrap(NULL, -EIO, "x") == -EIO);
	brumate_hint(NULL, "x");
	brumate_error_exit(NULL, EXIT_USAGE);
}

static void test_one_line(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	brumate_fail(&err, EIO, "a\nb\x1b[31m\x7f\tc");
	CHECK_STR(err.text, "a b [31m  c");
	brumate_wrap(&err, -EIO, "p\rq");
	CHECK(!strncmp(err.text, "p q: a b", 8));
	brumate_hint(&err, "x\ny");
	CHECK_STR(err.hint, "x y");
}

/* Prefixes are kept, the end of the text gives way, nothing is written beyond. */
static void test_truncation(void)
{
	struct {
		struct brumate_error err;
		char guard[64];
	} box;
	char longest[4096];

	memset(&box, 0x7e, sizeof(box));
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';

	brumate_fail(&box.err, EIO, "%s", longest);
	CHECK(strlen(box.err.text) == sizeof(box.err.text) - 1);
	for (int i = 0; i < 100; i++)
		brumate_wrap(&box.err, -EIO, "level %d", i);
	CHECK(strlen(box.err.text) == sizeof(box.err.text) - 1);
	CHECK(!strncmp(box.err.text, "level 99: level 98: ", 20));
	brumate_wrap(&box.err, -EIO, "%s", longest);
	CHECK(strlen(box.err.text) == sizeof(box.err.text) - 1);
	CHECK(!strncmp(box.err.text, "xxx", 3));
	brumate_hint(&box.err, "%s", longest);
	CHECK(strlen(box.err.hint) == sizeof(box.err.hint) - 1);
	for (size_t i = 0; i < sizeof(box.guard); i++)
		CHECK(box.guard[i] == 0x7e);
}

static void test_exit_codes(void)
{
	static const struct {
		int code;
		enum exit_code exit_code;
	} rows[] = {
		{ 0, EXIT_OK },
		{ EIO, EXIT_FAILED },
		{ EINVAL, EXIT_USAGE },
		{ ENOENT, EXIT_NOT_FOUND },
		{ ESRCH, EXIT_NOT_FOUND },
		{ EOPNOTSUPP, EXIT_UNSUPPORTED },
		{ ENOSYS, EXIT_UNSUPPORTED },
		{ EPERM, EXIT_PERMISSION },
		{ EACCES, EXIT_PERMISSION },
		{ EBUSY, EXIT_BUSY },
		{ EEXIST, EXIT_BUSY },
		{ EBADMSG, EXIT_BAD_IMAGE },
		{ EPROTONOSUPPORT, EXIT_BAD_IMAGE },
		{ ETIMEDOUT, EXIT_TIMEOUT },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct brumate_error err = { .code = rows[i].code };

		CHECK(brumate_exit_code(&err) == rows[i].exit_code);
		brumate_error_exit(&err, EXIT_STILL_RUNNING);
		CHECK(brumate_exit_code(&err) == EXIT_STILL_RUNNING);
	}
	/* The numbers are an interface. */
	CHECK(EXIT_STILL_RUNNING == 7 && EXIT_JOB_LOST == 8 && EXIT_BAD_IMAGE == 9 &&
	      EXIT_TIMEOUT == 124);
}

int main(void)
{
	test_fail_and_wrap();
	test_wrap_starts();
	test_nowhere();
	test_one_line();
	test_truncation();
	test_exit_codes();
	return 0;
}
