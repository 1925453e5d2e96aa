// SPDX-License-Identifier: MIT
/* What files hold: digests of all of a file and of samples, and copies that are as sparse as what they are of. */
#include "engine/job-files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "check.h"

enum { MIB = 1 << 20 };

static int make_file(uint64_t size)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	return fd;
}

static struct digest digest(int fd, uint64_t size, bool has_samples)
{
	struct digest d;

	CHECK(job_file_is_long(size) == has_samples);
	CHECK(job_file_digest(&d, has_samples, fd, size) == 0);
	return d;
}

static bool is_same(struct digest one, struct digest other)
{
	return !memcmp(&one, &other, sizeof(one));
}

static void test_digest(void)
{
	auto_close int fd = make_file(8 * MIB);
	const struct digest before = digest(fd, 8 * MIB, false);

	/* What comes after the bytes in question does not count, and every one of them does. */
	CHECK(fd_write_at(fd, "more", 4, 8 * MIB) == 0);
	CHECK(is_same(digest(fd, 8 * MIB, false), before));
	CHECK(fd_write_at(fd, "x", 1, 5 * MIB + 17) == 0);
	CHECK(!is_same(digest(fd, 8 * MIB, false), before));

	struct digest d;
	CHECK(job_file_digest(&d, false, fd, 9 * MIB) == -ENODATA);
	CHECK(job_file_digest(&d, true, fd, 8 * MIB) == 0); /* it is not long enough for samples */
}

static void test_samples(void)
{
	const uint64_t size = 100 * MIB + 1;
	auto_close int fd = make_file(size);
	const struct digest before = digest(fd, size, true);
	const uint64_t ends[] = { 0, size - 1 };

	for (size_t i = 0; i < 2; i++) {
		CHECK(fd_write_at(fd, "x", 1, ends[i]) == 0);
		CHECK(!is_same(digest(fd, size, true), before));
		CHECK(fd_write_at(fd, "\0", 1, ends[i]) == 0);
	}
	CHECK(is_same(digest(fd, size, true), before));
}

static void test_copy(void)
{
	auto_close int from = make_file(64 * MIB), to = make_file(0), rest = make_file(0);
	char text[8] = "";
	struct stat st;

	CHECK(fd_write_at(from, "one", 3, 10 * MIB) == 0);
	CHECK(fd_write_at(from, "two", 3, 40 * MIB) == 0);
	CHECK(job_file_copy(to, from, 0, 64 * MIB) == 0);
	CHECK(fstat(to, &st) == 0 && st.st_size == 64 * MIB && st.st_blocks * 512 < MIB);
	CHECK(fd_read_at(to, text, 3, 40 * MIB) == 3 && !strcmp(text, "two"));

	CHECK(job_file_copy(rest, from, 40 * MIB + 1, 2) == 0);
	CHECK(fstat(rest, &st) == 0 && st.st_size == 2);
	CHECK(fd_read_at(rest, text, 3, 0) == 2 && !memcmp(text, "wo", 2));
}

static void test_open(void)
{
	char dir[] = "/tmp/brumate-job-files-XXXXXX";

	CHECK(mkdtemp(dir));
	auto_close int root = open(dir, O_RDONLY | O_DIRECTORY);
	CHECK(mkdirat(root, "d", 0700) == 0 && symlinkat("d", root, "link") == 0);
	CHECK(symlinkat("f", root, "d/other") == 0 && mkfifoat(root, "pipe", 0600) == 0);
	auto_close int made = openat(root, "d/f", O_CREAT | O_WRONLY, 0600);
	auto_close int fd = job_file_open(root, "/d/f", O_RDONLY);
	auto_close int above = job_file_open(root, "/", O_PATH | O_DIRECTORY);
	auto_close int pipe = job_file_open(root, "/pipe", O_RDONLY);
	CHECK(made >= 0 && fd >= 0 && above >= 0 && pipe >= 0);
	CHECK(job_file_open(root, "/link/f", O_RDONLY) == -ELOOP);
	CHECK(job_file_open(root, "/d/other", O_RDONLY) == -ELOOP);
	CHECK(job_file_open(root, "/../etc/passwd", O_RDONLY) == -EXDEV);
	CHECK(job_file_open(root, "/d/none", O_RDONLY) == -ENOENT);
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
}

int main(void)
{
	test_digest();
	test_samples();
	test_copy();
	test_open();
	return 0;
}
