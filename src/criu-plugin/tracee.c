// SPDX-License-Identifier: MIT
/* A few steps of a thread that we trace; see tracee.h. */
#include "criu-plugin/tracee.h"

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
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

enum { VDSO_BYTES = 8192, AUXV_BYTES_MAX = 4096 };

int tracee_inner_number(pid_t tid)
{
	char path[32], text[8192];

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	text[n < 0 ? 0 : n] = '\0';
	char *line = strstr(text, "\nNSpid:"), *end = line ? strchr(line + 1, '\n') : NULL;
	if (!end)
		return 0;
	*end = '\0';
	return atoi(strrchr(line, '\t') + 1);
}

typedef struct user_regs_struct registers;

#if defined(__x86_64__)

enum { CODE_64 = 0x33, CALL_BYTES = 2, STEP_BYTES = 1 };
static const uint8_t call_instruction[CALL_BYTES] = { 0x0f, 0x05 };

static bool are_known(const registers *r)
{
	return r->cs == CODE_64;
}

static uint64_t stack_of(const registers *r)
{
	return r->rsp;
}

static void set_call(registers *r, uint64_t at, uint64_t number, const uint64_t arguments[static 6])
{
	r->rip = at;
	r->rax = number;
	r->orig_rax = UINT64_MAX; /* it is in no call that could be begun again */
	r->rdi = arguments[0];
	r->rsi = arguments[1];
	r->rdx = arguments[2];
	r->r10 = arguments[3];
	r->r8 = arguments[4];
	r->r9 = arguments[5];
}

static bool is_in_call(const registers *r, uint64_t number)
{
	return r->orig_rax == number;
}

static int64_t result_of(const registers *r)
{
	return (int64_t)r->rax;
}

/* Its registers say it. */
static int forget_call(pid_t tid)
{
	return 0;
}

#elif defined(__aarch64__)

enum { CALL_BYTES = 4, STEP_BYTES = 4 };
static const uint8_t call_instruction[CALL_BYTES] = { 0x01, 0x00, 0x00, 0xd4 };

static bool are_known(const registers *r)
{
	return true;
}

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

static bool is_in_call(const registers *r, uint64_t number)
{
	return r->regs[8] == number;
}

static int64_t result_of(const registers *r)
{
	return (int64_t)r->regs[0];
}

/* At the end of a call: the kernel is not to take what is in its registers then for an interrupted one, which is to be begun again. A
 * wait that was interrupted itself stands before its instruction, and begins again. */
static int forget_call(pid_t tid)
{
	int none = -1;
	struct iovec v = { &none, sizeof(none) };

	return ptrace(PTRACE_SETREGSET, tid, NT_ARM_SYSTEM_CALL, &v) < 0 ? -errno : 0;
}

#endif

/* ---- running ---- */

static int wait_for(pid_t tid, int *status)
{
	pid_t pid;

	while ((pid = waitpid(tid, status, __WALL)) < 0 && errno == EINTR)
		;
	if (pid < 0)
		return -errno;
	return WIFSTOPPED(*status) ? 0 : -ESRCH;
}

/* By SIGTRAP, or in a process that is stopped by the signal of that, such as one that brumate guards. */
static bool is_interruption(int status)
{
	return status >> 16 == PTRACE_EVENT_STOP;
}

/* Goes on to the next edge of a system call, or to what else stops it. */
static int go_on(pid_t tid, int *status)
{
	return ptrace(PTRACE_SYSCALL, tid, NULL, NULL) < 0 ? -errno : wait_for(tid, status);
}

/* Whether that stop is at an edge of a system call: ptrace(2), PTRACE_O_TRACESYSGOOD. CRIU sets that only for some. */
static bool is_at_call(pid_t tid, int status)
{
	const int good = SIGTRAP | 0x80;
	siginfo_t info;

	if (WSTOPSIG(status) == good)
		return true;
	return status >> 16 == 0 && WSTOPSIG(status) == SIGTRAP &&
	       ptrace(PTRACE_GETSIGINFO, tid, NULL, &info) == 0 && info.si_code == SIGTRAP;
}

/* From the end of a system call it gets to where the kernel looks for signals, and not a step further: there it finds what is to be
 * done about a call that was interrupted, when it goes on. */
static int stand_still(pid_t tid)
{
	int status;

	if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0 ||
	    ptrace(PTRACE_CONT, tid, NULL, NULL) < 0)
		return -errno;
	int r = wait_for(tid, &status);
	return r < 0 ? r : is_interruption(status) ? 0 : -EIO;
}

