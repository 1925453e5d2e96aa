// SPDX-License-Identifier: MIT
/*
 * What tests say to libfaulty.so: a file of this layout, named by BRUMATE_TEST_FAULTY and mapped by each of our
 * programs. tests/integration/faulty.py writes it. All numbers are little-endian, as the machine is.
 */
#pragma once

#include <stdint.h>

enum { FAULTY_RULES = 8, FAULTY_PROGRAM_BYTES = 32 };
enum { FAULTY_SITES = 8192, FAULTY_WHERE_BYTES = 128 };

/* Which calls count; a bit each. */
enum {
	FAULTY_MEMORY = 1 << 0, /* malloc, calloc, realloc, mmap */
	FAULTY_OPEN = 1 << 1,	/* open, openat, dup, memfd, pipes, eventfd: what takes a descriptor */
	FAULTY_WRITE = 1 << 2,	/* write, pwrite, writev, ftruncate */
	FAULTY_SYNC = 1 << 3,	/* fsync, fdatasync */
	FAULTY_NAME = 1 << 4,	/* rename, link, unlink, mkdir */
	FAULTY_SOCKET = 1 << 5, /* socket, bind, connect, accept, send, receive */
	FAULTY_START = 1 << 6,	/* fork, clone, threads */
	FAULTY_READ = 1 << 7,	/* read, pread */
};

struct faulty_rule {
	char program[FAULTY_PROGRAM_BYTES]; /* whose calls: the name it was started by; empty: no rule */
	uint32_t calls;
	int32_t error;	   /* errno; 0: a write that is cut short */
	uint64_t nth;	   /* which call fails, from 1 on */
	uint64_t n_passed; /* how many there were since the rule was made, counted by all such processes */
	uint64_t n_failed;
	uint64_t site; /* only calls made there count; 0: all do */
};

/* Where calls are made: those whose innermost functions were called from the same places. */
struct faulty_site {
	uint64_t site; /* 0: free */
	char program[FAULTY_PROGRAM_BYTES];
	uint64_t call;
	char where[FAULTY_WHERE_BYTES]; /* the callers, as OBJECT+OFFSET */
};

struct faulty {
	int64_t clock_offset_ns; /* added to the time of day */
	struct faulty_rule rules[FAULTY_RULES];
	uint64_t notes_sites; /* all calls that count are noted by their site */
	struct faulty_site sites[FAULTY_SITES];
};
