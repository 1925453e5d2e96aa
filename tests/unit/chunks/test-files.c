// SPDX-License-Identifier: MIT
/* Opening beneath a directory: which paths are refused, and what is no regular file. */
#include "scratch.h"

#include "chunks/files.h"

static void expect_refused(int dir_fd, const char *path)
{
	int fd = files_open(dir_fd, path, NULL);

	if (fd >= 0)
		fprintf(stderr, "opened %s\n", path);
	CHECK(fd < 0);
}

static void test_paths(int dir_fd)
{
	static const char *const refused[] = {
		"..",		"../secret",	 "sub/../../secret", "/etc/passwd", "link",
		"dirlink/file", "sub/up/secret", "absent",	     "sub/absent",  "",
	};
	static const char *const opened[] = { "file", "sub/file", "sub/deep/file" };

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		expect_refused(dir_fd, refused[i]);
	for (size_t i = 0; i < sizeof(opened) / sizeof(opened[0]); i++) {
		auto_close int fd = files_open(dir_fd, opened[i], NULL);
		char c = 0;

		CHECK(fd >= 0 && read(fd, &c, 1) == 1 && c == 'f');
		CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	}
}

int main(void)
{
	new_scratch();
	CHECK(mkdir_parents(dir, 0700) == 0);
	auto_close int top = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(mkdirat(top, "image", 0700) == 0);
	put_file(top, "secret", "s", 1);
	auto_close int image = openat(top, "image", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	CHECK(mkdirat(image, "sub", 0700) == 0 && mkdirat(image, "sub/deep", 0700) == 0);
	put_file(image, "file", "f", 1);
	put_file(image, "sub/file", "f", 1);
	put_file(image, "sub/deep/file", "f", 1);
	CHECK(symlinkat("file", image, "link") == 0 && symlinkat("sub", image, "dirlink") == 0);
	CHECK(symlinkat("../..", image, "sub/up") == 0);
	CHECK(mkfifoat(image, "pipe", 0600) == 0);

	test_paths(image);
	CHECK(files_open(image, "pipe", NULL) == -EMEDIUMTYPE);
	CHECK(files_open(image, "sub", NULL) == -EMEDIUMTYPE);
	remove_scratch();
	return 0;
}
