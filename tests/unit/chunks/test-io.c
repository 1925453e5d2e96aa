// SPDX-License-Identifier: MIT
/*
 * The I/O engine by both of its ways, on the disk and on tmpfs: what was written is read back, whatever
 * the lengths, with several files and threads at a time and far more data than buffers.
 */
#include "pattern.h"

#include <pthread.h>
#include <sys/mman.h>

enum { BUFFERS = 4, BUFFER = 64 << 10, FILES = 4 };

static char place[PATH_MAX];

static char *file_path(const char *name)
{
	char *path = path_format("%s/%s", place, name);

	CHECK(path);
	return path;
}

static void test_lengths(struct io *io)
{
	static const uint64_t lens[] = {
		0,	1,	    BLOCK - 1,	    BLOCK,	 BLOCK + 1,
		BUFFER, BUFFER + 1, 3 * BUFFER - 7, 20 * BUFFER, 20 * BUFFER + 77
	};
	auto_free char *path = file_path("lengths");

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		auto_(io_file_close) struct io_file *f = NULL;

		CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
		CHECK(write_pattern(io, f, i, lens[i], BUFFER) == 0);
		CHECK(io_file_finish(f, lens[i]) == 0);
		CHECK(size_of(path) == (off_t)lens[i]);

		auto_(io_file_close) struct io_file *in = open_file(io, path);
		check_pattern(io, in, i, lens[i], BUFFER);
		CHECK(unlink(path) == 0);
	}
}

static void test_create(struct io *io)
{
	auto_(io_file_close) struct io_file *f = NULL;
	auto_free char *path = file_path("create");
	struct stat st;

	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
	struct io_file *second = NULL;
	CHECK(io_file_create(&second, io, AT_FDCWD, path) == -EEXIST && !second);
	CHECK(io_file_finish(f, 0) == 0 && size_of(path) == 0);
	CHECK(unlink(path) == 0);
}

static ssize_t read_at(struct io *io, struct io_file *f, uint64_t at, size_t len, bool *ret_right)
{
	struct io_buffer *b = io_buffer_get(io);
	const void *data = NULL;

	io_read(f, b, len, at);
	ssize_t n = io_read_wait(b, &data);
	*ret_right = n >= 0 && is_pattern(data, (size_t)n, 5, at);
	io_buffer_put(b);
	return n;
}

/* From anywhere, across blocks and over the end. */
static void test_offsets(struct io *io)
{
	enum { LEN = 3 * BUFFER + 1000 };
	auto_(io_file_close) struct io_file *f = NULL;
	auto_free char *path = file_path("offsets");
	bool right;

	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 5, LEN, BUFFER) == 0 && io_file_finish(f, LEN) == 0);

	auto_(io_file_close) struct io_file *in = open_file(io, path);
	for (size_t at = 0; at < LEN + 3 * BLOCK; at += 3544) {
		size_t left = at < LEN ? LEN - at : 0;

		for (size_t want = 1; want <= BUFFER; want = want * 7 + 1) {
			ssize_t n = read_at(io, in, at, want, &right);

			CHECK(n == (ssize_t)(want < left ? want : left) && right);
		}
		CHECK(read_at(io, in, at, BUFFER, &right) ==
			      (ssize_t)(BUFFER < left ? BUFFER : left) &&
		      right);
	}
	CHECK(unlink(path) == 0);
}

/* Memory that is not of the pool, out of order, and a file that is open for both. */
static void test_memory(struct io *io)
{
	enum { LEN = 16 * BUFFER };
	auto_(io_file_close) struct io_file *f = NULL;
	auto_free char *path = file_path("memory");
	char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	fill_pattern(memory, LEN, 9, 0);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && io_file_new(&f, io, fd) == 0);
	for (uint64_t at = LEN; at > 0; at -= BUFFER)
		CHECK(io_write_memory(f, memory + at - BUFFER, BUFFER, at - BUFFER) == 0);
	CHECK(io_file_drain(f) == 0);
	CHECK(munmap(memory, LEN) == 0);
	CHECK(io_file_finish(f, LEN) == 0 && size_of(path) == LEN);
	check_pattern(io, f, 9, LEN, BUFFER);
	CHECK(unlink(path) == 0);
}

struct worker {
	struct io *io;
	struct io_file *files[FILES];
	unsigned first;
};

/* Every fourth piece of every file. */
static void *write_some(void *arg)
{
	struct worker *w = arg;

	for (uint64_t piece = w->first; piece < 64; piece += 4) {
		for (unsigned i = 0; i < FILES; i++) {
			struct io_buffer *b = io_buffer_get(w->io);

			fill_pattern(b->data, BUFFER, 100 + i, piece * BUFFER);
			CHECK(io_write(w->files[i], b, BUFFER, piece * BUFFER) == 0);
		}
	}
	return NULL;
}

static void *read_all(void *arg)
{
	struct worker *w = arg;

	check_pattern(w->io, w->files[w->first], 100 + w->first, 64 * BUFFER, BUFFER);
	return NULL;
}

