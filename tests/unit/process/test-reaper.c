// SPDX-License-Identifier: MIT
/* brumate-reaper, the argument, outlives a CRIU that ends in the middle of a call that it makes in the reaper's place. */
#include "check.h"
#include "base/cleanup.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS = 7, TIMES = 3 };

#if defined(__x86_64__)
static int to_command[2], from_reaper[2];

static void run_command(void)
{
	char byte;

	close(to_command[1]);
	close(from_reaper[1]);
	_exit(read(to_command[0], &byte, 1) == 0 ? STATUS : 1);
}

/* It says by the end of its descriptor 0 that it runs. */
static void run_reaper(const char *path)
{
	char text[16];
	pid_t command = fork();

	if (!command)
		run_command();
	snprintf(text, sizeof(text), "%d", command);
	if (command < 0 || dup2(from_reaper[1], 0) < 0)
		_exit(1);
	for (int fd = 3; fd < 64; fd++)
		close(fd);
	execl(path, "brumate-reaper", text, NULL);
	perror(path);
	_exit(1);
}

static pid_t start_reaper(const char *path)
{
	char byte;
	pid_t pid;

	CHECK(pipe(to_command) == 0 && pipe(from_reaper) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		run_reaper(path);
	close(to_command[0]);
	close(from_reaper[1]);
	CHECK(read(from_reaper[0], &byte, 1) == 0);
	return pid;
}

static uint64_t first_code(pid_t pid)
{
	char path[32], line[512], flags[5];
	uint64_t start = 0;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	auto_fclose FILE *maps = fopen(path, "re");
	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%*x %4s", &start, flags) == 2 && flags[2] == 'x')
			return start;
	CHECK(!"no code");
	return 0;
}

/* What CRIU has done to a task up to the moment before it would hear of the end of its call (4.2.1). */
static void end_in_the_middle(pid_t pid)
{
	static const unsigned char call[8] = { 0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc };
	const uint64_t all_but_trap = ~(1ull << (SIGTRAP - 1));
	struct user_regs_struct regs;
	long word;
	int status;

	CHECK(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
	CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &regs) == 0);
	memcpy(&word, call, sizeof(word));
	regs.rip = first_code(pid);
	CHECK(ptrace(PTRACE_POKETEXT, pid, regs.rip, word) == 0);
	regs.rax = SYS_getpid;
	regs.orig_rax = (unsigned long)-1;
	CHECK(ptrace(PTRACE_SETREGS, pid, NULL, &regs) == 0);
	CHECK(ptrace(PTRACE_SETSIGMASK, pid, sizeof(all_but_trap), &all_but_trap) == 0);
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
}

int main(int argc, char **argv)
{
	pid_t pid = start_reaper(argv[1]);
	int status;

	for (int i = 0; i < TIMES; i++)
		end_in_the_middle(pid);
	close(to_command[1]);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == STATUS);
	return 0;
}
#else
int main(void)
{
	SKIP("knows CRIU's calls on x86-64 alone");
}
#endif
