// SPDX-License-Identifier: MIT
/* Registers that CRIU does not save; see registers.h. */
#include "criu-plugin/registers.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "criu-plugin/tracee.h"

/* ---- components ---- */

/* Where XSAVE says which components are not as they are at first (Intel SDM, volume 1, 13.4.2). */
enum { BITMAP_AT = 512, AREA_BYTES = BITMAP_AT + 64 };

enum { SETTLE_MS = 2000, STEP_US = 500, FIRST_STEPS = 8 };

uint64_t registers_lost(const void *area, size_t len_bytes, uint64_t saved)
{
	uint64_t bitmap = 0;

	if (len_bytes >= BITMAP_AT + sizeof(bitmap))
		memcpy(&bitmap, (const uint8_t *)area + BITMAP_AT, sizeof(bitmap));
	return bitmap & ~saved;
}

/* ENODEV: a processor without XSAVE has none. */
static int read_lost(pid_t tid, uint64_t saved, uint64_t *ret)
{
	uint8_t area[AREA_BYTES] = { 0 };
	struct iovec io = { area, sizeof(area) };

	*ret = 0;
	if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_X86_XSTATE, &io) < 0)
		return errno == ENODEV || errno == EINVAL ? 0 : -errno;
	*ret = registers_lost(area, io.iov_len, saved);
	return 0;
}

struct components {
	uint64_t saved, *lost;
};

static int has_none(pid_t tid, void *arg)
{
	const struct components *c = arg;
	int r = read_lost(tid, c->saved, c->lost);

	return r < 0 ? r : !*c->lost;
}

struct settling {
	pid_t tid;
	struct components of;
	uint64_t deadline_ns;
	enum tracee_stop at;
};

static bool may_go_on(const struct settling *s)
{
	return *s->of.lost && s->at == TRACEE_INTERRUPTED && clock_now_ns() < s->deadline_ns;
}

/* Finds a pause that is long: steps of one length might meet a loop of the thread in the same place each time. */
static int step_on(struct settling *s, unsigned n_steps)
{
	int r = 0;

	for (unsigned n = 0; r == 0 && n < n_steps && may_go_on(s); n++) {
		r = tracee_step(s->tid, STEP_US / 4 + n * 37 % STEP_US, &s->at);
		if (r == 0)
			r = read_lost(s->tid, s->of.saved, s->of.lost);
	}
	return r;
}

/* Finds one of a few instructions, if it is near. */
static int walk_on(struct settling *s, uint64_t ns)
{
	const uint64_t until_ns = clock_now_ns() + ns;

	if (!may_go_on(s))
		return 0;
	int r = tracee_walk(s->tid, until_ns < s->deadline_ns ? until_ns : s->deadline_ns, has_none,
			    &s->of, &s->at);
	return r < 0 ? r : 0;
}

/* What a thread holds while it waits in the kernel it will hold when it comes back. Returns 1 if @lost of it is left. */
static int settle(pid_t tid, uint64_t saved, uint64_t deadline_ns, uint64_t *lost)
{
	struct settling s = { tid, { saved, lost }, deadline_ns, TRACEE_INTERRUPTED };
	int r = read_lost(tid, saved, lost);

	if (r < 0 || !*lost)
		return r;
	if ((r = tracee_is_in_call(tid)) != 0)
		return r;
	/* As long for the one as for the other, and each time for longer. */
	for (unsigned n = FIRST_STEPS; r == 0 && may_go_on(&s); n *= 2) {
		const uint64_t start_ns = clock_now_ns();

		r = step_on(&s, n);
		if (r == 0)
			r = walk_on(&s, clock_now_ns() - start_ns);
	}
	return r < 0 ? r : *lost != 0;
}

int registers_settle(pid_t pid, uint64_t saved, struct registers_kept *ret)
{
	const uint64_t deadline_ns = deadline_in_ms(SETTLE_MS);
	char path[32];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	if (!dir)
		return -errno;
	for (struct dirent *e; r == 0 && (e = readdir(dir));) {
		const pid_t tid = (pid_t)atoi(e->d_name);
		uint64_t lost;

		if (e->d_name[0] == '.')
			continue;
		r = settle(tid, saved, deadline_ns, &lost);
		if (r == -ESRCH) /* it has ended, which is for CRIU to find */
			r = 0;
		else if (r > 0)
			*ret = (struct registers_kept){ tid, lost };
	}
	return r;
}

