// SPDX-License-Identifier: MIT
/*
 * The I/O engine when calls come back short, interrupted or failed: short ones are finished, failures
 * are told, stay, and spoil neither other files nor the engine.
 */
#include "pattern.h"

#include <sched.h>
#include <sys/mount.h>

enum { BUFFERS = 4, BUFFER = 64 << 10, LEN = 10 * BUFFER + 123 };

static void arm_error(const char *point, int code)
{
	char action[32];

	snprintf(action, sizeof(action), "error:%d", code);
	arm(point, action);
}

static const struct {
	const char *point;
	int code;
} passing[] = {
	{ "store.io-short", EIO },   { "store.io-write", EAGAIN },    { "store.io-write", EINTR },
	{ "store.io-read", EAGAIN }, { "store.io-write", ECANCELED },
};

/* What passes by itself is not seen by the caller. */
static void test_passing(struct io *io, const char *path)
{
	for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
		auto_(io_file_close) struct io_file *f = NULL;

		arm_error(passing[i].point, passing[i].code);
		CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
		CHECK(write_pattern(io, f, i, LEN, BUFFER) == 0);
		CHECK(io_file_finish(f, LEN) == 0 && size_of(path) == LEN);

		auto_(io_file_close) struct io_file *in = open_file(io, path);
		check_pattern(io, in, i, LEN, BUFFER);
		CHECK(was_hit());
		CHECK(unlink(path) == 0);
	}
}

static void test_short_read(struct io *io, const char *path)
{
	auto_(io_file_close) struct io_file *f = NULL;

	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 3, LEN, BUFFER) == 0 && io_file_finish(f, LEN) == 0);
	auto_(io_file_close) struct io_file *in = open_file(io, path);
	arm_error("store.io-short", EIO);
	check_pattern(io, in, 3, LEN, BUFFER);
	CHECK(was_hit() && unlink(path) == 0);
}

/* O_DIRECT refused in the middle of it: the file goes on without. */
static void test_refused(struct io *io, const char *path)
{
	auto_(io_file_close) struct io_file *f = NULL;
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	CHECK(io_file_new(&f, io, fd) == 0);
	if (!(fcntl(fd, F_GETFL) & O_DIRECT)) {
		CHECK(unlink(path) == 0);
		return;
	}
	CHECK(write_pattern(io, f, 4, 3 * BUFFER, BUFFER) == 0 && io_file_drain(f) == 0);
	arm_error("store.io-write", EINVAL);
	CHECK(write_pattern(io, f, 5, LEN, BUFFER) == 0 && io_file_finish(f, LEN) == 0);
	CHECK(was_hit() && !(fcntl(fd, F_GETFL) & O_DIRECT));
	check_pattern(io, f, 5, LEN, BUFFER);
	CHECK(unlink(path) == 0);
}

static void test_failing_write(struct io *io, const char *path, int code)
{
	auto_(io_file_close) struct io_file *bad = NULL, *good = NULL;
	auto_free char *other = path_format("%s-2", path);

	CHECK(io_file_create(&bad, io, AT_FDCWD, path) == 0);
	CHECK(other && io_file_create(&good, io, AT_FDCWD, other) == 0);
	arm_error("store.io-write", code);
	int r = write_pattern(io, bad, 1, 3 * BUFFER, BUFFER);
	CHECK(r == 0 || r == -code);
	CHECK(io_file_drain(bad) == -code && was_hit());

	/* From now on it refuses at once, and takes the buffers all the same. */
	for (int i = 0; i < 2 * BUFFERS; i++)
		CHECK(io_write(bad, io_buffer_get(io), BUFFER, 0) == -code);
	CHECK(io_write_memory(bad, "", 0, 0) == -code);
	CHECK(io_file_finish(bad, LEN) == -code);

	CHECK(write_pattern(io, good, 2, LEN, BUFFER) == 0 && io_file_finish(good, LEN) == 0);
	auto_(io_file_close) struct io_file *in = open_file(io, other);
	check_pattern(io, in, 2, LEN, BUFFER);
	CHECK(unlink(path) == 0 && unlink(other) == 0);
}

static void test_failing_read(struct io *io, const char *path)
{
	auto_(io_file_close) struct io_file *f = NULL;
	struct io_buffer *b = io_buffer_get(io);
	const void *data = NULL;

	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 3, LEN, BUFFER) == 0 && io_file_finish(f, LEN) == 0);
	auto_(io_file_close) struct io_file *in = open_file(io, path);
	arm_error("store.io-read", EIO);
	io_read(in, b, BUFFER, 0);
	CHECK(io_read_wait(b, &data) == -EIO && !data && was_hit());

	/* A read fails alone. */
	io_read(in, b, BUFFER, BUFFER);
	check_piece(b, 3, BUFFER, BUFFER);
	CHECK(unlink(path) == 0);
}

/* Errors of the kernel itself: a full disk, and a sync that fails. */
static void test_full(struct io *io)
{
	auto_(io_file_close) struct io_file *f = NULL;
	auto_free char *small = path_format("%s/small", scratch), *path = NULL;

	CHECK(small && mkdir(small, 0700) == 0);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", small, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k") < 0) {
		printf("without a full disk: cannot mount a small tmpfs: %s\n", strerror(errno));
		CHECK(rmdir(small) == 0);
		return;
	}
	path = path_format("%s/file", small);
	CHECK(path && io_file_create(&f, io, AT_FDCWD, path) == 0);
	int r = write_pattern(io, f, 1, LEN, BUFFER);
	CHECK((r == 0 || r == -ENOSPC) && io_file_finish(f, LEN) == -ENOSPC);
	io_file_close(take_ptr(&f));
	CHECK(umount(small) == 0 && rmdir(small) == 0);
}

static void test_sync(struct io *io, const char *path)
{
	auto_(io_file_close) struct io_file *f = NULL;

	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 1, LEN, BUFFER) == 0);
	arm_error("store.sync-file", EIO);
	CHECK(io_file_finish(f, LEN) == -EIO && was_hit());
	CHECK(unlink(path) == 0);
}

static void test_all(const char *where)
{
	static const int codes[] = { ENOSPC, EIO, EDQUOT, EROFS };
	auto_free char *path = path_format("%s/brumate-io-faults-%d", where, getpid());

	CHECK(path);
	for (size_t i = 0; i < 2; i++) {
		auto_(io_free) struct io *io = open_io(engines[i], BUFFERS, BUFFER);

		if (!io)
			continue;
		test_passing(io, path);
		test_short_read(io, path);
		test_refused(io, path);
		for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++)
			test_failing_write(io, path, codes[k]);
		test_failing_read(io, path);
		test_sync(io, path);
		test_full(io);
	}
}

int main(void)
{
	new_scratch();
	begin_faults();
	test_all(scratch);
	if (access("/dev/shm", W_OK) == 0)
		test_all("/dev/shm");
	remove_scratch();
	return 0;
}
