// SPDX-License-Identifier: MIT
/*
 * Why CRIU failed, from its log. The line that matters is neither the first error (often a harmless
 * one) nor the last (each caller up the stack says that something below it failed).
 */
#include "base/fd.h"
#include "criu/criu-private.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const harmless[] = {
	"RLIMIT_NOFILE",
	"Can't keep kdat cache",
	"rlimit: Can't setup",
};

/* What callers of the code that failed say. */
static const char *const consequences[] = {
	"FAILED.",
	" failed with -",
	" exited, status=",
	" killed by signal ",
	"Restorer fail ",
	"Unable to open fd=",
	"Can't retrieve FDs from socket",
	"Message reply from daemon is trimmed",
	"handle_device_vma plugin failed", /* what mapping it is, the next line says */
};

enum { CRIU_LOG_TAIL_BYTES = 256 * 1024 };

struct line {
	const char *text;
	size_t len;
};

static bool line_has(struct line l, const char *word)
{
	return memmem(l.text, l.len, word, strlen(word));
}

static bool line_has_any(struct line l, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (line_has(l, words[i]))
			return true;
	return false;
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* What follows "Error (FILE:LINE): ", the way it begins everywhere; false for other lines. */
static bool error_text(struct line l, struct line *ret)
{
	static const char mark[] = "Error (";
	const char *start = memmem(l.text, l.len, mark, sizeof(mark) - 1);
	const char *end = l.text + l.len;
	const char *close = start ? memmem(start, (size_t)(end - start), "): ", 3) : NULL;

	if (!close)
		return false;
	*ret = (struct line){ close + 3, (size_t)(end - close - 3) };
	return ret->len > 0;
}

static void copy_line(char *ret, size_t ret_bytes, struct line l)
{
	size_t n = l.len < ret_bytes - 1 ? l.len : ret_bytes - 1;

	for (size_t i = 0; i < n; i++)
		ret[i] = isprint((unsigned char)l.text[i]) ? l.text[i] : '?';
	ret[n] = '\0';
}

/* The process that wrote it, which a restored one says behind the time: "(00.04)   1234: " or "(00.07) pie: 1234: ". 0: CRIU
 * itself. */
static long writer_of(struct line l)
{
	char text[48];
	const char *p = text;
	char *end;
	long pid;

	snprintf(text, sizeof(text), "%.*s", (int)(l.len < 47 ? l.len : 47), l.text);
	p += *p == '(' ? strcspn(p, ")") : 0;
	p += *p == ')';
	p += strspn(p, " ");
	p += !strncmp(p, "pie: ", 5) ? 5 : 0;
	pid = strtol(p, &end, 10);
	return end > p && *end == ':' ? pid : 0;
}

/* Takes the next line of what is left. */
static bool next_line(struct line *ret, const char **p, const char *end)
{
	if (*p >= end)
		return false;
	const char *eol = memchr(*p, '\n', (size_t)(end - *p));
	*ret = (struct line){ *p, (size_t)((eol ? eol : end) - *p) };
	*p += ret->len + 1;
	return true;
}

static bool is_cause(struct line l, struct line *ret_text)
{
	return error_text(l, ret_text) && !line_has_any(*ret_text, harmless, COUNT(harmless)) &&
	       !line_has_any(*ret_text, consequences, COUNT(consequences));
}

/* Callers say that something failed right behind what they called, each in a line of its own: the first of these lines up to
 * @last, one of @pid. */
static struct line find_first(const char *log, struct line last, long pid)
{
	struct line first = { 0 }, l, text;

	for (const char *p = log; next_line(&l, &p, last.text + last.len);) {
		if (writer_of(l) != pid || line_has(l, "Warn  ("))
			continue;
		if (is_cause(l, &text))
			first = first.len ? first : text;
		else if (!error_text(l, &text))
			first.len = 0;
	}
	return first;
}

int criu_log_reason(const char *log, size_t len_bytes, char *ret, size_t ret_bytes)
{
	struct line cause = { 0 }, consequence = { 0 }, l, text;
	long pid = 0;

	if (!ret_bytes)
		return -EINVAL;
	for (const char *p = log; next_line(&l, &p, log + len_bytes);) {
		if (is_cause(l, &text)) {
			cause = l;
			pid = writer_of(l);
		} else if (error_text(l, &text) &&
			   line_has_any(text, consequences, COUNT(consequences)) &&
			   !line_has_any(text, harmless, COUNT(harmless))) {
			consequence = consequence.len ? consequence : text;
		}
	}
	cause = cause.len ? find_first(log, cause, pid) : consequence;
	if (!cause.len)
		return -ENOENT;
	copy_line(ret, ret_bytes, cause);
	return 0;
}

const char *criu_hint_for(const char *reason)
{
	static const struct {
		const char *word, *hint;
	} hints[] = {
		{ "send_fds failed (-22)",
		  "the job probably uses io_uring: set sysctl kernel.io_uring_disabled=2" },
		{ "trim failed: @link_remap",
		  "the job has a deleted file open that has another name: only a CRIU with root's "
		  "rights can save that" },
		{ "increase limit",
		  "the job keeps a large deleted file open: give it a name, or close it" },
		{ "External socket is used", "a unix socket leads to a process outside the job: "
					     "close it, or run both in one job" },
		{ "In-flight connection",
		  "nobody has accepted a TCP connection yet: try again, or leave such connections "
		  "out by --tcp-skip-in-flight" },
		{ "Connected TCP socket",
		  "a TCP connection cannot be saved: close it before the checkpoint" },
		{ "Can't dump file", "the job holds a device or kernel object that CRIU cannot "
				     "save: close it before the "
				     "checkpoint" },
		{ "Can't retrieve FD from socket",
		  "programs of the job's user are sending more descriptors than its RLIMIT_NOFILE "
		  "allows: try again, or raise that limit (ulimit -n)" },
		{ "SysVIPC shmem",
		  "the job uses System V shared memory: use POSIX shared memory or a file" },
		{ "/secretmem",
		  "the job uses memfd_secret, which no other process can read: close it" },
		{ "/anon_hugepage",
		  "all huge pages that are set aside are in use, and CRIU needs one "
		  "more for a moment: sysctl vm.nr_hugepages" },
		{ "is not a part of process tree",
		  "the job holds a pidfd of a process outside it: close it" },
		{ "handle_device_vma",
		  "a device is still mapped: the GPU state of that process was not saved first" },
		{ "file locks are hold", "the job shares a file lock with a process outside it" },
		{ "has bad size",
		  "a file of the job has changed since the checkpoint: put the old one back" },
		{ "has bad mode",
		  "the permissions of a file have changed since the checkpoint: put them back" },
		{ "build-id",
		  "a program or library has changed since the checkpoint: put the old one back" },
		{ "Can't open file", "a file of the job is missing: put it back at the same path" },
		{ "Can't fork for",
		  "a process id of the job is in use: restore it in a new pid namespace" },
		{ "No space left", "free some space where the checkpoint is written" },
		{ "not tracee", "another program traces the job: detach the debugger" },
		{ "ptrace", "another program may be tracing the job: detach the debugger" },
	};

	for (size_t i = 0; reason && i < COUNT(hints); i++)
		if (strstr(reason, hints[i].word))
			return hints[i].hint;
	return NULL;
}

int criu_log_open(const struct criu_options *o)
{
	return openat(o->work_dir_fd, o->log_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
}

char *criu_log_tail(const struct criu_options *o, size_t *ret_len)
{
	auto_close int fd = criu_log_open(o);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return NULL;
	off_t from = st.st_size > CRIU_LOG_TAIL_BYTES ? st.st_size - CRIU_LOG_TAIL_BYTES : 0;
	auto_free char *text = malloc(CRIU_LOG_TAIL_BYTES + 1);
	if (!text || lseek(fd, from, SEEK_SET) < 0)
		return NULL;
	ssize_t n = fd_read_full(fd, text, CRIU_LOG_TAIL_BYTES);
	if (n < 0)
		return NULL;
	*ret_len = (size_t)n;
	return take_ptr(&text);
}
