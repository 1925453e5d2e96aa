// SPDX-License-Identifier: MIT
/*
 * brumate-slurm, which Slurm's plugins run:
 *
 *   brumate-slurm task STEP.RANK COMMAND...   in the place of a task: its command as a job, or its last checkpoint
 *   brumate-slurm suspend|resume STEP         before Slurm stops the step, and after it has continued it
 *   brumate-slurm doctor                      what of the site's Slurm is in the way
 *
 * All as the user of the step, by the brumate command. It keeps no state: a job has the step as a label, a checkpoint is named by
 * step, rank and how often Slurm had started the job.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "edges/slurm/examine.h"
#include "edges/slurm/step.h"

#ifndef BRUMATE_BINDIR
#define BRUMATE_BINDIR "/usr/bin"
#endif

enum {
	WORDS_MAX = 32,
	OUTPUT_BYTES = 65536,
	JOBS_MAX = 256,
	LOOK_MS = 200,
	EXIT_OURS = 125,
	/* Of brumate: nothing on a GPU, so nothing to suspend. */
	EXIT_UNSUPPORTED = 4,
};

/* ---- other programs ---- */

/* Runs in the child. @out_fd: its stdout; -1: ours. */
static void become(const char *const *argv, int out_fd, bool quiet)
{
	const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setpgid(0, 0); /* a signal to the task's group is for the one who watches over it */
	if (out_fd >= 0)
		dup2(out_fd, 1);
	if (quiet && null_fd >= 0)
		dup2(null_fd, 2);
	if (!strcmp(argv[0], "brumate"))
		execv(BRUMATE_BINDIR "/brumate", (char *const *)argv);
	execvp(argv[0], (char *const *)argv);
	fprintf(stderr, "brumate-slurm: %s: %s\n", argv[0], strerror(errno));
	_exit(EXIT_OURS);
}

static pid_t start(const char *const *argv, int out_fd, bool quiet)
{
	pid_t pid = fork();

	if (pid == 0)
		become(argv, out_fd, quiet);
	return pid;
}

