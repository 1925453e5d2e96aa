// SPDX-License-Identifier: MIT
/*
 * The synthetic job of `brumate bench`: device memory in buffers of many sizes, some of it zero, the rest
 * random, so that nothing can be compressed or found twice; and a kernel every millisecond whose beat
 * shows when the job stood still. It measures the link by itself, since nothing else tells what the
 * machine can do at that moment.
 *
 * It prints "link d2h BYTES/S h2d BYTES/S" (with --link), "ready pid P", "gap FROM TO" (nanoseconds of
 * CLOCK_REALTIME) whenever two beats lie more than 20 ms apart, "changed BYTES" after SIGUSR2 and
 * "check OK" or "check BAD" after SIGUSR1; and "ERR room WANT FREE TOTAL" (bytes) where its memory does not fit.
 * With --zero-mib there are so many MiB more, in buffers of 4 GiB at most, as the caches of servers are: zero but for
 * the first page of each; with --same-mib there are as many whose bytes are all alike.
 * With --flip all of it changes at each beat, and changes back. With --grow it allocates so much more after
 * SIGHUP: "asks free BYTES", as the driver tells, then "grown". With --port it is a server in the place of beating: it answers a line at
 * 127.0.0.1:PORT by checking all of its memory: "OK" or "BAD".
 */
#include <arpa/inet.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { SIZES_MAX = 24, GAP_NS = 20000000, BEAT_NS = 1000000, LINK_ROUNDS = 3, BLOCKS = 1024 };
enum { CACHE_MIB_MAX = 4096, CACHE_PAGE_WORDS = 8192, SAME_BYTE = 7 };

struct job_options {
	size_t mib, zero_mib, same_mib, grow_mib, piece_kib_min, piece_kib_max;
	unsigned zero, change; /* percent */
	uint64_t seed;
	bool link, flip;
	int gpu, port;
};

/* Of these each differs from all others: one that comes back in the place of another is noticed. */
struct buffer {
	CUdeviceptr memory;
	uint64_t words, sum; /* sum: what it must be */
};

static struct gpu gpu;
static struct buffer *buffers; /* the one after the last is all zero, and may have no words */
static uint64_t *sums;	       /* as read back, one for each buffer */
static size_t n_buffers;       /* with the caches, which are the last of them */
static uint64_t random_words;
static CUdeviceptr sums_on_gpu, beat_counter;
static volatile sig_atomic_t want_check, want_change, want_grow;

/* The wall clock: CRIU lets the monotonic one of a restored job go on from where it stood. */
static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double copy_rate(void *host, CUdeviceptr device, size_t bytes, bool out)
{
	uint64_t best_ns = UINT64_MAX;

	for (int i = 0; i < LINK_ROUNDS; i++) {
		uint64_t start_ns = now_ns();

		if (out)
			CHECKED(cuMemcpyDtoHAsync_v2(host, device, bytes, NULL));
		else
			CHECKED(cuMemcpyHtoDAsync_v2(device, host, bytes, NULL));
		CHECKED(cuCtxSynchronize());
		if (now_ns() - start_ns < best_ns)
			best_ns = now_ns() - start_ns;
	}
	return (double)bytes / ((double)best_ns / 1e9);
}

/* The best of a few: what the link can do, not what it does at its first touch. */
static void measure_link(size_t bytes)
{
	CUdeviceptr device;
	void *host;

	CHECKED(cuMemHostAlloc(&host, bytes, 0));
	memset(host, 1, bytes);
	CHECKED(cuMemAlloc_v2(&device, bytes));
	double out = copy_rate(host, device, bytes, true);
	double in = copy_rate(host, device, bytes, false);
	say("link d2h %.0f h2d %.0f", out, in);
	CHECKED(cuMemFree_v2(device));
	CHECKED(cuMemFreeHost(host));
}

/* "ERR room WANT FREE TOTAL", in bytes, instead of the call that would fail in the middle. */
static void expect_room(size_t want)
{
	size_t left, total;

	CHECKED(cuMemGetInfo_v2(&left, &total));
	if (want > left)
		die("room %zu %zu %zu", want, left, total);
}

static void add_buffer(uint64_t words)
{
	struct buffer *grown = realloc(buffers, (n_buffers + 2) * sizeof(*buffers));

	if (!grown)
		die("no memory for %zu buffers", n_buffers);
	buffers = grown;
	buffers[n_buffers] = (struct buffer){ .words = words };
	if (words)
		CHECKED(cuMemAlloc_v2(&buffers[n_buffers].memory, words * sizeof(uint64_t)));
}

/* An even share of the memory to each size, doubling from the smallest to the largest. */
static void allocate_random(const struct job_options *o, size_t bytes)
{
	size_t n_sizes = 1, sizes = 0;

	for (size_t kib = o->piece_kib_min; kib < o->piece_kib_max; kib *= 2)
		n_sizes++;
	for (size_t kib = o->piece_kib_min; sizes < n_sizes && sizes < SIZES_MAX; kib *= 2) {
		size_t n = bytes / n_sizes / (kib << 10);

		if (!n) {
			n_sizes--;
			continue;
		}
		for (size_t i = 0; i < n; i++) {
			add_buffer((kib << 10) / sizeof(uint64_t));
			random_words += buffers[n_buffers++].words;
		}
		sizes++;
	}
	if (!n_buffers)
		die("--mib is less than one buffer");
}

