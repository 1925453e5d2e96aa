// SPDX-License-Identifier: MIT
/*
 * Products of matrices by tiles (AMX), in the first thread and in two others, each of which is known. `tiles` has them in use for
 * some hundred microseconds at a time, as libraries do; `tiles hold` never lets go of them. Ends with 77 where there are none.
 */
#include "program.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda.h"

enum {
	REQUEST_PERMISSION = 0x1023,
	TILE_DATA = 18,
	ROWS = 16,
	ROW_BYTES = 64,
	TIMES = 2000,
	THREADS = 2
};
#define WITH_TILES __attribute__((target("amx-tile,amx-int8")))

/* Of LDTILECFG: Intel SDM, volume 2. */
struct shape {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};

static const struct shape shape __attribute__((aligned(64))) = {
	.palette = 1,
	.row_bytes = { ROW_BYTES, ROW_BYTES, ROW_BYTES },
	.rows = { ROWS, ROWS, ROWS },
};
static int8_t left[ROWS * ROW_BYTES] __attribute__((aligned(64)));
static int8_t right[ROWS * ROW_BYTES] __attribute__((aligned(64)));
static int32_t want[ROWS * ROW_BYTES / 4];
static atomic_ullong products;
static atomic_bool is_wrong;
static bool holds;

/* What TDPBSSD adds up: fours of bytes, of a row of the one and a column of fours of the other. */
static void compute_want(void)
{
	for (int m = 0; m < ROWS; m++)
		for (int n = 0; n < ROW_BYTES / 4; n++)
			for (int k = 0; k < ROW_BYTES; k++)
				want[m * ROW_BYTES / 4 + n] +=
					TIMES * left[m * ROW_BYTES + k] *
					right[k / 4 * ROW_BYTES + 4 * n + k % 4];
}

WITH_TILES static void multiply(void)
{
	int32_t got[ROWS * ROW_BYTES / 4] __attribute__((aligned(64)));

	_tile_loadconfig(&shape);
	_tile_zero(0);
	_tile_loadd(1, left, ROW_BYTES);
	_tile_loadd(2, right, ROW_BYTES);
	for (int i = 0; i < TIMES; i++)
		_tile_dpbssd(0, 1, 2);
	if (holds)
		usleep(1000);
	_tile_stored(0, got, ROW_BYTES);
	if (!holds)
		_tile_release();
	if (memcmp(got, want, sizeof(want)) != 0)
		atomic_store(&is_wrong, true);
	atomic_fetch_add(&products, 1);
}

static void *multiply_again_and_again(void *arg)
{
	for (;;)
		multiply();
	return arg;
}

static struct gpu gpu;
static struct array memory;

static bool step(void *state, uint64_t n)
{
	const unsigned long long before = atomic_load(&products);

	while (atomic_load(&products) < before + 100 && !atomic_load(&is_wrong))
		multiply();
	array_add(&memory, NULL);
	return array_check(&memory, NULL) && !atomic_load(&is_wrong);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1, .interval_ms = 1 };
	pthread_t thread;

	options_parse(&options, argc, argv, "tiles [hold] [--steps N]");
	holds = options.word && !strcmp(options.word, "hold");
	if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) < 0) {
		say("there are no tiles");
		return 77;
	}
	for (int i = 0; i < ROWS * ROW_BYTES; i++) {
		left[i] = (int8_t)(i * 7);
		right[i] = (int8_t)(i * 13 + 5);
	}
	compute_want();
	gpu_open(&gpu, options.gpu);
	array_alloc(&memory, &gpu, options.mib / options.chunk_mib, options.chunk_mib << 20);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread, NULL, multiply_again_and_again, NULL))
			die("a thread");
	steps_run(&options, step, NULL, NULL);
	return 0;
}

#else

int main(void)
{
	say("there are no tiles");
	return 77;
}

#endif
