// SPDX-License-Identifier: MIT
/*
 * The synthetic job of `brumate bench`: device memory in buffers of many sizes, some of it zero, and a
 * kernel every millisecond whose beat shows when the job stood still. It measures the link by itself,
 * since nothing else tells what the machine can do at that moment.
 *
 * It prints "link d2h BYTES/S h2d BYTES/S" (with --link), "ready pid P", "gap FROM TO" (nanoseconds of
 * CLOCK_REALTIME) whenever two beats lie more than 20 ms apart, "changed BYTES" after SIGUSR2 and
 * "check OK" or "check BAD" after SIGUSR1. With --flip all of it changes at each beat, and changes back.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

enum { SIZES_MAX = 24, GAP_NS = 20000000, BEAT_NS = 1000000, LINK_ROUNDS = 3, BLOCKS = 1024 };

struct job_options {
	size_t mib, piece_kib_min, piece_kib_max;
	unsigned zero, change; /* percent */
	bool link, flip;
	int gpu;
};

static struct gpu gpu;
static struct array arrays[SIZES_MAX];
static uint64_t extra[SIZES_MAX]; /* what the sum of each grew by through changes */
static size_t n_arrays;
static CUdeviceptr zeros, sum, beat_counter;
static size_t zero_words;
static volatile sig_atomic_t want_check, want_change;

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

/* An even share of the memory to each size, doubling from the smallest to the largest. */
static void allocate(const struct job_options *o)
{
	size_t total = (o->mib << 20) / 100 * (100 - o->zero), n_sizes = 1;

	for (size_t kib = o->piece_kib_min; kib < o->piece_kib_max; kib *= 2)
		n_sizes++;
	for (size_t kib = o->piece_kib_min; n_arrays < n_sizes && n_arrays < SIZES_MAX; kib *= 2) {
		size_t n = total / n_sizes / (kib << 10);

		if (n)
			array_alloc(&arrays[n_arrays++], &gpu, n, kib << 10);
		else
			n_sizes--;
	}
	if (!n_arrays)
		die("--mib is less than one buffer");
	CHECKED(cuMemAlloc_v2(&sum, sizeof(uint64_t)));
	CHECKED(cuMemAlloc_v2(&beat_counter, sizeof(uint32_t)));
	CHECKED(cuMemsetD8_v2(beat_counter, 0, sizeof(uint32_t)));
	zero_words = ((o->mib << 20) - total) / sizeof(uint64_t);
	if (!zero_words)
		return;
	CHECKED(cuMemAlloc_v2(&zeros, zero_words * sizeof(uint64_t)));
	CHECKED(cuMemsetD8_v2(zeros, 0, zero_words * sizeof(uint64_t)));
}

/* Adds 1 to all of as many buffers as make up the share. */
static void change(unsigned percent)
{
	uint64_t changed = 0;

	for (size_t i = 0; i < n_arrays; i++) {
		struct array part = arrays[i];

		part.n_chunks = (part.n_chunks * percent + 99) / 100;
		array_add(&part, NULL);
		changed += part.n_chunks * part.words * sizeof(uint64_t);
		extra[i] += part.n_chunks * part.words; /* one for each word */
	}
	CHECKED(cuCtxSynchronize());
	say("changed %llu", (unsigned long long)changed);
}

/* All of it is another for a moment, and then as it was. */
static void flip(void)
{
	const uint64_t values[] = { 1, (uint64_t)-1 };

	for (size_t v = 0; v < 2; v++)
		for (size_t i = 0; i < n_arrays; i++)
			for (size_t k = 0; k < arrays[i].n_chunks; k++) {
				uint64_t value = values[v];

				LAUNCH(gpu.add_u64, BLOCKS, NULL, &arrays[i].chunks[k],
				       &arrays[i].words, &value);
			}
	CHECKED(cuCtxSynchronize());
}

static uint64_t sum_of(CUdeviceptr *buffers, size_t n, uint64_t words)
{
	uint64_t have = 0;

	CHECKED(cuMemsetD8_v2(sum, 0, sizeof(have)));
	for (size_t i = 0; i < n; i++)
		LAUNCH(gpu.sum_u64, BLOCKS, NULL, &buffers[i], &words, &sum);
	CHECKED(cuMemcpyDtoH_v2(&have, sum, sizeof(have)));
	return have;
}

static void check(void)
{
	bool right = !zero_words || sum_of(&zeros, 1, zero_words) == 0;

	for (size_t i = 0; i < n_arrays; i++)
		right = right && sum_of(arrays[i].chunks, arrays[i].n_chunks, arrays[i].words) ==
					 array_expected(&arrays[i]) + extra[i];
	say("check %s", right ? "OK" : "BAD");
}

static void on_signal(int sig)
{
	if (sig == SIGUSR1)
		want_check = 1;
	else
		want_change = 1;
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
		if (want_check || want_change) {
			if (want_change)
				change(o->change);
			if (want_check)
				check();
			want_check = want_change = 0;
			at_ns = now_ns();
		}
		last_ns = at_ns;
		nanosleep(&pause, NULL);
	}
}

static void usage(void)
{
	fprintf(stderr, "bench-job [--mib 1024] [--piece-kib 65536[-1048576]] [--zero PERCENT] "
			"[--change PERCENT] [--gpu 0] [--link] [--flip]\n");
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
		{ "change", required_argument, NULL, 'c' },
		{ "gpu", required_argument, NULL, 'g' },
		{ "link", no_argument, NULL, 'l' },
		{ "flip", no_argument, NULL, 'f' },
		{ NULL, 0, NULL, 0 },
	};
	struct job_options o = { .mib = 1024, .piece_kib_min = 65536, .piece_kib_max = 65536 };
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
		if (c == 'm')
			o.mib = strtoull(optarg, NULL, 10);
		else if (c == 'p')
			parse_pieces(&o, optarg);
		else if (c == 'z')
			o.zero = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'c')
			o.change = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'g')
			o.gpu = (int)strtol(optarg, NULL, 10);
		else if (c == 'l')
			o.link = true;
		else if (c == 'f')
			o.flip = true;
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
	gpu_open(&gpu, o.gpu);
	if (o.link)
		measure_link(o.mib >= 4096 ? 2ull << 30 : 64ull << 20);
	allocate(&o);
	CHECKED(cuCtxSynchronize());
	say("ready pid %d", (int)getpid());
	beat(&o);
}