/* Each has that byte everywhere but in its first page, which is random. */
static void allocate_caches(size_t mib, unsigned char byte)
{
	for (size_t part; mib; mib -= part) {
		part = mib < CACHE_MIB_MAX ? mib : CACHE_MIB_MAX;
		add_buffer((part << 20) / sizeof(uint64_t));
		CHECKED(cuMemsetD8_v2(buffers[n_buffers].memory, byte, part << 20));
		n_buffers++;
	}
}

/* Seeds far from each other, from numbers that are close: SplitMix64's own last steps. */
static uint64_t seed_of(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* The sum of each buffer, in one go. */
static void sum_up(void)
{
	size_t bytes = (n_buffers + 1) * sizeof(*sums);

	CHECKED(cuMemsetD8_v2(sums_on_gpu, 0, bytes));
	for (size_t i = 0; i <= n_buffers; i++) {
		CUdeviceptr out = sums_on_gpu + i * sizeof(*sums);

		if (buffers[i].words)
			LAUNCH(gpu.sum_u64, BLOCKS, NULL, &buffers[i].memory, &buffers[i].words,
			       &out);
	}
	CHECKED(cuMemcpyDtoH_v2(sums, sums_on_gpu, bytes));
}

static void allocate(const struct job_options *o)
{
	size_t bytes = (o->mib << 20) * (100 - o->zero) / 100, zero_words;

	allocate_random(o, bytes);
	size_t n_random = n_buffers;
	allocate_caches(o->zero_mib, 0);
	allocate_caches(o->same_mib, SAME_BYTE);
	zero_words = ((o->mib << 20) - bytes) / sizeof(uint64_t);
	add_buffer(zero_words);
	sums = calloc(n_buffers + 1, sizeof(*sums));
	if (!sums)
		die("no memory for %zu sums", n_buffers);
	CHECKED(cuMemAlloc_v2(&sums_on_gpu, (n_buffers + 1) * sizeof(*sums)));
	CHECKED(cuMemAlloc_v2(&beat_counter, sizeof(uint32_t)));
	CHECKED(cuMemsetD8_v2(beat_counter, 0, sizeof(uint32_t)));
	if (zero_words)
		CHECKED(cuMemsetD8_v2(buffers[n_buffers].memory, 0, zero_words * sizeof(uint64_t)));
	for (size_t i = 0; i < n_buffers; i++) {
		uint64_t seed = seed_of(seed_of(o->seed) + i);
		uint64_t words = i < n_random ? buffers[i].words : CACHE_PAGE_WORDS;

		LAUNCH(gpu.random_u64, BLOCKS, NULL, &buffers[i].memory, &words, &seed);
	}
	sum_up();
	for (size_t i = 0; i < n_buffers; i++)
		buffers[i].sum = sums[i];
}

static uint64_t words_of(unsigned percent)
{
	uint64_t all = 0;

	for (size_t i = 0; i < n_buffers; i++)
		all += buffers[i].words;
	return percent == 100 ? all : random_words / 100 * percent;
}

/* Adds 1 to each word of the first buffers, as far as the share of those that are random goes; 100: of all, with the caches. */
static void change(unsigned percent)
{
	const uint64_t all = words_of(percent);
	uint64_t left = all, one = 1;

	for (size_t i = 0; left; i++) {
		uint64_t words = buffers[i].words < left ? buffers[i].words : left;

		LAUNCH(gpu.add_u64, BLOCKS, NULL, &buffers[i].memory, &words, &one);
		buffers[i].sum += words;
		left -= words;
	}
	CHECKED(cuCtxSynchronize());
	say("changed %llu", (unsigned long long)(all * sizeof(uint64_t)));
}

/* All of it is another for a moment, and then as it was. */
static void flip(void)
{
	const uint64_t values[] = { 1, (uint64_t)-1 };

	for (size_t v = 0; v < 2; v++)
		for (size_t i = 0; i < n_buffers; i++) {
			uint64_t value = values[v];

			LAUNCH(gpu.add_u64, BLOCKS, NULL, &buffers[i].memory, &buffers[i].words,
			       &value);
		}
	CHECKED(cuCtxSynchronize());
}

static bool is_right(void)
{
	bool right = true;

	sum_up();
	for (size_t i = 0; i <= n_buffers; i++)
		right = right && sums[i] == buffers[i].sum;
	return right;
}

static void check(void)
{
	say("check %s", is_right() ? "OK" : "BAD");
}

static void on_signal(int sig)
{
	if (sig == SIGUSR1)
		want_check = 1;
	else if (sig == SIGHUP)
		want_grow = 1;
	else
		want_change = 1;
}

/* Reset before it is acted on: a signal that comes meanwhile counts again. */
static bool take(volatile sig_atomic_t *wanted)
{
	bool was = *wanted;

	if (was)
		*wanted = 0;
	return was;
}

static void grow(size_t bytes)
{
	size_t room, total;
	CUdeviceptr more;

	CHECKED(cuMemGetInfo_v2(&room, &total));
	say("asks free %zu", room);
	CHECKED(cuMemAlloc_v2(&more, bytes));
	say("grown");
}

static void beat(const struct job_options *o)
{
	const struct timespec pause = { 0, BEAT_NS };
	uint64_t words = 1;
	uint64_t last_ns = now_ns();

	for (;;) {
		LAUNCH(gpu.inc_u32, 1, NULL, &beat_counter, &words);
		CHECKED(cuCtxSynchronize());
		uint64_t at_ns = now_ns();
		if (at_ns - last_ns > GAP_NS)
			say("gap %llu %llu", (unsigned long long)last_ns,
			    (unsigned long long)at_ns);
		if (o->flip)
			flip();
		if (want_check || want_change || want_grow) {
			if (take(&want_grow))
				grow(o->grow_mib << 20);
			if (take(&want_change))
				change(o->change);
			if (take(&want_check))
				check();
			at_ns = now_ns();
		}
		last_ns = at_ns;
		nanosleep(&pause, NULL);
	}
}

static int listen_at(int port)
{
	const struct sockaddr_in a = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, SOMAXCONN) < 0)
		die("ERR port %d: %m", port);
	return fd;
}

