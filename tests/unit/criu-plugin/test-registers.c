// SPDX-License-Identifier: MIT
/*
 * Registers that CRIU does not save. Few processors have tiles (AMX), so here those of AVX stand in for them, as if CRIU did not save
 * those: a thread has them in use from the first instruction that fills them to the one that clears them. What needs tiles is only
 * seen where there are some.
 */
#include "check.h"
#include "criu-plugin/registers.h"
#include "criu-plugin/tracee.h"
#include "sanitized.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

/* ---- bytes ---- */

static void test_areas(void)
{
	static const uint64_t saved = REGISTERS_SAVED, tiles = 3ull << 17, apx = 1ull << 19;
	uint8_t area[576] = { 0 };
	const struct {
		uint64_t in_use, lost;
	} cases[] = { { 0, 0 },
		      { 0xe7, 0 },
		      { 0x2ff, 0 },
		      { tiles | 0xe7, tiles },
		      { 1ull << 17, 1ull << 17 },
		      { apx | 3, apx },
		      { 1ull << 8, 1ull << 8 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		memcpy(area + 512, &cases[i].in_use, sizeof(cases[i].in_use));
		CHECK(registers_lost(area, sizeof(area), saved) == cases[i].lost);
		CHECK(registers_lost(area, 519, saved) == 0);
	}
}

static uint64_t decode(const char *text, pid_t pid)
{
	return registers_decode(text, strlen(text), pid);
}

static void test_records(void)
{
	CHECK(decode("5 40000\n17 80000\n", 5) == 0x40000);
	CHECK(decode("5 40000\n17 80000\n", 17) == 0x80000);
	CHECK(decode("5 40000\n17 80000\n", 0) == 0xc0000);
	CHECK(decode("5 40000\n17 80000\n", 1) == 0);
	CHECK(decode("", 5) == 0 && decode("5", 5) == 0 && decode("5 40000", 5) == 0);
	CHECK(decode("5 40000 1\n", 5) == 0 && decode("x\n5 1\n", 5) == 1);
}

#if defined(__x86_64__)

/* ---- traced processes ---- */

static atomic_ullong *shared; /* what a process counts; whether it is traced; whether it is to end */

static pid_t start(void (*fn)(void))
{
	int status;
	pid_t pid;

	atomic_store(shared, 0);
	atomic_store(&shared[1], 0);
	atomic_store(&shared[2], 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (!atomic_load(&shared[1])) /* not before it is traced, as it may end soon */
			;
		fn();
		_exit(0);
	}
	CHECK(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0);
	atomic_store(&shared[1], 1);
	while (!atomic_load(shared))
		;
	CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	return pid;
}

static void let_end(pid_t pid)
{
	int status;

	atomic_store(&shared[2], 1);
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void kill_it(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* Makes system calls without pause, each of which must return what it does. */
static void call(void)
{
	const pid_t pid = getpid(), parent = getppid();

	while (!atomic_load(&shared[2])) {
		if (syscall(SYS_getpid) != pid || syscall(SYS_getppid) != parent ||
		    syscall(SYS_lseek, -1, 0, 0) != -1 || errno != EBADF)
			_exit(1);
		atomic_fetch_add(shared, 1);
	}
}

static void run_on(pid_t pid)
{
	int status;

	CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
}

/* It may have been stopped in one, and not have run since: then a step does not begin where the caller of one lets it. */
static void leave_call(pid_t pid)
{
	while (tracee_is_in_call(pid) != 0)
		run_on(pid);
}

static void test_steps_to_calls(void)
{
	enum tracee_stop at = TRACEE_ELSEWHERE;
	pid_t pid = start(call);
	int n_at_calls = 0;

	leave_call(pid);
	for (int i = 0; i < 100; i++) {
		unsigned long long before = atomic_load(shared);
		CHECK(tracee_step(pid, 200, &at) == 0);
		CHECK(at == TRACEE_AT_CALL || at == TRACEE_INTERRUPTED);
		n_at_calls += at == TRACEE_AT_CALL;
		CHECK(atomic_load(shared) - before <= 1); /* no further than to a call */
		CHECK(tracee_is_in_call(pid) == 0);
	}
	CHECK(n_at_calls > 0);
	let_end(pid);
}

/* The one that it stands before. */
static void make_call(pid_t pid)
{
	int status;

	for (int edge = 0; edge < 2; edge++) {
		CHECK(ptrace(PTRACE_SYSCALL, pid, NULL, NULL) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	}
	CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
}

static int is_never_enough(pid_t pid, void *arg)
{
	(*(unsigned *)arg)++;
	return 0;
}

static void test_walks_to_calls(void)
{
	enum tracee_stop at = TRACEE_ELSEWHERE;
	pid_t pid = start(call);
	unsigned n_instructions = 0;

	leave_call(pid);
	for (int i = 0; i < 100; i++) {
		unsigned n = 0;
		unsigned long long before = atomic_load(shared);
		CHECK(tracee_walk(pid, deadline_in_ms(20000), is_never_enough, &n, &at) == 0);
		CHECK(at == TRACEE_AT_CALL);
		n_instructions += n;
		CHECK(atomic_load(shared) - before <= 1 && tracee_is_in_call(pid) == 0);
		make_call(pid);
	}
	CHECK(n_instructions > 0);
	let_end(pid);
}

/* ---- calls ---- */

static void sleep_once(void)
{
	const struct timespec awhile = { .tv_sec = 5 };
	struct timespec start, end;

	clock_gettime(CLOCK_MONOTONIC, &start);
	atomic_store(shared, 1);
	if (syscall(SYS_nanosleep, &awhile, NULL) < 0)
		_exit(1);
	clock_gettime(CLOCK_MONOTONIC, &end);
	_exit((end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec <
	      awhile.tv_sec * 1000000000);
}

static void count(void)
{
	volatile unsigned char below[4096];

	memset((void *)below, 0x5a, sizeof(below));
	while (!atomic_load(&shared[2]))
		atomic_fetch_add(shared, 1);
	for (size_t i = 0; i < sizeof(below); i++)
		if (below[i] != 0x5a)
			_exit(1);
}

static void calls_are_made_in(void (*fn)(void))
{
	enum { GET_PERMITTED = 0x1022 };
	pid_t pid = start(fn);
	uint64_t own = 0, its = 0;
	int64_t result = 0;

	CHECK(tracee_call(pid, SYS_getpid, 0, 0, &result) == 0 && result == pid);
	CHECK(tracee_call(pid, SYS_close, 1000, 0, &result) == 0 && result == -EBADF);
	if (syscall(SYS_arch_prctl, GET_PERMITTED, &own) == 0) /* from Linux 5.16 on */
		CHECK(tracee_ask(pid, SYS_arch_prctl, GET_PERMITTED, &its) == 0 && its == own);
	CHECK(tracee_ask(pid, SYS_arch_prctl, 1, &its) == -EINVAL);
	let_end(pid);
}

/* ---- components in use ---- */

enum { AVX = 1 << 2 };

static void fill(void)
{
	__asm__ volatile("vpcmpeqd %%ymm7, %%ymm7, %%ymm7" : : : "xmm7");
}

static void clear(void)
{
	__asm__ volatile("vzeroall" : : : "memory");
}

static void spin_us(unsigned us)
{
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000000 + (now.tv_nsec - start.tv_nsec) / 1000 < us);
}

static void fill_and_clear(void)
{
	for (;;) {
		fill();
		atomic_fetch_add(shared, 1);
		for (volatile int i = 0; i < 3000000; i++)
			;
		clear();
		for (volatile int i = 0; i < 300000; i++)
			;
	}
}

/* A pause of one instruction. */
static void fill_nearly_always(void)
{
	for (;;) {
		fill();
		atomic_fetch_add(shared, 1);
		for (volatile int i = 0; i < 300; i++)
			;
		clear();
	}
}

static int has_no_avx(pid_t pid, void *arg)
{
	const uint64_t saved = REGISTERS_SAVED & ~(uint64_t)AVX;
	uint64_t area[80] = { 0 };
	struct iovec io = { area, sizeof(area) };

	CHECK(ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &io) == 0);
	return !registers_lost(area, io.iov_len, saved);
}

static void test_short_pauses(void)
{
	enum tracee_stop at = TRACEE_ELSEWHERE;
	pid_t pid = start(fill_nearly_always);

	for (int i = 0; i < 20; i++) {
		CHECK(tracee_walk(pid, deadline_in_ms(20000), has_no_avx, NULL, &at) == 1);
		CHECK(at == TRACEE_INTERRUPTED && has_no_avx(pid, NULL)); /* it stands still */
		CHECK(tracee_step(pid, 100, &at) == 0 && at == TRACEE_INTERRUPTED);
	}
	kill_it(pid);
}

static void hold(void)
{
	fill();
	atomic_store(shared, 1);
	for (;;)
		;
}

static void hold_in_call(void)
{
	fill();
	atomic_store(shared, 1);
	for (;;)
		__asm__ volatile("syscall" : : "a"(SYS_pause) : "rcx", "r11", "memory");
}

static void test_components(void)
{
	const uint64_t saved = REGISTERS_SAVED & ~(uint64_t)AVX;
	struct registers_kept kept = { 0 };
	pid_t pid = start(fill_and_clear);
	int status;

	for (int i = 0; i < 20; i++) {
		CHECK(registers_settle(pid, saved, &kept) == 0);
		CHECK(registers_settle(pid, saved, &kept) == 0); /* it stands still */
		CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
		spin_us(3000);
		CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	}
	kill_it(pid);
	pid = start(hold);
	CHECK(registers_settle(pid, REGISTERS_SAVED, &kept) == 0);
	CHECK(registers_settle(pid, saved, &kept) == 1 && kept.tid == pid && kept.lost == AVX);
	kill_it(pid);
	pid = start(hold_in_call);
	CHECK(registers_settle(pid, saved, &kept) == 1 && kept.tid == pid && kept.lost == AVX);
	kill_it(pid);
}

/* ---- permission ---- */

enum { TILES = 18, REQUEST = 0x1023 };

static int images_fd;

static void write_record(pid_t pid)
{
	char text[32];
	int fd = openat(images_fd, "brumate-registers.img", O_WRONLY | O_CREAT | O_TRUNC, 0600);

	snprintf(text, sizeof(text), "%d 40000\n", pid);
	CHECK(fd >= 0 && fd_write_full(fd, text, strlen(text)) == 0);
	close(fd);
}

static void ask_for_tiles(void)
{
	CHECK(syscall(SYS_arch_prctl, REQUEST, TILES) == 0);
	count();
}

static void test_permission(void)
{
	char dir[] = "/tmp/brumate-registers-test-XXXXXX";
	uint64_t supported = 0;
	pid_t pid;

	CHECK(mkdtemp(dir));
	images_fd = open(dir, O_RDONLY | O_DIRECTORY);
	CHECK(images_fd >= 0 && registers_check_permissions(images_fd) == 0);
	syscall(SYS_arch_prctl, 0x1021, &supported);
	const bool has_tiles = supported >> TILES & 1;

	pid = start(count);
	CHECK(registers_dump_permission(images_fd, pid) == 0 &&
	      registers_restore_permission(images_fd, pid) == 0);
	write_record(pid);
	CHECK(registers_check_permissions(images_fd) == (has_tiles ? 0 : -EOPNOTSUPP));
	CHECK(registers_restore_permission(images_fd, pid) == (has_tiles ? 0 : -EOPNOTSUPP));
	write_record(pid + 1);
	CHECK(registers_restore_permission(images_fd, pid) == 0);
	let_end(pid);
	CHECK(unlinkat(images_fd, "brumate-registers.img", 0) == 0);
	if (has_tiles) {
		pid = start(ask_for_tiles);
		CHECK(registers_dump_permission(images_fd, pid) == 1);
		let_end(pid);
		CHECK(unlinkat(images_fd, "brumate-registers.img", 0) == 0);
	} else {
		printf("no tiles here\n");
	}
	CHECK(rmdir(dir) == 0);
}

static void test_traced(void)
{
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	test_steps_to_calls();
	test_walks_to_calls();
	calls_are_made_in(count);
	calls_are_made_in(sleep_once);
	calls_are_made_in(call);
	if (__builtin_cpu_supports("avx2")) {
		test_components();
		test_short_pauses();
	}
	test_permission();
}

#else

static void test_traced(void)
{
}

#endif

int main(void)
{
	test_areas();
	test_records();
	if (SANITIZED_THREADS)
		SKIP("the thread sanitizer has a thread of its own, which nobody traces");
	test_traced();
	return 0;
}