/* The exit code as a shell has it. */
static int wait_for(pid_t pid)
{
	int status = 0;

	while (pid > 0 && waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return EXIT_OURS;
	return pid < 0		     ? EXIT_OURS
	       : WIFEXITED(status)   ? WEXITSTATUS(status)
	       : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
				     : EXIT_OURS;
}

static int run_quietly(const char *const *argv)
{
	const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	int r = wait_for(start(argv, null_fd, true));

	close(null_fd);
	return r;
}

/* Runs it and reads what it prints, at most @room - 1 bytes. Its exit code. */
static int ask(const char *const *argv, char *ret, size_t room)
{
	size_t len = 0;
	ssize_t n;
	int fds[2];

	*ret = '\0';
	if (pipe2(fds, O_CLOEXEC) < 0)
		return EXIT_OURS;
	pid_t pid = start(argv, fds[1], false);
	close(fds[1]);
	while ((n = read(fds[0], ret + len, room - 1 - len)) > 0 || (n < 0 && errno == EINTR))
		len += n > 0 ? (size_t)n : 0;
	ret[len] = '\0';
	close(fds[0]);
	return wait_for(pid);
}

/* ---- the whole step ---- */

/* Those of its jobs that live: ids, in @text, which is theirs. */
static size_t list_jobs(const char *ids[static JOBS_MAX], const char *step,
			char text[static OUTPUT_BYTES])
{
	char filter[96], *rest = text, *line;
	const char *const argv[] = { "brumate", "ps", "--no-headers", "--filter", filter, NULL };
	size_t n = 0;

	snprintf(filter, sizeof(filter), "label=slurm.step=%.63s", step);
	if (ask(argv, text, OUTPUT_BYTES) != 0)
		return 0;
	while (n < JOBS_MAX && (line = strsep(&rest, "\n"))) {
		const char *id = strsep(&line, " "), *word;
		const char *words[2] = { "", "" };

		for (size_t i = 0; i < 2 && (word = strsep(&line, " "));)
			if (*word)
				words[i++] = word;
		if (*id && *words[1] && strcmp(words[1], "exited") && strcmp(words[1], "lost") &&
		    strcmp(words[1], "checkpointed"))
			ids[n++] = id;
	}
	return n;
}

/* All jobs of the step at once. */
static int act(const char *verb, const char *step, const struct site *site)
{
	static char text[OUTPUT_BYTES];
	const char *ids[JOBS_MAX];
	pid_t pids[JOBS_MAX];
	char wait[32];
	const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	const size_t n = list_jobs(ids, step, text);
	int result = 0;

	snprintf(wait, sizeof(wait), "%us", site->wait_s);
	for (size_t i = 0; i < n; i++) {
		const char *const argv[] = { "brumate", verb, "--wait", wait, ids[i], NULL };

		pids[i] = start(argv, null_fd, false);
	}
	for (size_t i = 0; i < n; i++) {
		int r = wait_for(pids[i]);

		/* What is not on a GPU Slurm stops by itself. */
		if (r && r != EXIT_UNSUPPORTED)
			result = r;
	}
	return result;
}

/* ---- one task ---- */

struct task {
	const char *key; /* STEP.RANK */
	char job[24];	 /* of Slurm */
	char step[64];
	char name[96];	   /* of the job of brumate */
	unsigned restarts; /* by Slurm, so far */
	bool is_batch, to_file;
	char file[PATH_MAX]; /* its stdout, if that is one */
	const struct site *site;
};

static int task_init(struct task *t, const char *key, const struct site *site)
{
	const char *dot = strchr(key, '.'), *last = strrchr(key, '.'),
		   *restarts = getenv("SLURM_RESTART_COUNT");
	struct stat st;

	if (!dot || last == dot || (size_t)(last - key) >= sizeof(t->step) ||
	    (size_t)(dot - key) >= sizeof(t->job))
		return -EINVAL;
	*t = (struct task){ .key = key,
			    .restarts = restarts ? (unsigned)atoi(restarts) : 0,
			    .site = site };
	memcpy(t->job, key, (size_t)(dot - key));
	memcpy(t->step, key, (size_t)(last - key));
	snprintf(t->name, sizeof(t->name), "slurm-%s", key);
	for (char *c = t->name; *c; c++)
		if (*c == '.')
			*c = '-';
	t->is_batch = strstr(t->step, ".batch");
	if (fstat(1, &st) == 0 && S_ISREG(st.st_mode)) {
		ssize_t n = readlink("/proc/self/fd/1", t->file, sizeof(t->file) - 1);
		t->to_file = n > 0;
	}
	return 0;
}

static void checkpoint_name(char ret[static 128], const struct task *t, unsigned restarts)
{
	snprintf(ret, 128, "%s-r%u", t->name, restarts);
}

/* The checkpoint of the latest life of this task that was saved. */
static bool find_saved(char ret[static 128], const struct task *t)
{
	for (unsigned i = t->restarts; i-- > 0;) {
		const char *const argv[] = { "brumate", "inspect", "--checkpoint", ret, NULL };

		checkpoint_name(ret, t, i);
		if (run_quietly(argv) == 0)
			return true;
	}
	return false;
}

enum task_turn { TURN_OURS, TURN_OF_OTHERS, TURN_SUSPENDED };

/* TURN_OF_OTHERS: Slurm has suspended a job of this node that has not left its GPUs yet. TURN_SUSPENDED: it has suspended ours, as
 * it does at once with a job that it starts only to take turns. */
static enum task_turn find_turn(const struct task *t)
{
	static char text[OUTPUT_BYTES];
	const char *node = getenv("SLURMD_NODENAME");
	const char *const argv[] = { "squeue",	       "-h", "-t", "S", "-o", "%A", "-w",
				     node ? node : "", NULL };
	enum task_turn turn = TURN_OURS;
	char *rest = text, *id;

	if (!node || !step_has_neighbours(t->site, t->job) || ask(argv, text, sizeof(text)) != 0)
		return TURN_OURS;
	while ((id = strsep(&rest, "\n"))) {
		if (!strcmp(id, t->job))
			return TURN_SUSPENDED;
		if (*id && step_is_here(t->site, id))
			turn = TURN_OF_OTHERS;
	}
	return turn;
}

/* Slurm starts a job at once next to the one that it suspends, which takes a while to leave the GPU. */
static void take_turn(const struct task *t)
{
	unsigned left_ms = t->site->wait_s * 1000;
	enum task_turn turn;

	while ((turn = find_turn(t)) != TURN_OURS && left_ms) {
		if (turn == TURN_OF_OTHERS)
			left_ms -= left_ms < LOOK_MS ? left_ms : LOOK_MS;
		poll(NULL, 0, LOOK_MS); /* Slurm notifies no task of another job's state */
	}
}

static pid_t begin_task(const struct task *t, char *const *command)
{
	char step_label[96], job_label[64], saved[128], wait[32];
	const char *restore[] = { "brumate", "restore",	     "--attach", "--wait",
				  wait,	     "--checkpoint", saved,	 NULL };
	const char *head[] = { "brumate", "run",      "--attach", "--name", t->name,
			       "--label", step_label, "--label",  job_label };
	const char *forget[] = { "brumate", "rm", "--job", t->name, NULL };
	const char *argv[WORDS_MAX];
	const int out_fd = t->to_file ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
	size_t n = 0;

	snprintf(wait, sizeof(wait), "%us", t->site->wait_s);
	if (t->restarts && find_saved(saved, t)) {
		fprintf(stderr, "brumate: restoring %s\n", saved);
		return start(restore, out_fd, false);
	}
	run_quietly(forget); /* what an earlier life left here that was not saved */
	snprintf(step_label, sizeof(step_label), "slurm.step=%s", t->step);
	snprintf(job_label, sizeof(job_label), "slurm.job=%s", t->job);
	for (size_t i = 0; i < sizeof(head) / sizeof(*head); i++)
		argv[n++] = head[i];
	if (t->to_file) {
		argv[n++] = "--log";
		argv[n++] = t->file;
	}
	argv[n++] = "--";
	size_t n_command = 0;
	while (command[n_command])
		n_command++;
	const char **all = calloc(n + n_command + 1, sizeof(*all));
	if (!all)
		return -1;
	memcpy(all, argv, n * sizeof(*all));
	memcpy(all + n, command, n_command * sizeof(*all));
	return start(all, out_fd, false);
}

/* The value of @name in what scontrol prints, up to a space; "": it is not there. */
static void find_field(char ret[static 64], const char *text, const char *name)
{
	const char *at = text;
	const size_t len = strlen(name);

	*ret = '\0';
	while ((at = strstr(at, name)) && (at[len] != '=' || (at > text && !strchr(" \n", at[-1]))))
		at += len;
	if (at)
		snprintf(ret, 64, "%.*s", (int)strcspn(at + len + 1, " \n"), at + len + 1);
}

/* "D-HH:MM:SS" or less, in seconds; -1: it is no time. */
static long parse_time(const char *text)
{
	const char *dash = strchr(text, '-');
	long sum = 0;
	char *end;

	for (const char *at = dash ? dash + 1 : text;; at = end + 1) {
		long n = strtol(at, &end, 10);

		if (end == at)
			return -1;
		sum = sum * 60 + n;
		if (*end != ':')
			break;
	}
	return sum + (dash ? strtol(text, NULL, 10) * 86400 : 0);
}

/* What its user cancelled is not saved. The signal is the same as when it is preempted, requeued or out of time; and so is the
 * state, while the job ends: of these Slurm has counted the restart, noted a time, or the limit is reached. */
static bool was_cancelled(const struct task *t)
{
	static char text[OUTPUT_BYTES];
	const char *const argv[] = { "scontrol", "show", "job", t->job, NULL };
	char state[64], restarts[64], preempted[64], ran[64], limit[64];

	if (ask(argv, text, sizeof(text)) != 0)
		return false;
	find_field(state, text, "JobState");
	find_field(restarts, text, "Restarts");
	find_field(preempted, text, "PreemptTime");
	find_field(ran, text, "RunTime");
	find_field(limit, text, "TimeLimit");
	const bool ends = !strcmp(state, "CANCELLED") || !strcmp(state, "COMPLETING");
	const bool requeued = (unsigned)atoi(restarts) > t->restarts;
	const bool is_late = parse_time(limit) > 0 && parse_time(ran) >= parse_time(limit);
	return ends && !requeued && !is_late && (!*preempted || !strcmp(preempted, "None"));
}

static bool save(const struct task *t)
{
	char id[128], wait[32];
	const char *const argv[] = { "brumate", "checkpoint", "--name", id,
				     "--wait",	wait,	      t->name,	NULL };
	const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	snprintf(wait, sizeof(wait), "%us", t->site->wait_s);
	checkpoint_name(id, t, t->restarts);
	int r = wait_for(start(argv, null_fd, false));
	close(null_fd);
	fprintf(stderr,
		r ? "brumate: not saved (%d)\n"
		  : "brumate: saved; restored when Slurm starts it again\n",
		r);
	return r == 0;
}

static void pass_on(const struct task *t, int number)
{
	char text[16];
	const char *const argv[] = { "brumate", "kill", "--signal", text, t->name, NULL };

	snprintf(text, sizeof(text), "%d", number);
	run_quietly(argv);
}

/* The job has ended by itself: nothing of it is needed any more. */
static void clean_up(const struct task *t)
{
	char id[128];
	const char *const forget[] = { "brumate", "rm", "--job", t->name, NULL };
	const char *const remove[] = { "brumate", "rm", "--checkpoint", id, NULL };

	run_quietly(forget);
	for (unsigned i = 0; i <= t->restarts && t->restarts; i++) {
		checkpoint_name(id, t, i);
		run_quietly(remove);
	}
}

/* Slurm requeues only what did not end by itself: the slot is held until Slurm kills us. */
static void hold_slot(const sigset_t *set)
{
	siginfo_t info;

	for (;;)
		sigwaitinfo(set, &info);
}

static int watch_over(const struct task *t, pid_t job, const sigset_t *set)
{
	siginfo_t info;

	for (;;) {
		int status, number = sigwaitinfo(set, &info);

		if (number == SIGCHLD) {
			if (waitpid(job, &status, WNOHANG) != job)
				continue;
			const int code =
				WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			clean_up(t);
			return code;
		}
		if (number < 0)
			continue;
		const bool leaves = number == SIGTERM || (number == SIGUSR1 && t->is_batch);
		if (leaves && !(number == SIGTERM && was_cancelled(t)) && save(t))
			hold_slot(set);
		if (!leaves || number == SIGTERM)
			pass_on(t, number);
	}
}

static int run_task(const char *key, char *const *command, const struct site *site)
{
	static const int passed[] = { SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGQUIT, SIGCHLD };
	static struct task t;
	sigset_t set;

	if (task_init(&t, key, site) < 0) {
		fprintf(stderr, "brumate-slurm: \"%s\" is not STEP.RANK\n", key);
		return 2;
	}
	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(passed) / sizeof(*passed); i++)
		sigaddset(&set, passed[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	take_turn(&t);
	pid_t job = begin_task(&t, command);
	if (job < 0) {
		fprintf(stderr, "brumate-slurm: %s\n", strerror(errno));
		return EXIT_OURS;
	}
	return watch_over(&t, job, &set);
}

static int run_doctor(const struct site *site)
{
	static char config[OUTPUT_BYTES];
	const char *const argv[] = { "scontrol", "show", "config", NULL };

	if (ask(argv, config, sizeof(config)) != 0) {
		printf("fail\tscontrol\t%s\t%s\n", "the configuration of Slurm cannot be read",
		       "run it where `scontrol show config` answers");
		return 0;
	}
	site_examine(config, site);
	return 0;
}

int main(int argc, char **argv)
{
	static struct site site;

	site_load(&site);
	if (argc >= 4 && !strcmp(argv[1], "task"))
		return run_task(argv[2], argv + 3, &site);
	if (argc == 3 && (!strcmp(argv[1], "suspend") || !strcmp(argv[1], "resume")))
		return act(argv[1], argv[2], &site);
	if (argc == 2 && !strcmp(argv[1], "doctor"))
		return run_doctor(&site);
	fprintf(stderr, "usage: brumate-slurm task STEP.RANK COMMAND... | suspend STEP | resume "
			"STEP (started by Slurm's plugins)\n");
	return 2;
}
