// SPDX-License-Identifier: MIT
/* Descriptors in reserve: given up where there are no others, for no other reason, and taken again. */
#include "base/fd.h"
#include "check.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void set_limit(rlim_t files)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = files;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* From here on no descriptor can be had but those of the stock. */
static void use_up(void)
{
	int fd = dup(0);

	CHECK(fd > 0);
	close(fd);
	set_limit((rlim_t)fd);
	CHECK(dup(0) < 0 && errno == EMFILE);
}

static void only_shortage_is_helped(void)
{
	CHECK(reserve_count() == RESERVE_FDS);
	CHECK(!reserve_lend(ENOENT) && !reserve_lend(ENOMEM) && !reserve_lend(0));
	CHECK(RESERVE_TRY(open("/nowhere", O_RDONLY)) < 0 && errno == ENOENT);
	CHECK(reserve_count() == RESERVE_FDS);
}

static void small_files_are_read_all_the_same(void)
{
	char *text = NULL;

	use_up();
	for (int i = 0; i < 2 * RESERVE_FDS; i++) {
		CHECK(file_read(AT_FDCWD, "/proc/self/stat", 4096, &text, NULL) == 0);
		free(text);
	}
	CHECK(reserve_count() == RESERVE_FDS - 1);
	DIR *dir = dir_open(AT_FDCWD, "/proc/self/fd");
	struct dirent *e;
	CHECK(dir && dir_next(dir, &e) == 1);
	closedir(dir);
	set_limit(1024);
	reserve_fill();
	CHECK(reserve_count() == RESERVE_FDS);
}

static void an_empty_stock_says_so(void)
{
	int fds[RESERVE_FDS];

	use_up();
	for (int i = 0; i < RESERVE_FDS; i++)
		CHECK((fds[i] = RESERVE_TRY(dup(0))) >= 0);
	CHECK(RESERVE_TRY(dup(0)) < 0 && errno == EMFILE && reserve_count() == 0);
	reserve_fill();
	CHECK(reserve_count() == 0);
	for (int i = 0; i < RESERVE_FDS; i++)
		close(fds[i]);
	reserve_fill();
	CHECK(reserve_count() == RESERVE_FDS);
	set_limit(1024); /* a sanitizer's report wants descriptors, too */
}

int main(void)
{
	set_limit(1024);
	reserve_fill();
	only_shortage_is_helped();
	small_files_are_read_all_the_same();
	an_empty_stock_says_so();
	return 0;
}
