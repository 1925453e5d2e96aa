// SPDX-License-Identifier: MIT
/*
 * System calls that restored threads make for themselves, as others cannot make them: the shim asks for them in the table
 * (hidden.h), before a thread runs on. CRIU holds all threads, with the registers that they are to have.
 */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "criu-plugin/plugin.h"

enum {
	CALL_STOP = SIGTRAP | 0x80,
	MAPS_BYTES_MAX = 64 << 20,
	VDSO_BYTES_MAX = 64 << 10,
	RED_ZONE_BYTES = 128
};

#if defined(__x86_64__)

typedef struct user_regs_struct registers;
static const unsigned char call_instruction[] = { 0x0f, 0x05 };
enum { INSTRUCTION_STEP = 1 };

static uint64_t stack_of(const registers *r)
{
	return r->rsp;
}

static void set_call(registers *r, uint64_t at, uint64_t number, const uint64_t arguments[static 6])
{
	r->rip = at;
	r->rax = number;
	r->orig_rax = ~0ull; /* it is in no call that could be begun again */
	r->rdi = arguments[0];
	r->rsi = arguments[1];
	r->rdx = arguments[2];
	r->r10 = arguments[3];
	r->r8 = arguments[4];
	r->r9 = arguments[5];
}

static int64_t result_of(const registers *r)
{
	return (int64_t)r->rax;
}

#elif defined(__aarch64__)

typedef struct user_regs_struct registers;
static const unsigned char call_instruction[] = { 0x01, 0x00, 0x00, 0xd4 };
enum { INSTRUCTION_STEP = 4 };

static uint64_t stack_of(const registers *r)
{
	return r->sp;
}

static void set_call(registers *r, uint64_t at, uint64_t number, const uint64_t arguments[static 6])
{
	r->pc = at;
	r->regs[8] = number;
	for (int i = 0; i < 6; i++)
		r->regs[i] = arguments[i];
}

static int64_t result_of(const registers *r)
{
	return (int64_t)r->regs[0];
}

#endif

static int get_registers(pid_t tid, registers *ret)
{
	struct iovec v = { ret, sizeof(*ret) };

	return ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v) < 0 ? -errno : 0;
}

static int set_registers(pid_t tid, const registers *r)
{
	struct iovec v = { (void *)r, sizeof(*r) };

	return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v) < 0 ? -errno : 0;
}

/* Where the kernel's own code in the process makes a system call: it is there in each, and may be run. 0: nowhere. */
static uint64_t find_instruction(pid_t pid)
{
	auto_free char *maps = NULL;
	auto_free unsigned char *code = NULL;
	char path[64];
	unsigned long start = 0, end = 0;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	if (file_read(AT_FDCWD, path, MAPS_BYTES_MAX, &maps, NULL) < 0)
		return 0;
	for (const char *line = maps; line && *line; line = strchr(line, '\n')) {
		const char *next = strchr(line + 1, '\n');
		const char *name = strstr(line, "[vdso]");

		line += *line == '\n';
		if (name && (!next || name < next) && sscanf(line, "%lx-%lx", &start, &end) == 2)
			break;
		start = end = 0;
	}
	if (!start || end - start > VDSO_BYTES_MAX || !(code = malloc(end - start)))
		return 0;
	const struct iovec to = { code, end - start }, from = { (void *)start, end - start };
	if (process_vm_readv(pid, &to, 1, &from, 1, 0) != (ssize_t)(end - start))
		return 0;
	for (size_t i = 0; i + sizeof(call_instruction) <= end - start; i += INSTRUCTION_STEP)
		if (!memcmp(code + i, call_instruction, sizeof(call_instruction)))
			return start + i;
	return 0;
}

/* ---- one call of one thread, which is stopped, and is as it was afterwards ---- */