static int get_registers(pid_t tid, registers *ret)
{
	struct iovec v = { ret, sizeof(*ret) };

	if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v) < 0)
		return -errno;
	return v.iov_len == sizeof(*ret) && are_known(ret) ? 0 : -ENOTSUP;
}

static int set_registers(pid_t tid, const registers *r)
{
	struct iovec v = { (void *)r, sizeof(*r) };

	return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v) < 0 ? -errno : 0;
}

/* Blocks all signals but @but. */
static int block_signals(pid_t tid, uint64_t but, uint64_t *before)
{
	const uint64_t mask = ~but;

	if (ptrace(PTRACE_GETSIGMASK, tid, sizeof(*before), before) < 0 ||
	    ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask) < 0)
		return -errno;
	return 0;
}

static int unblock_signals(pid_t tid, uint64_t mask)
{
	return ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask) < 0 ? -errno : 0;
}

/* ---- a step ---- */

static int peek(pid_t tid, uint64_t address, uint64_t *ret)
{
	errno = 0;
	long word = ptrace(PTRACE_PEEKDATA, tid, (void *)address, NULL);
	if (errno)
		return -errno;
	*ret = (uint64_t)word;
	return 0;
}

#if defined(__x86_64__)

/* It is about to make a call: has it not make it, but be about to begin it. */
static int go_back(pid_t tid)
{
	registers before, r;
	int status, got = get_registers(tid, &before);

	r = before;
	r.orig_rax = UINT64_MAX; /* no call */
	if (got == 0 && (got = set_registers(tid, &r)) == 0)
		got = go_on(tid, &status);
	if (got < 0)
		return got;
	before.rax = before.orig_rax;
	before.rip -= CALL_BYTES;
	before.orig_rax = UINT64_MAX;
	got = set_registers(tid, &before);
	return got < 0 ? got : stand_still(tid);
}

static int take_step(pid_t tid, unsigned us, enum tracee_stop *ret)
{
	int status;

	if (ptrace(PTRACE_SYSCALL, tid, NULL, NULL) < 0)
		return -errno;
	usleep(us);
	if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0)
		return -errno;
	int r = wait_for(tid, &status);
	if (r == 0 && is_interruption(status))
		*ret = TRACEE_INTERRUPTED;
	if (r < 0 || is_interruption(status))
		return r;
	const bool is_call = is_at_call(tid, status);
	*ret = is_call ? TRACEE_AT_CALL : TRACEE_ELSEWHERE;
	return is_call ? go_back(tid) : stand_still(tid);
}

/* All but those that a thread brings upon itself: blocked, they would end the process. */
static int block_others(pid_t tid, uint64_t *before)
{
	static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
	registers regs;
	uint64_t but = 0;
	int r = get_registers(tid, &regs);

	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		but |= 1ull << (own[i] - 1);
	return r < 0 ? r : block_signals(tid, but, before);
}

int tracee_step(pid_t tid, unsigned us, enum tracee_stop *ret)
{
	uint64_t mask;
	int r = block_others(tid, &mask);

	if (r < 0)
		return r;
	r = take_step(tid, us, ret);
	int back = unblock_signals(tid, mask);
	return r < 0 ? r : back;
}

static bool is_prefix(uint8_t byte)
{
	static const uint8_t prefixes[] = { 0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e,
					    0x36, 0x3e, 0x26, 0x64, 0x65 };

	return (byte & 0xf0) == 0x40 || memchr(prefixes, byte, sizeof(prefixes));
}

enum next { NEXT_STEP, NEXT_CALL, NEXT_NONE };

/* What its next instruction is. A system call, of 64-bit code or as 32-bit code makes one, may not end; one that reads or writes
 * the flags would see that of the step, as what cannot be read may. */
static enum next read_next(pid_t tid)
{
	static const uint8_t calls[][CALL_BYTES] = { { 0x0f, 0x05 },
						     { 0x0f, 0x34 },
						     { 0xcd, 0x80 } };
	enum { WORD_BYTES = 8, PUSHF = 0x9c, POPF = 0x9d, IRET = 0xcf };
	uint64_t words[2] = { 0 };
	const uint8_t *code = (const uint8_t *)words, *end = code + sizeof(words);
	registers regs;

	if (get_registers(tid, &regs) < 0 || peek(tid, regs.rip & ~7ull, &words[0]) < 0)
		return NEXT_NONE;
	if (peek(tid, (regs.rip & ~7ull) + WORD_BYTES, &words[1]) < 0)
		end -= WORD_BYTES;
	code += regs.rip & 7;
	while (code < end && is_prefix(*code))
		code++;
	if (code == end || *code == PUSHF || *code == POPF || *code == IRET)
		return NEXT_NONE;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]) && code + CALL_BYTES <= end; i++)
		if (!memcmp(code, calls[i], CALL_BYTES))
			return NEXT_CALL;
	return NEXT_STEP;
}

