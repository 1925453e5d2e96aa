// SPDX-License-Identifier: MIT
/* The command line and the loop of steps; see program.h. */
#include "program.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"

static const struct option long_options[] = {
	{ "steps", required_argument, NULL, 's' },
	{ "interval-ms", required_argument, NULL, 'i' },
	{ "busy-ms", required_argument, NULL, 'b' },
	{ "mib", required_argument, NULL, 'm' },
	{ "chunk-mib", required_argument, NULL, 'c' },
	{ "leave-mib", required_argument, NULL, 'l' },
	{ "gpu", required_argument, NULL, 'g' },
	{ "port", required_argument, NULL, 'p' },
	{ "path", required_argument, NULL, 'f' },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

static void __attribute__((noreturn)) usage_exit(FILE *out, const char *usage, int status)
{
	fprintf(out, "usage: %s\n", usage);
	exit(status);
}

static uint64_t number(const char *text, uint64_t max, const char *usage)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value > max) {
		fprintf(stderr, "bad number: %s\n", text);
		usage_exit(stderr, usage, 2);
	}
	return value;
}

static void take_option(struct options *ret, int option, const char *usage)
{
	switch (option) {
	case 's':
		ret->steps = number(optarg, UINT64_MAX, usage);
		break;
	case 'i':
		ret->interval_ms = (unsigned int)number(optarg, UINT_MAX, usage);
		break;
	case 'b':
		ret->busy_ms = (unsigned int)number(optarg, UINT_MAX, usage);
		break;
	case 'm':
		ret->mib = number(optarg, SIZE_MAX >> 20, usage);
		break;
	case 'c':
		ret->chunk_mib = number(optarg, SIZE_MAX >> 20, usage);
		break;
	case 'l':
		ret->leave_mib = number(optarg, SIZE_MAX >> 20, usage);
		break;
	case 'g':
		ret->gpu = (int)number(optarg, 1024, usage);
		break;
	case 'p':
		ret->port = (int)number(optarg, 65535, usage);
		break;
	case 'f':
		ret->path = optarg;
		break;
	case 'h':
		usage_exit(stdout, usage, 0);
	default:
		usage_exit(stderr, usage, 2);
	}
}

void options_parse(struct options *ret, int argc, char **argv, const char *usage)
{
	int option;

	while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
		take_option(ret, option, usage);
	if (optind < argc)
		ret->word = argv[optind++];
	if (optind < argc)
		usage_exit(stderr, usage, 2);
	if (!ret->mib || !ret->chunk_mib) {
		fprintf(stderr, "--mib and --chunk-mib: at least 1\n");
		usage_exit(stderr, usage, 2);
	}
}

void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

static void pause_ms(unsigned int ms)
{
	struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

void steps_run(const struct options *options, step_fn step, void (*prefix)(void *state),
	       void *state)
{
	say("ready pid %d", (int)getpid());
	for (uint64_t n = 1; !options->steps || n <= options->steps; n++) {
		bool right = step(state, n);

		flockfile(stdout); /* threads take steps beside each other: a line is of one of them */
		if (prefix)
			prefix(state);
		say("step %llu %s", (unsigned long long)n, right ? "OK" : "BAD");
		funlockfile(stdout);
		if (!right)
			exit(1);
		pause_ms(options->interval_ms);
	}
}

void links_make(int *links, unsigned int max, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		for (unsigned int k = 0; k < i; k++) {
			int pair[2];

			if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
				die("socketpair: %s", strerror(errno));
			links[i * max + k] = pair[0];
			links[k * max + i] = pair[1];
		}
}
