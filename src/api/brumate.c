// SPDX-License-Identifier: MIT
/*
 * libbrumate.so: runs `brumate checkpoint --self`, and waits for its result; and commands on other jobs. While it waits it has no descriptor
 * open, except during a short read of /proc, as the process may be saved at any moment. Its only state is the text of
 * the last error. It never ends the program.
 */
#include "api/brumate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum {
	OUTPUT_BYTES = 3 * PATH_MAX,
	TEXT_BYTES = 2048,
	POLL_NS = 20000000,
	UNREADABLE_LOOKS_MAX = 500, /* 10 s: the answer is there before the command replies */
	JOB_WORDS_MAX = 12,
};

/* What brumate's exit codes are called here, see brumate(1). Any other is -EIO. */
static const struct {
	int exit_code, error;
} meanings[] = {
	{ 2, EINVAL }, { 3, ESRCH },   { 4, EOPNOTSUPP }, { 5, EACCES },
	{ 6, EBUSY },  { 9, EBADMSG }, { 10, ENOMEM },	  { 124, ETIMEDOUT },
};

extern char **environ;
static __thread char error_text[TEXT_BYTES];
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* The reply of the command. */
struct asked {
	char checkpoint[NAME_MAX], dir[PATH_MAX], answer[PATH_MAX];
};

__attribute__((format(printf, 2, 3))) static int fail(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error_text, sizeof(error_text), format, args);
	va_end(args);
	error_text[strcspn(error_text, "\n")] = '\0';
	return -code;
}

static ssize_t read_file(const char *path, char *ret, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, room - 1);

	if (fd >= 0)
		close(fd);
	ret[n > 0 ? n : 0] = '\0';
	return n;
}

/* When the kernel created this process: in ticks since boot (proc(5), starttime), and the id of that boot. A restored
 * process was created later, or on another machine. */
struct birth {
	unsigned long long ticks; /* 0: unknown */
	char boot_id[40];	  /* empty: unknown */
};

static struct birth birth(void)
{
	struct birth b = { 0 };
	char text[1024];

	read_file("/proc/sys/kernel/random/boot_id", b.boot_id, sizeof(b.boot_id));
	if (read_file("/proc/self/stat", text, sizeof(text)) > 0 && strrchr(text, ')'))
		sscanf(strrchr(text, ')') + 1,
		       " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
		       "%*s %llu",
		       &b.ticks);
	return b;
}

/* If descriptors ran out before and this could not be read, the comparison cannot tell a restored process from the
 * saved one. */
static bool is_another_life(const struct birth *a, const struct birth *b)
{
	return (a->ticks && b->ticks && a->ticks != b->ticks) ||
	       (a->boot_id[0] && b->boot_id[0] && strcmp(a->boot_id, b->boot_id));
}

/* The string @key of the object in @json, which has no escaped characters. */
static int get_text(char *ret, size_t room, const char *json, const char *key)
{
	char quoted[32];

	snprintf(quoted, sizeof(quoted), "\"%s\": \"", key);
	const char *at = strstr(json, quoted);
	if (!at)
		return fail(EPROTO, "brumate's reply has no %s", key);
	at += strlen(quoted);
	size_t len = strcspn(at, "\"\\");
	if (at[len] != '"' || len >= room)
		return fail(EPROTO, "brumate's reply: %s cannot be read", key);
	memcpy(ret, at, len);
	ret[len] = '\0';
	return 0;
}