static void serve(int listen_fd)
{
	for (;;) {
		const int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
		char byte;

		while (fd >= 0 && recv(fd, &byte, 1, 0) == 1) {
			const char *text = byte != '\n' ? "" : is_right() ? "OK\n" : "BAD\n";

			send(fd, text, strlen(text), MSG_NOSIGNAL);
		}
		close(fd);
	}
}

static void usage(void)
{
	fprintf(stderr, "bench-job [--mib 1024] [--piece-kib 65536[-1048576]] [--zero PERCENT] "
			"[--zero-mib MIB] [--same-mib MIB] [--change PERCENT] [--gpu 0] [--seed 1] "
			"[--link] "
			"[--flip] [--grow MIB] [--port PORT]\n");
	exit(2);
}

static void parse_pieces(struct job_options *o, char *text)
{
	char *dash = strchr(text, '-');

	o->piece_kib_min = strtoull(text, NULL, 10);
	o->piece_kib_max = dash ? strtoull(dash + 1, NULL, 10) : o->piece_kib_min;
	if (!o->piece_kib_min || o->piece_kib_max < o->piece_kib_min)
		usage();
}

static struct job_options parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "mib", required_argument, NULL, 'm' },
		{ "piece-kib", required_argument, NULL, 'p' },
		{ "zero", required_argument, NULL, 'z' },
		{ "zero-mib", required_argument, NULL, 'Z' },
		{ "same-mib", required_argument, NULL, 'S' },
		{ "change", required_argument, NULL, 'c' },
		{ "gpu", required_argument, NULL, 'g' },
		{ "seed", required_argument, NULL, 's' },
		{ "link", no_argument, NULL, 'l' },
		{ "flip", no_argument, NULL, 'f' },
		{ "grow", required_argument, NULL, 'w' },
		{ "port", required_argument, NULL, 'P' },
		{ NULL, 0, NULL, 0 },
	};
	struct job_options o = {
		.mib = 1024, .piece_kib_min = 65536, .piece_kib_max = 65536, .seed = 1
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
		if (c == 'm')
			o.mib = strtoull(optarg, NULL, 10);
		else if (c == 'p')
			parse_pieces(&o, optarg);
		else if (c == 'z')
			o.zero = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'Z')
			o.zero_mib = strtoull(optarg, NULL, 10);
		else if (c == 'S')
			o.same_mib = strtoull(optarg, NULL, 10);
		else if (c == 'c')
			o.change = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'g')
			o.gpu = (int)strtol(optarg, NULL, 10);
		else if (c == 's')
			o.seed = strtoull(optarg, NULL, 0);
		else if (c == 'l')
			o.link = true;
		else if (c == 'f')
			o.flip = true;
		else if (c == 'P')
			o.port = (int)strtol(optarg, NULL, 10);
		else if (c == 'w')
			o.grow_mib = strtoull(optarg, NULL, 10);
		else
			usage();
	}
	if (o.zero > 99 || o.change > 100 || optind != argc)
		usage();
	return o;
}

int main(int argc, char **argv)
{
	struct job_options o = parse(argc, argv);
	struct sigaction act = { .sa_handler = on_signal };

	sigaction(SIGUSR1, &act, NULL);
	sigaction(SIGUSR2, &act, NULL);
	if (o.grow_mib) /* else it ends by that, as programs do */
		sigaction(SIGHUP, &act, NULL);
	gpu_open(&gpu, o.gpu);
	expect_room((o.mib + o.zero_mib + o.same_mib) << 20);
	if (o.link)
		measure_link(o.mib >= 4096 ? 2ull << 30 : 64ull << 20);
	allocate(&o);
	CHECKED(cuCtxSynchronize());
	const int listen_fd = o.port ? listen_at(o.port) : -1;
	say("ready pid %d", (int)getpid());
	if (o.port)
		serve(listen_fd);
	beat(&o);
}
