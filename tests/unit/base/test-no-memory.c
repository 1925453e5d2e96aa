// SPDX-License-Identifier: MIT
/* libcrypto in a process in which a call for memory fails, whichever it is: it works, or what needs it says so. */
#include "base/chunk.h"
#include "base/digest.h"
#include "base/seal.h"
#include "check.h"
#include "sanitized.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if !SANITIZED

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

static int n_calls, failing_call; /* from 1; 0: none */

static bool fails(void)
{
	if (++n_calls != failing_call)
		return false;
	errno = ENOMEM;
	return true;
}

/* For the libraries, too. */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

EXPORTED void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

EXPORTED void *realloc(void *p, size_t size)
{
	return fails() ? NULL : __libc_realloc(p, size);
}

static int use_nothing(void)
{
	return 0;
}

static int use_buffer(void)
{
	struct digest d;

	return digest_buffer(&d, "a", 1);
}

static int use_run(void)
{
	struct digest_run *run;
	int r = digest_begin(&run);

	if (r == 0)
		digest_run_free(run);
	return r;
}

static int use_chunk(void)
{
	struct digest d;

	return chunk_digest(&d, "a", 1);
}

static int use_key(void)
{
	const struct seal_key from = { .bytes = "a" };
	struct seal_key key;

	return seal_derive(&key, &from, "test", NULL, 0);
}

static int use_box(void)
{
	const struct seal_key key = { .bytes = "a" };
	uint8_t box[1 + SEAL_EXTRA_BYTES];

	return seal_close(box, &key, SEAL_WITH_NOTHING, "a", 1);
}

static int use_set_up(int (*use)(void))
{
	int r = digest_set_up();

	/* What was not to be had then is had the next time: such a process may live for weeks. */
	if (r == 0 && (r = use()) < 0)
		CHECK(use() == 0);
	return r;
}

/* How many calls for memory there are in a process whose first use of libcrypto is this one, the @nth of which fails. */
static int calls_where(int nth, int (*use)(void), bool sets_up)
{
	int fds[2], n = 0, status;

	CHECK(pipe(fds) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		n_calls = 0;
		failing_call = nth;
		int r = sets_up ? use_set_up(use) : use();
		/* Memory that libcrypto can do without may be what it did not get. */
		CHECK(r == 0 || (r == -ENOMEM && n_calls >= nth));
		CHECK(write(fds[1], &n_calls, sizeof(n_calls)) == sizeof(n_calls));
		_exit(0);
	}
	close(fds[1]);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(read(fds[0], &n, sizeof(n)) == sizeof(n));
	close(fds[0]);
	return n;
}

int main(void)
{
	/* It sets itself up in the first of them, about fifty; some thousand others are for each cipher and text. */
	enum { FIRST = 80, STEP = 397 };
	int (*const uses[])(void) = { use_buffer, use_run, use_chunk, use_key, use_box };

	CHECK(calls_where(0, use_buffer, false) > 100); /* those of libcrypto are seen */
	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++)
		for (int nth = 1; calls_where(nth, uses[i], false) >= nth;
		     nth += nth < FIRST ? 1 : STEP)
			;
	const int n_set_up = calls_where(0, use_nothing, true);
	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
		for (int nth = 1; nth <= n_set_up; nth += nth < FIRST ? 1 : STEP)
			calls_where(nth, uses[i], true);
		for (int nth = n_set_up + 1; calls_where(nth, uses[i], true) >= nth; nth++)
			;
	}
	return 0;
}

#else

int main(void)
{
	SKIP("the calls for memory are the sanitizer's");
}

#endif
