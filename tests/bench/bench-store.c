// SPDX-License-Identifier: MIT
/*
 * bench-store DIR [MIB]: what the store makes of a disk and of the cores, beside what a plain loop makes of
 * them, in the same run. Prints, and judges nothing.
 */
#include "memory-job.h"

#include <pthread.h>
#include <time.h>

#include "base/clock.h"

enum { BLOCK = 8 << 20, RING_CHUNKS = 128 };

static uint64_t total_bytes;

/* By the wall clock, and of this process on all cores: what others take of the machine does not count in
 * the second. */
struct watch {
	uint64_t wall_ns;
	double cpu_s;
};

static double cpu_now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct watch begin(void)
{
	return (struct watch){ clock_now_ns(), cpu_now_s() };
}

static void say(const char *what, uint64_t bytes, struct watch w)
{
	double cpu_s = cpu_now_s() - w.cpu_s;
	double gb = (double)bytes / 1e9;

	printf("%-44s %7.2f GB/s %7.2f GB a CPU second\n", what, gb / clock_since_s(w.wall_ns),
	       gb / cpu_s);
}

/* Writes back what is dirty and forgets what is clean, as far as we may. */
static void cool_down(int fd)
{
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static void bench_cpu(const struct memory_job *j)
{
	auto_free uint8_t *copy = malloc(total_bytes);
	struct digest digest;

	CHECK(copy);
	memset(copy, 1, total_bytes);
	struct watch w = begin();
	memcpy(copy, j->bytes[0], total_bytes);
	say("memcpy, one thread", total_bytes, w);
	w = begin();
	for (uint64_t at = 0; at < total_bytes; at += CHUNK_BYTES)
		CHECK(chunk_digest(&digest, copy + at, CHUNK_BYTES) == 0);
	say("chunk_digest, one thread", total_bytes, w);
}

/* One thread, one block after the other: what dd with oflag=direct does. */
static void bench_plain(const struct memory_job *j)
{
	auto_free char *path = path_format("%s/plain", scratch);
	auto_free void *block = aligned_alloc(4096, BLOCK);
	int direct = O_DIRECT;
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | direct, 0600);

	CHECK(block);
	if (fd < 0) { /* a file system without */
		direct = 0;
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	}
	CHECK(fd >= 0);
	struct watch w = begin();
	for (uint64_t at = 0; at < total_bytes; at += BLOCK) {
		memcpy(block, j->bytes[0] + at, BLOCK);
		CHECK(pwrite(fd, block, BLOCK, (off_t)at) == BLOCK);
	}
	CHECK(fdatasync(fd) == 0);
	say(direct ? "plain loop: write, O_DIRECT, 8 MiB" : "plain loop: write", total_bytes, w);
	w = begin();
	for (uint64_t at = 0; at < total_bytes; at += BLOCK)
		CHECK(pread(fd, block, BLOCK, (off_t)at) == BLOCK);
	say(direct ? "plain loop: read, O_DIRECT, 8 MiB" : "plain loop: read", total_bytes, w);
	close(fd);
	CHECK(unlink(path) == 0);
}

static void write_image(const struct memory_job *j, const char *id, enum chunks_compress compress,
			bool no_sharing, const char *what)
{
	struct chunks_options options = { .job = "id-job",
					  .compress = compress,
					  .no_sharing = no_sharing };
	char label[128];
	struct watch w = begin();
	struct chunks_sums sums = save(j, id, "2026-01-01T00:00:00.000Z", &options);

	snprintf(label, sizeof(label), "%s (wrote %.0f %%)", what,
		 100.0 * (double)sums.written / (double)sums.total);
	say(label, sums.total, w);
}

/* Packs out of the page cache, so that reading is reading. */
static void cool_image(const char *id)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;

	CHECK(store_open(&i, dir, id, NULL) == 0);
	for (size_t k = 0; k < i.manifest.memory.n_packs; k++) {
		auto_close int fd =
			openat(i.dir_fd, i.manifest.memory.packs[k].path, O_RDONLY | O_CLOEXEC);

		CHECK(fd >= 0);
		cool_down(fd);
	}
}

static int count(void *arg, uint64_t offset, const void *data, size_t len)
{
	_Atomic uint64_t *sum = arg;

	*sum += len;
	return 0;
}

/* What a restore does where the GPU compares the digests: through slots that are there already, in the order of the
 * region. Whoever empties a slot takes no time. */
struct ring {
	char *slots;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool filled[RING_CHUNKS]; /* of the chunks from @first on */
	size_t first;
	bool stopped;
};

static int admit(void *arg, size_t item, bool block)
{
	struct ring *r = arg;

	pthread_mutex_lock(&r->lock);
	while (block && !r->stopped && item >= r->first + RING_CHUNKS)
		pthread_cond_wait(&r->changed, &r->lock);
	int result = r->stopped ? -ECANCELED : item < r->first + RING_CHUNKS;
	pthread_mutex_unlock(&r->lock);
	return result;
}

