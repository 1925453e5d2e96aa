// SPDX-License-Identifier: MIT
/* Signals written to a pipe by their handler; see interrupt.h. */
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static int ends[2] = { -1, -1 };
static volatile sig_atomic_t seen;
static volatile sig_atomic_t exit_on_second;

static void on_signal(int number)
{
	int saved = errno;
	unsigned char byte = (unsigned char)number;

	if (seen && exit_on_second)
		_exit(128 + number);
	seen = 1;
	/* A full pipe already says all there is to say. */
	if (write(ends[1], &byte, 1) < 0)
		errno = saved;
	errno = saved;
}

int interrupt_watch(bool second_exits)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	exit_on_second = second_exits;
	if (ends[0] >= 0)
		return ends[0];
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct sigaction old;

		/* Ignored on purpose (nohup): leave it so. */
		if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
	return ends[0];
}

int interrupt_take(void)
{
	unsigned char byte;

	return ends[0] >= 0 && read(ends[0], &byte, 1) == 1 ? byte : 0;
}
