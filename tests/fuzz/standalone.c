// SPDX-License-Identifier: MIT
/*
 * Runs a fuzzer without libFuzzer, so that every build tests every decoder: each file of the given
 * directories, and mutations of each by a fixed generator, so that a failure comes again.
 */
#include "base/cleanup.h"
#include "base/fd.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MUTATIONS = 2000, GROWTH = 64, INPUT_BYTES_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* The decoder gets a block of exactly that size, so that a sanitizer sees one byte too far. */
static void run_exact(const uint8_t *data, size_t len)
{
	auto_free uint8_t *exact = malloc(len ? len : 1);

	if (!exact)
		abort();
	memcpy(exact, data, len);
	LLVMFuzzerTestOneInput(exact, len);
}

static size_t mutate(uint8_t *data, size_t len, uint64_t *state)
{
	static const uint8_t telling[] = { 0,	1,   0x7f, 0x80, 0xff, '{',  '}',
					   '"', '[', ']',  ',',	 ':',  '\\', '-' };
	size_t at = len ? next_random(state) % len : 0;

	switch (next_random(state) % 6) {
	case 0: /* flip a bit */
		if (len)
			data[at] ^= (uint8_t)(1u << next_random(state) % 8);
		return len;
	case 1: /* a telling byte */
		if (len)
			data[at] = telling[next_random(state) % sizeof(telling)];
		return len;
	case 2: /* cut the end off */
		return at;
	case 3: { /* drop some */
		size_t n = len - at < 8 ? len - at : 8;

		memmove(data + at, data + at + n, len - at - n);
		return len - n;
	}
	case 4: { /* say some twice */
		size_t n = len - at < 8 ? len - at : 8;

		memmove(data + at + n, data + at, len - at);
		return len + n;
	}
	default: /* a number, where there may be one */
		for (size_t i = 0; i < 4 && at + i < len; i++)
			data[at + i] = (uint8_t)('0' + next_random(state) % 10);
		return len;
	}
}

static void run_mutations(const uint8_t *seed, size_t seed_len)
{
	uint64_t state = 0x9e3779b97f4a7c15ull ^ seed_len;
	auto_free uint8_t *data = malloc(seed_len + GROWTH);

	if (!data)
		abort();
	for (int i = 0; i < MUTATIONS; i++) {
		size_t len = seed_len;
		uint64_t times = 1 + next_random(&state) % 4;

		memcpy(data, seed, seed_len);
		while (times--)
			len = mutate(data, len, &state);
		run_exact(data, len);
	}
}

static int run_directory(const char *path)
{
	auto_closedir DIR *dir = opendir(path);
	struct dirent *entry;
	int n = 0;

	if (!dir) {
		fprintf(stderr, "%s: %m\n", path);
		return -1;
	}
	while ((entry = readdir(dir))) {
		auto_free char *seed = NULL;
		size_t len;

		if (entry->d_name[0] == '.')
			continue;
		if (file_read(dirfd(dir), entry->d_name, INPUT_BYTES_MAX, &seed, &len) < 0)
			return -1;
		run_exact((uint8_t *)seed, len);
		run_mutations((uint8_t *)seed, len);
		n++;
	}
	return n;
}

int main(int argc, char **argv)
{
	int inputs = 0;

	run_exact((const uint8_t *)"", 0);
	for (int i = 1; i < argc; i++) {
		int n = run_directory(argv[i]);

		if (n <= 0) {
			fprintf(stderr, "%s: no inputs\n", argv[i]);
			return 1;
		}
		inputs += n;
	}
	printf("%d inputs, %d mutations of each\n", inputs, MUTATIONS);
	return inputs ? 0 : 1;
}