static int spawn_command(pid_t *ret, char *const *argv, int out_fd)
{
	posix_spawn_file_actions_t actions;
	int r = posix_spawn_file_actions_init(&actions);

	if (r)
		return -r;
	r = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(&actions, out_fd, STDERR_FILENO);
	if (r == 0)
		r = posix_spawnp(ret, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

static void read_all(int fd, char *ret, size_t room)
{
	size_t len = 0;
	char rest[256];
	ssize_t n;

	while (len < room - 1 &&
	       ((n = read(fd, ret + len, room - 1 - len)) > 0 || (n < 0 && errno == EINTR)))
		len += n > 0 ? (size_t)n : 0;
	ret[len] = '\0';
	/* A command whose output nobody reads would be ended by SIGPIPE. */
	while (len == room - 1 &&
	       ((n = read(fd, rest, sizeof(rest))) > 0 || (n < 0 && errno == EINTR)))
		;
}

/* The message of the error in @output, which is a JSON string in ASCII, changed in place into what it stands for; NULL: there is
 * none. What is not in ASCII becomes '?'. */
static const char *find_message(char *output)
{
	static const char prefix[] = "\"message\":\"";
	char *text = strstr(output, prefix), *to;

	if (!text)
		return NULL;
	text += strlen(prefix);
	to = text;
	for (const char *from = text; *from && *from != '"'; from++) {
		if (*from == '\\' && *++from == 'u') {
			from += strnlen(from, 5) - 1;
			*to++ = '?';
		} else {
			*to++ = *from;
		}
		if (!*from)
			break;
	}
	*to = '\0';
	return text;
}

/* The error for the command's exit code, with the text that it printed. */
static int told(int status, char *output)
{
	const char *text = find_message(output);
	int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	int code = EIO;

	for (size_t i = 0; i < sizeof(meanings) / sizeof(*meanings); i++)
		if (meanings[i].exit_code == exit_code)
			code = meanings[i].error;

	return fail(code, "%s", text ? text : "brumate failed and did not say why");
}

/* Runs the command to its end; @output: what it prints. */
static int run_command(char *output, char *const *argv)
{
	int fds[2], status = 0;
	pid_t pid = -1;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fail(errno, "brumate: %s", strerror(errno));
	int r = spawn_command(&pid, argv, fds[1]);
	close(fds[1]);
	if (r == 0)
		read_all(fds[0], output, OUTPUT_BYTES);
	close(fds[0]);
	if (r < 0)
		return fail(-r, "%s: %s", argv[0], strerror(-r));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR) /* the program reaps all children: use the reply */
			return 0;
	return status ? told(status, output) : 0;
}

static const char *const options[] = {
	"--leave-running", /* BRUMATE_LEAVE_RUNNING, and so on */
	"--with-files",
	"--tcp-close",
	"--drop-external",
};
enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

static int ask(struct asked *ret, const char *name, unsigned flags)
{
	const char *command = getenv("BRUMATE_COMMAND");
	char output[OUTPUT_BYTES];
	char *argv[8 + N_OPTIONS] = { (char *)(command && *command ? command : "brumate"),
				      "checkpoint", "--self", "--format", "json" };
	size_t n = 5;

	for (unsigned i = 0; i < N_OPTIONS; i++)
		if (flags & 1u << i)
			argv[n++] = (char *)options[i];
	if (name)
		argv[n++] = "--name";
	if (name)
		argv[n++] = (char *)name;
	int r = run_command(output, argv);
	if (r == 0)
		r = get_text(ret->checkpoint, sizeof(ret->checkpoint), output, "checkpoint");
	if (r == 0)
		r = get_text(ret->dir, sizeof(ret->dir), output, "dir");
	if (r == 0)
		r = get_text(ret->answer, sizeof(ret->answer), output, "answer");
	return r;
}

/* Returns 1 if the checkpoint was made, 0 if that is not known yet, <0 if it was not made, or if that cannot be known.
 * @unreadable counts failed reads. */
static int check_outcome(const struct asked *asked, unsigned *unreadable)
{
	char text[TEXT_BYTES], path[2 * PATH_MAX];
	size_t len = strlen(asked->checkpoint);
	ssize_t n = readlink(asked->answer, text, sizeof(text) - 1);
	struct stat st;

	if (n <= 0)
		return ++*unreadable < UNREADABLE_LOOKS_MAX
			       ? 0
			       : fail(EIO, "checkpoint %s: how it went cannot be read: %s: %s",
				      asked->checkpoint, asked->answer, strerror(errno));
	*unreadable = 0;
	text[n] = '\0';
	if (strncmp(text, asked->checkpoint, len) || text[len] != ' ')
		return 0;
	char *why;
	long code = strtol(text + len + 1, &why, 10);
	if (code == EINPROGRESS)
		return 0;
	snprintf(path, sizeof(path), "%s/%s", asked->dir, asked->checkpoint);
	if (code == 0 || stat(path, &st) == 0)
		return 1;
	return fail((int)code, "checkpoint %s:%s", asked->checkpoint, why);
}

static int wait_for_answer(const struct asked *asked, const struct birth *born)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };
	unsigned unreadable = 0;

	for (;;) {
		nanosleep(&pause, NULL);
		int r = check_outcome(asked, &unreadable);
		/* Checked last, as the process may have been saved just before. */
		const struct birth now = birth();
		if (is_another_life(&now, born))
			return BRUMATE_RESTORED;
		if (r)
			return r < 0 ? r : BRUMATE_SAVED;
	}
}