/* ---- permission ---- */

/* Of arch_prctl(2); Documentation/arch/x86/xstate.rst. */
enum { GET_SUPPORTED = 0x1021, GET_PERMITTED = 0x1022, REQUEST_PERMISSION = 0x1023 };

#define RECORD_NAME "brumate-registers.img"
enum { RECORD_BYTES_MAX = 4 << 20 };

#if defined(__x86_64__)
#define CALL_NUMBER SYS_arch_prctl
#else
#define CALL_NUMBER (-1)
#endif

/* The components that a process may use if it asks for them; 0: there are none of that kind. */
static uint64_t on_request(void)
{
	uint64_t supported = 0, permitted = 0;

	if (CALL_NUMBER < 0 || syscall(CALL_NUMBER, GET_SUPPORTED, &supported) < 0 ||
	    syscall(CALL_NUMBER, GET_PERMITTED, &permitted) < 0)
		return 0;
	return supported & ~permitted;
}

uint64_t registers_decode(const char *text, size_t len_bytes, pid_t pid)
{
	uint64_t found = 0;

	for (const char *end = text + len_bytes, *next; text < end; text = next) {
		char line[64] = "", left;
		unsigned long long permitted;
		int of;

		next = memchr(text, '\n', (size_t)(end - text));
		next = next ? next + 1 : end;
		if ((size_t)(next - text) >= sizeof(line))
			continue;
		memcpy(line, text, (size_t)(next - text));
		if (sscanf(line, "%d %16llx%c", &of, &permitted, &left) == 3 && left == '\n' &&
		    (of == pid || !pid))
			found |= permitted;
	}
	return found;
}

static int write_record(int images_fd, pid_t pid, uint64_t permitted)
{
	char line[64];
	int inner = tracee_inner_number(pid), n;

	if (!inner)
		return -ESRCH;
	auto_close int fd = openat(images_fd, RECORD_NAME,
				   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	n = snprintf(line, sizeof(line), "%d %llx\n", inner, (unsigned long long)permitted);
	return fd_write_full(fd, line, (size_t)n);
}

int registers_dump_permission(int images_fd, pid_t pid)
{
	const uint64_t more = on_request();
	uint64_t permitted = 0;

	if (!more)
		return 0;
	int r = tracee_ask(pid, CALL_NUMBER, GET_PERMITTED, &permitted);
	if (r == -ENOTSUP) /* a 32-bit program cannot use them */
		return 0;
	if (r < 0 || !(permitted & more))
		return r;
	r = write_record(images_fd, pid, permitted & more);
	return r < 0 ? r : 1;
}

/* What process @pid had, in its own numbering; 0: any of them. */
static int read_record(int images_fd, pid_t pid, uint64_t *ret)
{
	auto_free char *text = NULL;
	size_t len;

	*ret = 0;
	int r = file_read(images_fd, RECORD_NAME, RECORD_BYTES_MAX, &text, &len);
	if (r == 0)
		*ret = registers_decode(text, len, pid);
	return r == -ENOENT ? 0 : r;
}

int registers_check_permissions(int images_fd)
{
	uint64_t had, supported = 0;
	int r = read_record(images_fd, 0, &had);

	if (r < 0 || !had)
		return r;
	if (CALL_NUMBER < 0 || syscall(CALL_NUMBER, GET_SUPPORTED, &supported) < 0)
		supported = 0;
	return had & ~supported ? -EOPNOTSUPP : 0;
}

int registers_restore_permission(int images_fd, pid_t pid)
{
	const int inner = tracee_inner_number(pid);
	uint64_t had = 0;
	int r = inner ? read_record(images_fd, inner, &had) : -ESRCH;

	/* The kernel gives one of them with all below it that belong to it. */
	for (uint64_t component = 0; r == 0 && component < 64; component++) {
		int64_t result = 0;

		if (!(had >> component & 1))
			continue;
		r = tracee_call(pid, CALL_NUMBER, REQUEST_PERMISSION, component, &result);
		if (r == 0)
			r = (int)result;
	}
	return r;
}