static int run_to_stop(pid_t tid)
{
	int status;

	if (ptrace(PTRACE_SYSCALL, tid, NULL, NULL) < 0)
		return -errno;
	while (waitpid(tid, &status, __WALL) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFSTOPPED(status) && WSTOPSIG(status) == CALL_STOP ? 0 : -ECANCELED;
}

/* In a thread whose filters of system calls are suspended, where it has any: what is asked for might end it. */
static int begin_tracing(pid_t tid)
{
	const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD;
	char path[64];
	auto_free char *status = NULL;

	if (ptrace(PTRACE_SETOPTIONS, tid, NULL, (void *)(options | PTRACE_O_SUSPEND_SECCOMP)) == 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	int r = file_read(AT_FDCWD, path, 1 << 16, &status, NULL);
	if (r < 0)
		return r;
	if (!strstr(status, "\nSeccomp:\t0\n"))
		return -EPERM;
	return ptrace(PTRACE_SETOPTIONS, tid, NULL, (void *)options) < 0 ? -errno : 0;
}

static int64_t run_call(pid_t tid, const registers *before, const struct hidden_call *c,
			uint64_t instruction)
{
	uint64_t arguments[6];
	uint64_t there = (stack_of(before) - RED_ZONE_BYTES - sizeof(c->mask)) & ~15ull;
	uint64_t saved[HIDDEN_CALL_WORDS];
	const struct iovec from = { (void *)there, sizeof(saved) };
	registers now = *before;
	int64_t result = -EFAULT;

	memcpy(arguments, c->arguments, sizeof(arguments));
	if (c->mask_argument) {
		struct iovec to = { saved, sizeof(saved) };

		if (process_vm_readv(tid, &to, 1, &from, 1, 0) != sizeof(saved))
			return -EFAULT;
		to.iov_base = (void *)c->mask;
		if (process_vm_writev(tid, &to, 1, &from, 1, 0) != sizeof(saved))
			return -EFAULT;
		arguments[c->mask_argument % 6] = there;
	}
	set_call(&now, instruction, c->number, arguments);
	int r = set_registers(tid, &now);
	if (r == 0 && (r = run_to_stop(tid)) == 0 && (r = run_to_stop(tid)) == 0 &&
	    (r = get_registers(tid, &now)) == 0)
		result = result_of(&now);
	if (c->mask_argument) {
		const struct iovec back = { saved, sizeof(saved) };

		process_vm_writev(tid, &back, 1, &from, 1, 0);
	}
	return r < 0 ? r : result;
}

/* The kernel forgets in which critical section (rseq(2)) a thread is when it runs elsewhere. */
struct section {
	uint64_t at, value; /* at 0: the thread has registered no rseq area */
};

static struct section read_section(pid_t tid)
{
	struct __ptrace_rseq_configuration rseq = { 0 };
	struct section s = { 0 };

	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof(rseq), &rseq) < 0 ||
	    !rseq.rseq_abi_pointer)
		return s;
	const uint64_t at = rseq.rseq_abi_pointer + 8;
	const struct iovec to = { &s.value, sizeof(s.value) };
	const struct iovec from = { (void *)at, sizeof(s.value) };
	if (process_vm_readv(tid, &to, 1, &from, 1, 0) == sizeof(s.value))
		s.at = at;
	return s;
}

static void write_section(pid_t tid, const struct section *s)
{
	const struct iovec from = { (void *)&s->value, sizeof(s->value) };
	const struct iovec to = { (void *)s->at, sizeof(s->value) };

	if (s->at && s->value)
		process_vm_writev(tid, &from, 1, &to, 1, 0);
}

static int64_t make_call(pid_t tid, const struct hidden_call *c, uint64_t instruction)
{
	const uint64_t all = ~0ull;
	uint64_t mask;
	registers before;
	int64_t result;
	int r = begin_tracing(tid);

	if (r < 0 || (r = get_registers(tid, &before)) < 0)
		return r;
	const struct section section = read_section(tid);
	if (ptrace(PTRACE_GETSIGMASK, tid, sizeof(mask), &mask) < 0 ||
	    ptrace(PTRACE_SETSIGMASK, tid, sizeof(all), &all) < 0)
		return -errno;
	result = run_call(tid, &before, c, instruction);
	r = set_registers(tid, &before);
	if (ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask) < 0)
		r = -errno;
	write_section(tid, &section);
	return r < 0 ? r : result;
}

/* ---- what a process is asked for ---- */

static int64_t make_calls(pid_t pid, pid_t tid, const struct hidden_call *c, uint64_t instruction)
{
	char path[64];
	int64_t result = 0;

	if (tid)
		return make_call(tid, c, instruction);
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.') {
			int64_t one = make_call((pid_t)atoi(e->d_name), c, instruction);

			result = one < 0 ? one : result;
		}
	return dir ? result : -errno;
}

int64_t calls_make(const struct hidden_table *t, pid_t pid)
{
	uint32_t n = atomic_load_explicit(&t->calls.n, memory_order_acquire);
	uint64_t instruction = 0;
	int64_t result = 0;

	for (uint32_t i = 0; i < n && i < HIDDEN_CALLS_MAX; i++) {
		const struct hidden_call *c = &t->calls.items[i];

		if (c->pid != pid)
			continue;
		if (!instruction && !(instruction = find_instruction(pid)))
			return -ENOEXEC;
		int64_t one = make_calls(pid, (pid_t)c->tid, c, instruction);
		result = one < 0 ? one : result;
	}
	return result;
}
