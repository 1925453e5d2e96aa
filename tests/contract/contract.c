// SPDX-License-Identifier: MIT
/*
 * contract: runs the cases and prints TAP. See contract.h; `contract --help` for the options.
 * With --act it is the caller of one driver call, which a case can then kill.
 */
#include "contract.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "driver.h"
#include "expected.h"

enum { PASSED = 0, FAILED = 1, SKIPPED = 77, CASE_MS = 90000 };

static const struct contract_case *const tables[] = { state_cases,   cycle_cases, busy_cases,
						      refused_cases, gpu_cases,	  killed_cases };

static struct {
	bool measure, destructive, list;
	const char *only;
} options;

static char scratch[64];

void fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("# ", stdout);
	vprintf(fmt, ap);
	putchar('\n');
	fflush(stdout);
	va_end(ap);
	_exit(FAILED);
}

void skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("# skipped: ", stdout);
	vprintf(fmt, ap);
	putchar('\n');
	va_end(ap);
	fflush(stdout);
	_exit(SKIPPED);
}

const char *scratch_dir(void)
{
	return scratch;
}

bool measuring(void)
{
	return options.measure;
}

void measured(const char *name, int number)
{
	if (options.measure) {
		printf("measured: %s = %d\n", name, number);
		fflush(stdout);
		return;
	}
	for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
		if (strcmp(expected[i].name, name) != 0)
			continue;
		if (expected[i].number != number)
			fail("%s is %d, expected.h says %d", name, number, expected[i].number);
		return;
	}
	fail("%s is %d, expected.h has no such name", name, number);
}

static void __attribute__((noreturn)) case_process(const struct contract_case *c)
{
	char simulated[128];

	setpgid(0, 0);
	/* A simulated machine of its own, so that its memory is what this case makes it. */
	snprintf(simulated, sizeof(simulated), "%s/sim", scratch);
	setenv("BRUMATE_SIM_DIR", simulated, 1);
	driver_open();
	if ((c->needs & NEEDS_TWO_GPUS) && driver_gpu_count() < 2)
		skip("needs two GPUs");
	c->run(c->argument);
	fflush(stdout);
	_exit(PASSED);
}

/* Device memory is free again only when the last process is gone: programs of the case are ours now. */
static void end_group(pid_t group)
{
	kill(-group, SIGKILL);
	while (waitpid(-group, NULL, 0) > 0)
		;
}

/* The case's process ends, or is killed at the deadline; either way its programs end with it. */
static int run_case(const struct contract_case *c)
{
	if ((c->needs & DESTRUCTIVE) && !options.destructive)
		return SKIPPED;

	snprintf(scratch, sizeof(scratch), "/tmp/brumate-contract-XXXXXX");
	if (!mkdtemp(scratch)) {
		printf("# no scratch directory: %s\n", strerror(errno));
		return FAILED;
	}
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		case_process(c);

	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), status = 0;
	struct pollfd poller = { .fd = pidfd, .events = POLLIN };
	if (poll(&poller, 1, CASE_MS) <= 0)
		printf("# still running after %d s\n", CASE_MS / 1000);
	close(pidfd);
	kill(pid, SIGKILL);
	kill(-pid, SIGKILL);
	waitpid(pid, &status, 0);
	end_group(pid);
	remove_tree(AT_FDCWD, scratch);
	return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

static int report(const struct contract_case *c, int result)
{
	if (result == SKIPPED)
		printf("ok %s # SKIP %s\n", c->name,
		       (c->needs & DESTRUCTIVE) && !options.destructive ? "destructive"
									: "not possible here");
	else
		printf("%s %s\n", result == PASSED ? "ok" : "not ok", c->name);
	fflush(stdout);
	return result != PASSED && result != SKIPPED;
}

static bool is_chosen(const struct contract_case *c)
{
	return !options.only || strstr(c->name, options.only);
}

static int run_all(void)
{
	int failed = 0, n = 0;

	for (size_t t = 0; t < sizeof(tables) / sizeof(*tables); t++)
		for (const struct contract_case *c = tables[t]; c->name; c++) {
			if (!is_chosen(c))
				continue;
			n++;
			if (options.list)
				puts(c->name);
			else
				failed += report(c, run_case(c));
		}
	if (!options.list)
		printf("1..%d\n", n);
	return failed || !n;
}

/* The programs load libcuda.so.1 as any program does; this leads them to the one under test. */
static void lead_programs_to_library(void)
{
	char library[4096];

	snprintf(library, sizeof(library), "%s", driver_library());
	if (strchr(library, '/'))
		setenv("LD_LIBRARY_PATH", dirname(library), 1);
}

static int act(const char *action, pid_t pid)
{
	static const struct {
		const char *name;
		int (*fn)(pid_t pid);
	} actions[] = { { "checkpoint", do_checkpoint }, { "unlock", do_unlock } };

	driver_open();
	for (size_t i = 0; i < sizeof(actions) / sizeof(*actions); i++) {
		if (strcmp(actions[i].name, action) != 0)
			continue;
		puts("ready");
		fflush(stdout);
		int result = actions[i].fn(pid);
		printf("result %d\n", result);
		return 0;
	}
	fprintf(stderr, "contract: unknown action %s\n", action);
	return 2;
}

static int usage(FILE *out)
{
	fputs("usage: contract [--measure] [--no-destructive] [--only TEXT] [--list]\n"
	      "       contract --act ACTION PID\n"
	      "Runs the cases on the driver $BRUMATE_CUDA_LIBRARY (libcuda.so.1) and prints TAP.\n",
	      out);
	return out == stderr ? 2 : 0;
}

int main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{ "measure", no_argument, NULL, 'm' },
		{ "no-destructive", no_argument, NULL, 'n' },
		{ "only", required_argument, NULL, 'o' },
		{ "list", no_argument, NULL, 'l' },
		{ "act", required_argument, NULL, 'a' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char *action = NULL;
	int option;

	options.destructive = true;
	while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		if (option == 'm')
			options.measure = true;
		else if (option == 'n')
			options.destructive = false;
		else if (option == 'o')
			options.only = optarg;
		else if (option == 'l')
			options.list = true;
		else if (option == 'a')
			action = optarg;
		else
			return usage(option == 'h' ? stdout : stderr);
	}
	if (action)
		return optind + 1 == argc ? act(action, (pid_t)atoi(argv[optind])) : usage(stderr);
	if (optind != argc)
		return usage(stderr);
	lead_programs_to_library();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return run_all();
}