/* The kernel would have a process that ignores SIGTRAP ignore it no more, with the first step. */
static bool ignores_steps(pid_t tid)
{
	char path[32];
	unsigned long long ignored;
	auto_free char *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	const char *line = file_read(AT_FDCWD, path, 65535, &text, NULL) < 0
				   ? NULL
				   : strstr(text, "\nSigIgn:");
	return !line || sscanf(line, "\nSigIgn: %llx", &ignored) != 1 ||
	       ignored >> (SIGTRAP - 1) & 1;
}

/* Whether it has made one instruction, and nothing else has stopped it. 1, 0, -errno. */
static int make_instruction(pid_t tid)
{
	siginfo_t info;
	int status;

	if (ptrace(PTRACE_SINGLESTEP, tid, NULL, NULL) < 0)
		return -errno;
	int r = wait_for(tid, &status);
	if (r < 0)
		return r;
	return status >> 16 == 0 && WSTOPSIG(status) == SIGTRAP &&
	       ptrace(PTRACE_GETSIGINFO, tid, NULL, &info) == 0 && info.si_code == TRAP_TRACE;
}

int tracee_walk(pid_t tid, uint64_t deadline_ns, int (*is_enough)(pid_t tid, void *arg), void *arg,
		enum tracee_stop *ret)
{
	enum next next = NEXT_STEP;
	bool is_elsewhere = false;
	uint64_t mask;
	int r, enough = 0;

	*ret = TRACEE_INTERRUPTED;
	if (ignores_steps(tid))
		return 0;
	if ((r = block_others(tid, &mask)) < 0)
		return r;
	while (!enough && clock_now_ns() < deadline_ns && (next = read_next(tid)) == NEXT_STEP) {
		if ((r = make_instruction(tid)) <= 0) {
			is_elsewhere = r == 0;
			break;
		}
		enough = is_enough(tid, arg);
	}
	if (next == NEXT_CALL)
		*ret = TRACEE_AT_CALL;
	else if (is_elsewhere)
		*ret = TRACEE_ELSEWHERE;
	int stands = r == -ESRCH ? 0 : stand_still(tid), back = unblock_signals(tid, mask);
	if (r < 0 || stands < 0 || back < 0)
		return r < 0 ? r : stands < 0 ? stands : back;
	return enough;
}

int tracee_is_in_call(pid_t tid)
{
	registers r;
	int got = get_registers(tid, &r);

	return got < 0 ? got : (int64_t)r.orig_rax >= 0;
}

#else

int tracee_step(pid_t tid, unsigned us, enum tracee_stop *ret)
{
	return -ENOTSUP;
}

int tracee_walk(pid_t tid, uint64_t deadline_ns, int (*is_enough)(pid_t tid, void *arg), void *arg,
		enum tracee_stop *ret)
{
	return -ENOTSUP;
}

int tracee_is_in_call(pid_t tid)
{
	return -ENOTSUP;
}

#endif

/* ---- a system call ---- */

/* What a thread that is in the middle of a restartable sequence (rseq(2)) has the kernel know of it. Elsewhere than there, the kernel
 * takes it for over. */
struct sequence {
	uint64_t address, value; /* of the field; 0: there is none */
};

static struct sequence get_sequence(pid_t tid)
{
	enum { FIELD_AT = 8 };
	struct __ptrace_rseq_configuration of = { 0 };
	struct sequence s = { 0 };

	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof(of), &of) != sizeof(of) ||
	    !of.rseq_abi_pointer || peek(tid, of.rseq_abi_pointer + FIELD_AT, &s.value) < 0 ||
	    !s.value)
		return (struct sequence){ 0 };
	s.address = of.rseq_abi_pointer + FIELD_AT;
	return s;
}

static int put_sequence(pid_t tid, const struct sequence *s)
{
	if (s->address && ptrace(PTRACE_POKEDATA, tid, (void *)s->address, (void *)s->value) < 0)
		return -errno;
	return 0;
}

static uint64_t find_vdso(pid_t tid)
{
	Elf64_auxv_t entries[AUXV_BYTES_MAX / sizeof(Elf64_auxv_t)];
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/auxv", tid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, entries, sizeof(entries));
	for (size_t i = 0; n > 0 && i < (size_t)n / sizeof(*entries); i++)
		if (entries[i].a_type == AT_SYSINFO_EHDR)
			return entries[i].a_un.a_val;
	return 0;
}

