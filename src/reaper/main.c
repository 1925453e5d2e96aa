// SPDX-License-Identifier: MIT
/*
 * brumate-reaper PID: the root of a job's tree. Process PID, its child, runs the job's command. As a subreaper, it
 * also becomes the parent of any process of the job that loses its own. It waits until it has no children left, and
 * then ends as PID did. So all processes of a job are one tree even if the shim ends, and CRIU can dump it.
 *
 * It closes descriptor 0 as soon as it runs, which signals its start to the shim.
 *
 * It is dumped and restored with the job, and is part of every job: it opens no file, has no heap and is linked with
 * nothing, not even the C library, so that a checkpoint depends on nothing more than this file and costs three pages.
 *
 * If CRIU ends suddenly, it may leave this process in the middle of injected code that ends in a trap. The job must
 * not lose its root by that, so the process then starts again from the beginning, which loses nothing: its work has
 * no state.
 */
#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/resource.h>
#include <linux/signal.h>
#include <linux/wait.h>

/* CRIU injects its code at the start of the first page of code, and may end before it restores that. */
__asm__(".pushsection .text.unlikely, \"ax\"\n"
	"	.skip 64\n"
	".popsection\n");

#if defined(__x86_64__)
__asm__(".globl _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call reaper_main\n");
#define ENTER_WITH_STACK "mov %0, %%rsp\n\tjmp _start"

static long call4(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n"
	"_start:\n"
	"	mov x29, #0\n"
	"	mov x0, sp\n"
	"	bl reaper_main\n");
#define ENTER_WITH_STACK "mov sp, %0\n\tb _start"

static long call4(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "brumate-reaper does not know how this machine calls the kernel"
#endif

enum { JOB_FILE_FD = 3 }; /* shim/spawn.c */

_Noreturn void reaper_main(const long *stack);

static long parse_pid(const char *text)
{
	long pid = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		pid = pid * 10 + (*text - '0');
	return pid;
}

static void set_action(int number, __sighandler_t handler)
{
	const struct sigaction action = {
		.sa_handler = handler,
#ifdef SA_RESTORER
		.sa_flags = SA_RESTORER /* the handler never returns */
#endif
	};

	call4(__NR_rt_sigaction, number, (long)&action, 0, sizeof(action.sa_mask));
}

/* Ends by the same signal as the command, so that the job's status is that of the command; without another core file. */
static void end_by_signal(int number)
{
	const struct rlimit64 none = { 0, 0 };
	const unsigned long no_signals = 0;

	/* The trap handler would start the program again, for ever. */
	set_action(number, SIG_DFL);
	call4(__NR_prlimit64, 0, RLIMIT_CORE, (long)&none, 0);
	call4(__NR_rt_sigprocmask, SIG_SETMASK, (long)&no_signals, 0, sizeof(no_signals));
	call4(__NR_kill, call4(__NR_getpid, 0, 0, 0, 0), number, 0, 0);
}

static const long *first_stack;
static int command_status; /* 0: it has not ended */

static void begin_anew(int signal)
{
	__asm__ volatile(ENTER_WITH_STACK : : "r"(first_stack) : "memory");
}

/* Closes descriptor 0, which reports the start, and descriptors that CRIU's code may have left open, which could not
 * be saved. */
static void close_all(void)
{
	call4(__NR_close_range, 0, JOB_FILE_FD - 1, 0, 0);
	call4(__NR_close_range, JOB_FILE_FD + 1, ~0u, 0, 0);
}

/* These signals have no effect here. If the first two were blocked, they would stay pending and be saved, and CRIU
 * cannot restore a process with a pending SIGCONT. And a process that blocks all signals looks as if CRIU's code were
 * in it (criu/heal.c). */
static void block_signals(void)
{
	const unsigned long signals =
		~(1ul << (SIGCONT - 1) | 1ul << (SIGCHLD - 1) | 1ul << (SIGTRAP - 1));

	call4(__NR_rt_sigprocmask, SIG_SETMASK, (long)&signals, 0, sizeof(signals));
}

void reaper_main(const long *stack)
{
	/* The stack holds the count of arguments, then the arguments. */
	const long command = stack[0] > 1 ? parse_pid((const char *)stack[2]) : 0;
	int status = 0;
	long pid;

	first_stack = stack;
	set_action(SIGTRAP, begin_anew);
	/* Signals that are meant for the command must not end this process. */
	block_signals();
	close_all();
	while ((pid = call4(__NR_wait4, -1, (long)&status, __WALL, 0)) != -ECHILD) {
		block_signals(); /* a CRIU that ended suddenly may have left another mask */
		if (pid == command)
			command_status = status;
	}
	if (command_status & 0x7f)
		end_by_signal(command_status & 0x7f);
	for (;;)
		call4(__NR_exit_group, command_status >> 8 & 0xff, 0, 0, 0);
}
