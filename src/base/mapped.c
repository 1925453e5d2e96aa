// SPDX-License-Identifier: MIT
/* Copies from mappings that may lose their pages; see mapped.h. */
#include "base/mapped.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { LINE_BYTES = 64, PAGE_BYTES = 4096, BLOCK_BYTES = 4 * PAGE_BYTES };

static _Thread_local sigjmp_buf *volatile way_out; /* NULL: the thread is not copying */

/* The kernel sends SIGBUS to the thread that made the access. Any other SIGBUS ends the process: when the instruction
 * is executed again, or by sending the signal once more. */
static void leave_copy(int number, siginfo_t *info, void *context)
{
	(void)context;
	if (way_out && info->si_code > 0)
		siglongjmp(*way_out, 1);
	signal(number, SIG_DFL);
	if (info->si_code <= 0)
		raise(number);
}

static void set_handler(void)
{
	const struct sigaction action = { .sa_sigaction = leave_copy, .sa_flags = SA_SIGINFO };

	sigaction(SIGBUS, &action, NULL);
}

#ifdef __SSE2__
static void copy_line(char *to, const char *from)
{
	const __m128i *in = (const __m128i *)from;
	__m128i *out = (__m128i *)to;
	__m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
	__m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);

	_mm_stream_si128(out, a);
	_mm_stream_si128(out + 1, b);
	_mm_stream_si128(out + 2, c);
	_mm_stream_si128(out + 3, d);
}

/* Copies from several pages alternately: a processor's read-ahead stops at the end of each page, and this way it
 * reads ahead in all of them. */
static void copy_block(char *to, const char *from)
{
	for (size_t i = 0; i < PAGE_BYTES; i += LINE_BYTES)
		for (size_t at = i; at < BLOCK_BYTES; at += PAGE_BYTES)
			copy_line(to + at, from + at);
}

static void copy_past_cache(char *to, const char *from, size_t len_bytes)
{
	size_t whole = (uintptr_t)to % LINE_BYTES ? 0 : len_bytes - len_bytes % BLOCK_BYTES;

	for (size_t at = 0; at < whole; at += BLOCK_BYTES)
		copy_block(to + at, from + at);
	_mm_sfence();
	memcpy(to + whole, from + whole, len_bytes - whole);
}
#else
static void copy_past_cache(char *to, const char *from, size_t len_bytes)
{
	memcpy(to, from, len_bytes);
}
#endif

/* Separate from the caller of sigsetjmp(), so that siglongjmp() returns to a function whose variables never change. */
__attribute__((noinline)) static void copy_bytes(void *to, const void *from, size_t len_bytes,
						 bool past_cache)
{
	if (past_cache)
		copy_past_cache(to, from, len_bytes);
	else
		memcpy(to, from, len_bytes);
}

int mapped_copy(void *to, const void *from, size_t len_bytes, bool past_cache)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigjmp_buf here;

	pthread_once(&once, set_handler);
	if (sigsetjmp(here, 1)) {
		way_out = NULL;
		return -EFAULT;
	}
	way_out = &here;
	atomic_signal_fence(memory_order_seq_cst); /* the whole copy stays between the two */
	copy_bytes(to, from, len_bytes, past_cache);
	atomic_signal_fence(memory_order_seq_cst);
	way_out = NULL;
	return 0;
}
