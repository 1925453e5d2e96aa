// SPDX-License-Identifier: MIT
/* What every unit test uses: a check that names its place and ends the test; 77 means skipped. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

#define CHECK_STR(got, want)                                                                \
	do {                                                                                \
		const char *got_ = (got), *want_ = (want);                                  \
		if (!got_ || strcmp(got_, want_)) {                                         \
			fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, \
				__LINE__, #got, got_ ? got_ : "(null)", want_);             \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

#define SKIP(...)                                \
	do {                                     \
		printf("skipped: " __VA_ARGS__); \
		putchar('\n');                   \
		exit(77);                        \
	} while (0)