PUBLIC int brumate_checkpoint(const char *name, unsigned flags)
{
	struct asked asked;
	const struct birth born = birth();

	error_text[0] = '\0';
	if (flags >> N_OPTIONS)
		return fail(EINVAL, "brumate_checkpoint: unknown flags");
	if (!born.ticks)
		return fail(ENOSYS, "brumate_checkpoint: /proc is not there");
	pthread_mutex_lock(&one_at_a_time);
	int r = ask(&asked, name, flags);
	if (r == 0)
		r = wait_for_answer(&asked, &born);
	pthread_mutex_unlock(&one_at_a_time);
	if (r >= 0)
		error_text[0] = '\0';
	return r;
}

/* ---- other jobs ---- */

static bool is_job_name(const char *name)
{
	if (!name || !*name || *name == '-' || *name == '/')
		return false;
	for (const char *c = name; *c; c++)
		if ((unsigned char)*c <= ' ' || (unsigned char)*c > '~' || strchr("\"\\'*?", *c))
			return false;
	return true;
}

/* @words: the verb and its options, up to NULL. */
static int operate(const char *job, const char *const *words)
{
	const char *command = getenv("BRUMATE_COMMAND");
	char output[OUTPUT_BYTES];
	char *argv[JOB_WORDS_MAX] = { (char *)(command && *command ? command : "brumate") };
	size_t n = 1;

	error_text[0] = '\0';
	if (!is_job_name(job))
		return fail(EINVAL, "not the name of a job: \"%s\"", job ? job : "");
	while (*words)
		argv[n++] = (char *)*words++;
	argv[n++] = "--format";
	argv[n++] = "json";
	argv[n++] = "--";
	argv[n++] = (char *)job;
	int r = run_command(output, argv);
	/* Its exit status is not known in a program that reaps all children. */
	if (r == 0 && !strstr(output, "\"summary\""))
		r = told(-1, output);
	return r;
}

PUBLIC int brumate_job_suspend(const char *job)
{
	return operate(job, (const char *const[]){ "suspend", NULL });
}

PUBLIC int brumate_job_resume(const char *job)
{
	return operate(job, (const char *const[]){ "resume", NULL });
}

PUBLIC int brumate_job_checkpoint(const char *job, const char *name, unsigned flags)
{
	const char *words[5] = { "checkpoint" };
	size_t n = 1;

	if (flags & ~(unsigned)BRUMATE_LEAVE_RUNNING)
		return fail(EINVAL, "brumate_job_checkpoint: unknown flags");
	if (name && (!*name || *name == '-'))
		return fail(EINVAL, "not the name of a checkpoint: \"%s\"", name);
	if (flags & BRUMATE_LEAVE_RUNNING)
		words[n++] = "--leave-running";
	if (name) {
		words[n++] = "--name";
		words[n++] = name;
	}
	return operate(job, words);
}

PUBLIC int brumate_job_restore(const char *job)
{
	return operate(job, (const char *const[]){ "restore", "--job", NULL });
}

PUBLIC const char *brumate_error(void)
{
	return error_text;
}
