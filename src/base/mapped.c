// SPDX-License-Identifier: MIT
/* Copies of what may not be there; see mapped.h. */
#include "base/mapped.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>

static _Thread_local sigjmp_buf *volatile way_out; /* NULL: the thread copies nothing */

/* The kernel sends it to the thread whose access it is. Any other ends the process when the instruction is run again, or
 * when it is sent once more. */
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

int mapped_copy(void *to, const void *from, size_t len_bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigjmp_buf here;

	pthread_once(&once, set_handler);
	if (sigsetjmp(here, 1)) {
		way_out = NULL;
		return -EFAULT;
	}
	way_out = &here;
	memcpy(to, from, len_bytes);
	way_out = NULL;
	return 0;
}
