// SPDX-License-Identifier: MIT
/*
 * Trees of processes, and processes with little or no GPU state. A child answers one byte a step
 * over a socket pair, so a child that is gone or wrong shows in the parent's next step; when the
 * parent goes, the child reads the end of its socket and goes too.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "kinds.h"

#define MIB ((size_t)1 << 20)

static struct gpu gpu;
static struct array memory;
static int child_socket;

bool step_nothing(void *state, uint64_t n)
{
	return true;
}

static void setup_none(const struct options *options)
{
}

static void setup_idle(const struct options *options)
{
	cuda_load();
	CHECKED(cuInit(0));
}

static void use_gpu(const struct options *options)
{
	gpu_open(&gpu, options->gpu);
	array_alloc(&memory, &gpu, 1, options->mib * MIB);
}

static void __attribute__((noreturn)) child_main(int fd, const struct options *options)
{
	char byte;

	if (options)
		use_gpu(options);
	while (read(fd, &byte, 1) == 1) {
		bool right = true;

		if (options) {
			array_add(&memory, NULL);
			right = array_check(&memory, NULL);
		}
		byte = right ? '+' : '-';
		if (write(fd, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

/* @child_options: what the child does on the GPU; NULL for nothing. */
static void start_child(const struct options *child_options)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		die("socketpair: %s", strerror(errno));

	pid_t pid = fork();
	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (pid == 0) {
		close(pair[0]);
		child_main(pair[1], child_options);
	}
	close(pair[1]);
	child_socket = pair[0];
	say("child %d", (int)pid);
}

static void setup_fork_child(const struct options *options)
{
	start_child(NULL);
	use_gpu(options);
}

static void setup_fork_after(const struct options *options)
{
	use_gpu(options);
	start_child(NULL);
}

static void setup_fork_before(const struct options *options)
{
	start_child(options);
	use_gpu(options);
}

static bool child_is_right(void)
{
	char byte = '?';

	return write(child_socket, &byte, 1) == 1 && read(child_socket, &byte, 1) == 1 &&
	       byte == '+';
}

static bool step_with_child(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	return array_check(&memory, NULL) && child_is_right();
}

const struct kind process_kinds[] = {
	{ "fork-child", "a child, forked before the GPU is used", setup_fork_child,
	  step_with_child },
	{ "fork-after", "a child, forked when the GPU is in use", setup_fork_after,
	  step_with_child },
	{ "fork-before", "a child that uses the GPU too", setup_fork_before, step_with_child },
	{ "idle", "the driver initialised, no context", setup_idle, step_nothing },
	{ "none", "no GPU at all", setup_none, step_nothing },
	{ NULL },
};