static void run_workers(struct io *io, struct io_file **files, void *(*fn)(void *))
{
	struct worker workers[4];
	pthread_t threads[4];

	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (struct worker){ .io = io, .first = i };
		memcpy(workers[i].files, files, sizeof(workers[i].files));
		CHECK(pthread_create(&threads[i], NULL, fn, &workers[i]) == 0);
	}
	for (unsigned i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Writers end while their writes are under way: those are carried out all the same. */
static void test_threads(enum io_engine engine)
{
	auto_(io_free) struct io *io = open_io(engine, 8, BUFFER);
	struct io_file *files[FILES] = { NULL };
	char *paths[FILES];

	if (!io)
		return;
	for (unsigned i = 0; i < FILES; i++) {
		char name[] = { 't', (char)('0' + i), '\0' };

		paths[i] = file_path(name);
		CHECK(io_file_create(&files[i], io, AT_FDCWD, paths[i]) == 0);
	}
	run_workers(io, files, write_some);
	for (unsigned i = 0; i < FILES; i++) {
		CHECK(io_file_finish(files[i], 64 * BUFFER) == 0);
		io_file_close(files[i]);
		files[i] = open_file(io, paths[i]);
	}
	run_workers(io, files, read_all);
	for (unsigned i = 0; i < FILES; i++) {
		io_file_close(files[i]);
		CHECK(unlink(paths[i]) == 0);
		free(paths[i]);
	}
}

static size_t resident_bytes(void)
{
	auto_fclose FILE *f = fopen("/proc/self/statm", "re");
	size_t pages;

	CHECK(f && fscanf(f, "%*u %zu", &pages) == 1);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A little data takes a little memory, however many buffers there are for much of it. */
static void test_unused(enum io_engine engine)
{
	enum { MANY = 64, LARGE = 2 << 20 };
	size_t before_bytes = resident_bytes();
	auto_(io_free) struct io *io = open_io(engine, MANY, LARGE);
	auto_(io_file_close) struct io_file *f = NULL;
	auto_free char *path = file_path("unused");

	if (!io)
		return;
	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 1, BUFFER, BUFFER) == 0 && io_file_finish(f, BUFFER) == 0);
	CHECK(resident_bytes() < before_bytes + MANY * LARGE / 4);
	check_pattern(io, f, 1, BUFFER, BUFFER);
	CHECK(unlink(path) == 0);
}

static void test_place(const char *where)
{
	snprintf(place, sizeof(place), "%s/brumate-io-XXXXXX", where);
	CHECK(mkdtemp(place));
	for (size_t i = 0; i < 2; i++) {
		auto_(io_free) struct io *io = open_io(engines[i], BUFFERS, BUFFER);

		if (!io)
			continue;
		test_create(io);
		test_lengths(io);
		test_offsets(io);
		test_memory(io);
		test_threads(engines[i]);
		test_unused(engines[i]);
	}
	CHECK(rmdir(place) == 0);
}

/* A file that is cut short while it is mapped ends there, as any other, also within a page. */
static void test_cut_short(struct io *io)
{
	enum { LEN = 2 * BUFFER, ODD = 77 };
	auto_(io_file_close) struct io_file *f = NULL;
	auto_free char *path = file_path("cut");
	bool right;

	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 5, LEN, BUFFER) == 0 && io_file_finish(f, LEN) == 0);
	auto_(io_file_close) struct io_file *in = open_file(io, path);
	CHECK(read_at(io, in, BUFFER, BUFFER, &right) == BUFFER && right);
	CHECK(truncate(path, BUFFER + BLOCK) == 0);
	CHECK(read_at(io, in, 0, BUFFER, &right) == BUFFER && right);
	CHECK(read_at(io, in, BUFFER, BUFFER, &right) == BLOCK && right);
	CHECK(read_at(io, in, BUFFER + BLOCK, BLOCK, &right) == 0);
	CHECK(truncate(path, BUFFER + ODD) == 0);
	CHECK(read_at(io, in, BUFFER, BLOCK, &right) == ODD && right);
	CHECK(unlink(path) == 0);
}

static void test_maps(const char *where)
{
	const struct io_options options = {
		.engine = IO_ENGINE_POSIX, .buffers = BUFFERS, .buffer_bytes = BUFFER, .maps = true
	};
	auto_(io_free) struct io *io = NULL;

	snprintf(place, sizeof(place), "%s/brumate-io-XXXXXX", where);
	CHECK(mkdtemp(place) && io_new(&io, &options, NULL) == 0);
	test_lengths(io);
	test_offsets(io);
	test_memory(io);
	test_cut_short(io);
	CHECK(rmdir(place) == 0);
}

/* In memory a file that grows asks for more and more of it at a time: what it does not need in the end is not kept. */
static void test_large(const char *where)
{
	const uint64_t len = (150ull << 20) + 77;
	auto_(io_free) struct io *io = open_io(IO_ENGINE_POSIX, BUFFERS, BUFFER);
	auto_(io_file_close) struct io_file *f = NULL;
	struct stat st;

	snprintf(place, sizeof(place), "%s", where);
	auto_free char *path = path_format("%s/brumate-io-large-%d", place, getpid());
	CHECK(path && io);
	CHECK(io_file_create(&f, io, AT_FDCWD, path) == 0);
	CHECK(write_pattern(io, f, 3, len, BUFFER) == 0 && io_file_finish(f, len) == 0);
	CHECK(stat(path, &st) == 0 && st.st_size == (off_t)len);
	CHECK((uint64_t)st.st_blocks * 512 <= len + (2 << 20));
	auto_(io_file_close) struct io_file *in = open_file(io, path);
	check_pattern(io, in, 3, len, BUFFER);
	CHECK(unlink(path) == 0);
}

static void test_engine(void)
{
	auto_(io_free) struct io *io = NULL;

	setenv("BRUMATE_IO", "posix", 1);
	CHECK(io_new(&io, NULL, NULL) == 0 && io_engine(io) == IO_ENGINE_POSIX);
	unsetenv("BRUMATE_IO");
	io_free(NULL);
	io_file_close(NULL);
	io_buffer_put(NULL);
}

int main(void)
{
	const char *tmp = getenv("TMPDIR");

	test_engine();
	test_place(tmp ? tmp : "/tmp");
	if (access("/dev/shm", W_OK) == 0) {
		test_place("/dev/shm");
		test_large("/dev/shm");
		test_maps("/dev/shm");
	}
	return 0;
}