/* The address of an instruction that makes a system call; 0: none is found. */
static uint64_t find_instruction(pid_t tid)
{
	const uint64_t vdso = find_vdso(tid);
	uint8_t bytes[VDSO_BYTES];
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/mem", tid);
	auto_close int fd = vdso ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n = fd < 0 ? -1 : pread(fd, bytes, sizeof(bytes), (off_t)vdso);
	for (size_t i = 0; n > 0 && i + CALL_BYTES <= (size_t)n; i += STEP_BYTES)
		if (!memcmp(bytes + i, call_instruction, CALL_BYTES))
			return vdso + i;
	return 0;
}

/* The first edge is its beginning, the second its end. */
static int run_call(pid_t tid, uint64_t number, int64_t *ret)
{
	registers regs;
	int status, r = 0;

	for (int edge = 0; r == 0 && edge < 2; edge++) {
		r = go_on(tid, &status);
		if (r == 0)
			r = get_registers(tid, &regs);
		if (r == 0 && (!is_at_call(tid, status) || !is_in_call(&regs, number)))
			r = -EIO;
	}
	if (r == 0)
		*ret = result_of(&regs);
	return r;
}

static int copy_words(pid_t tid, uint64_t *ours, uint64_t theirs, size_t n, bool to_them)
{
	const struct iovec here = { ours, n * sizeof(*ours) },
			   there = { (void *)theirs, n * sizeof(*ours) };
	ssize_t done = to_them ? process_vm_writev(tid, &here, 1, &there, 1, 0)
			       : process_vm_readv(tid, &here, 1, &there, 1, 0);

	return done == (ssize_t)here.iov_len ? 0 : -EFAULT;
}

/* With all signals blocked; leaves other registers. */
static int set_and_run(pid_t tid, const registers *before, const struct tracee_call *c,
		       int64_t *ret)
{
	enum { RED_ZONE_BYTES = 128 };
	const uint64_t instruction = find_instruction(tid);
	const size_t n = c->n_words < TRACEE_WORDS_MAX ? c->n_words : TRACEE_WORDS_MAX;
	const uint64_t room = (stack_of(before) - RED_ZONE_BYTES - n * 8) & ~15ull;
	uint64_t saved[TRACEE_WORDS_MAX], arguments[6];
	registers regs = *before;
	int r = instruction ? 0 : -ENOSYS;

	memcpy(arguments, c->arguments, sizeof(arguments));
	if (n)
		arguments[c->words_argument % 6] = room;
	if (r == 0 && n && (r = copy_words(tid, saved, room, n, false)) == 0)
		r = copy_words(tid, c->words, room, n, true);
	if (r < 0)
		return r;
	set_call(&regs, instruction, c->number, arguments);
	r = set_registers(tid, &regs);
	if (r == 0)
		r = run_call(tid, c->number, ret);
	if (r == 0 && n)
		r = copy_words(tid, c->words, room, n, false);
	int back = n ? copy_words(tid, saved, room, n, true) : 0;
	return r < 0 ? r : back;
}

int tracee_make(pid_t tid, const struct tracee_call *c, int64_t *ret)
{
	registers before;
	uint64_t mask;
	int64_t result = 0;
	int r = get_registers(tid, &before);

	if (r < 0 || (r = block_signals(tid, 0, &mask)) < 0)
		return r;
	const struct sequence sequence = get_sequence(tid);
	r = set_and_run(tid, &before, c, &result);
	int back = set_registers(tid, &before);
	if (back == 0)
		back = forget_call(tid);
	if (back == 0)
		back = unblock_signals(tid, mask);
	if (back == 0)
		back = stand_still(tid);
	if (back == 0)
		back = put_sequence(tid, &sequence);
	if (r == 0 && back == 0)
		*ret = result;
	return r < 0 ? r : back;
}

int tracee_call(pid_t tid, long nr, uint64_t first, uint64_t second, int64_t *ret)
{
	const struct tracee_call c = { .number = (uint64_t)nr, .arguments = { first, second } };

	return tracee_make(tid, &c, ret);
}

int tracee_ask(pid_t tid, long nr, uint64_t first, uint64_t *ret)
{
	uint64_t word = 0;
	const struct tracee_call c = { .number = (uint64_t)nr,
				       .arguments = { first },
				       .words = &word,
				       .n_words = 1,
				       .words_argument = 1 };
	int64_t result = 0;
	int r = tracee_make(tid, &c, &result);

	if (r == 0 && result < 0)
		r = (int)result;
	if (r == 0)
		*ret = word;
	return r;
}