static void *room(void *arg, size_t item)
{
	return ((struct ring *)arg)->slots + item % RING_CHUNKS * CHUNK_BYTES;
}

static int filled(void *arg, size_t item)
{
	struct ring *r = arg;

	pthread_mutex_lock(&r->lock);
	r->filled[item % RING_CHUNKS] = true;
	for (; r->filled[r->first % RING_CHUNKS]; r->first++)
		r->filled[r->first % RING_CHUNKS] = false;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	return 0;
}

static void stop(void *arg)
{
	struct ring *r = arg;

	pthread_mutex_lock(&r->lock);
	r->stopped = true;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
}

static void stream_image(const char *id, const char *what)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	const size_t n = (size_t)(total_bytes / CHUNK_BYTES), bytes = RING_CHUNKS * CHUNK_BYTES;
	auto_free struct chunks_part *parts = calloc(n, sizeof(*parts));
	struct ring r = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char label[128];

	r.slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(parts && r.slots != MAP_FAILED);
	for (size_t k = 0; k < n; k++)
		parts[k].part = (uint32_t)k;
	const struct chunks_stream s = { .parts = parts,
					 .n = n,
					 .unverified = true,
					 .admit = admit,
					 .room = room,
					 .filled = filled,
					 .stop = stop,
					 .arg = &r };
	cool_image(id);
	struct watch w = begin();
	CHECK(store_open(&i, dir, id, &err) == 0 && store_chunks_open(&reader, &i, &err) == 0);
	CHECK(chunks_load_stream(reader, &s, NULL, NULL, &err) == 0 && r.first == n);
	snprintf(label, sizeof(label), "%s: through slots", what);
	say(label, total_bytes, w);
	munmap(r.slots, bytes);
}

static void read_image(const char *id, const char *what)
{
	auto_(store_image_fini) struct store_image i = STORE_IMAGE_EMPTY;
	auto_(chunks_reader_free) struct chunks_reader *reader = NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	_Atomic uint64_t sum = 0;
	char label[128];

	cool_image(id);
	struct watch w = begin();
	CHECK(store_open(&i, dir, id, &err) == 0 && store_chunks_open(&reader, &i, &err) == 0);
	const struct chunks_place place = { 0, count, &sum };
	CHECK(chunks_load_all(reader, &place, 1, 0, NULL, NULL, &err) == 0);
	snprintf(label, sizeof(label), "%s: load", what);
	say(label, sum, w);
	cool_image(id);
	w = begin();
	CHECK(store_verify(&i, NULL, NULL, &err) == 0);
	snprintf(label, sizeof(label), "%s: verify", what);
	say(label, sum, w);
}

static void bench_images(struct memory_job *random, struct memory_job *text)
{
	write_image(random, "raw", CHUNKS_COMPRESS_NONE, true, "random, none: write");
	read_image("raw", "random, none");
	stream_image("raw", "random, none");
	write_image(random, "auto", CHUNKS_COMPRESS_AUTO, true, "random, auto: write");
	write_image(random, "same", CHUNKS_COMPRESS_AUTO, false, "the same again, shared: write");
	for (uint64_t at = 0; at < total_bytes / 50; at += CHUNK_BYTES)
		fill_random(random->bytes[0] + 37 * at, 64, at + 5);
	write_image(random, "delta", CHUNKS_COMPRESS_AUTO, false, "2 % changed, shared: write");

	write_image(text, "text-auto", CHUNKS_COMPRESS_AUTO, true, "text, auto: write");
	write_image(text, "text-lz4", CHUNKS_COMPRESS_LZ4, true, "text, lz4: write");
	read_image("text-lz4", "text, lz4");
	stream_image("text-lz4", "text, lz4");
	write_image(text, "text-zstd", CHUNKS_COMPRESS_ZSTD, true, "text, zstd: write");
	read_image("text-zstd", "text, zstd");
}

int main(int argc, char **argv)
{
	auto_(memory_job_fini) struct memory_job random = { 0 }, text = { 0 };
	uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 1024;

	if (argc < 2 || argc > 3 || mib == 0 || mib % 8) {
		fprintf(stderr, "usage: bench-store DIR [MIB, a multiple of 8]\n");
		return 2;
	}
	setenv("TMPDIR", argv[1], 1);
	new_scratch();
	total_bytes = mib << 20;
	add_region(&random, total_bytes, FILL_RANDOM, 1);
	add_region(&text, total_bytes, FILL_TEXT, 2);
	printf("%llu MiB in %s, %ld cores\n", (unsigned long long)mib, argv[1],
	       sysconf(_SC_NPROCESSORS_ONLN));
	bench_cpu(&random);
	bench_plain(&random);
	bench_images(&random, &text);
	remove_scratch();
	return 0;
}
