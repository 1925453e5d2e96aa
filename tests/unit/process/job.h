// SPDX-License-Identifier: MIT
/*
 * A job for CRIU: a small tree that talks to itself in every way a program does, checks each answer,
 * and appends a line to its log for each round. What CRIU damages shows as "bad" in the log; a tree
 * that does not run shows as a log that does not grow.
 */
#pragma once

#include "base/clock.h"
#include "base/fd.h"
#include "little.h"
#include "criu/criu.h"
#include "process/pidns.h"
#include "process/reap.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

enum { JOB_WAIT_MS = 10000, JOB_GHOST_BYTES = 3 * 1024 * 1024, JOB_LATE_MAX = 4 };

/* How many late children there are to be: SIGUSR1 asks for one more. */
static volatile sig_atomic_t job_late_wanted;

static inline void job_want_late(int signal)
{
	(void)signal;
	job_late_wanted = job_late_wanted + 1;
}

struct job_setup {
	char dir[64];
	char log[96], lock[96], ghost[96], data[96];
	bool plain;	   /* pipes only: nothing that two copies would fight over */
	size_t memory_mib; /* filled with a pattern that each round looks at */
};

static inline void job_say_bad(const char *what, int round)
{
	dprintf(1, "bad %s in round %d: %s\n", what, round, strerror(errno));
	_exit(1);
}

/* The packet filter of a CRIU that was killed is there until its death is seen: a send in that moment is
 * refused. What must not be is that it stays. */
static inline ssize_t job_write(int fd, const void *buf, size_t len)
{
	uint64_t deadline_ns = deadline_in_ms(JOB_WAIT_MS);
	ssize_t n;

	while ((n = write(fd, buf, len)) < 0 && errno == EPERM && deadline_left_ms(deadline_ns))
		poll(NULL, 0, 1);
	return n;
}

static inline void job_exchange(int out, int in, int round, const char *what)
{
	int got = -1;

	if (job_write(out, &round, sizeof(round)) != sizeof(round) ||
	    read(in, &got, sizeof(got)) != sizeof(got) || got != round)
		job_say_bad(what, round);
}

static inline void job_tcp_pair(int ret[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(bind(listener, (void *)&a, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (void *)&a, &len) == 0);
	ret[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(ret[0], (void *)&a, len) == 0);
	ret[1] = accept(listener, NULL, NULL);
	CHECK(ret[1] >= 0);
}

/* The other process of the tree: what it reads it writes back. */
static inline void job_echo(int in, int out)
{
	int value;

	while (read(in, &value, sizeof(value)) == sizeof(value))
		if (write(out, &value, sizeof(value)) < 0)
			break;
	_exit(0);
}

/* A child with a TCP connection of its own, which it uses for each word that it is sent. */
static inline void job_start_late(int ret[2])
{
	int to[2], from[2], tcp[2], value;

	CHECK(pipe(to) == 0 && pipe(from) == 0);
	if (fork()) {
		ret[0] = to[1];
		ret[1] = from[0];
		CHECK(close(to[0]) == 0 && close(from[1]) == 0);
		return;
	}
	job_tcp_pair(tcp);
	while (read(to[0], &value, sizeof(value)) == sizeof(value)) {
		job_exchange(tcp[0], tcp[1], value, "late tcp");
		if (write(from[1], &value, sizeof(value)) < 0)
			break;
	}
	_exit(0);
}

struct job_ends {
	int to_child, from_child, tcp[2], local[2], ghost, data, late[JOB_LATE_MAX][2], n_late;
	uint64_t *memory;
	size_t n_words;
};

static inline void job_open_ends(struct job_ends *e, const struct job_setup *setup)
{
	int to[2], from[2];

	CHECK(pipe(to) == 0 && pipe(from) == 0);
	if (!fork()) {
		close(to[1]);
		close(from[0]);
		if (!fork()) /* a grandchild, which only waits */
			for (;;)
				pause();
		job_echo(to[0], from[1]);
	}
	e->to_child = to[1];
	e->from_child = from[0];
	e->n_words = setup->memory_mib * (1 << 20) / sizeof(*e->memory);
	e->memory = malloc(e->n_words * sizeof(*e->memory) + 1);
	for (size_t i = 0; i < e->n_words; i++)
		e->memory[i] = i * 0x9e3779b97f4a7c15ull;
	if (setup->plain)
		return;

	job_tcp_pair(e->tcp);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, e->local) == 0);
	int lock = open(setup->lock, O_RDWR | O_CREAT, 0600);
	CHECK(lock >= 0 && flock(lock, LOCK_EX) == 0);
	e->data = open(setup->data, O_RDWR | O_CREAT, 0600);
	CHECK(e->data >= 0 && write(e->data, "data", 4) == 4);
	e->ghost = open(setup->ghost, O_RDWR | O_CREAT, 0600);
	CHECK(e->ghost >= 0 && unlink(setup->ghost) == 0);
	CHECK(ftruncate(e->ghost, JOB_GHOST_BYTES) == 0 &&
	      pwrite(e->ghost, "ghost", 5, JOB_GHOST_BYTES - 5) == 5);
}

static inline void job_round(const struct job_ends *e, const struct job_setup *setup, int round)
{
	char text[8] = "";
	size_t step = e->n_words / 4096 + 1;

	job_exchange(e->to_child, e->from_child, round, "pipe");
	for (int i = 0; i < e->n_late; i++)
		job_exchange(e->late[i][0], e->late[i][1], round, "late child");
	for (size_t i = (size_t)round % step; i < e->n_words; i += step)
		if (e->memory[i] != i * 0x9e3779b97f4a7c15ull)
			job_say_bad("memory", round);
	if (setup->plain)
		return;
	job_exchange(e->tcp[0], e->tcp[1], round, "tcp");
	job_exchange(e->tcp[1], e->tcp[0], round, "tcp back");
	job_exchange(e->local[0], e->local[1], round, "unix");
	if (pread(e->ghost, text, 5, JOB_GHOST_BYTES - 5) != 5 || strcmp(text, "ghost"))
		job_say_bad("deleted file", round);
}

static inline void job_run(void *arg)
{
	const struct job_setup *setup = arg;
	struct job_ends ends = { 0 };
	int log = open(setup->log, O_WRONLY | O_APPEND | O_CREAT, 0600),
	    null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, 0);
	CHECK(dup2(null, 0) == 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2);
	for (int fd = 3; fd < 64; fd++)
		if (fd != little_out)
			close(fd);
	job_open_ends(&ends, setup);
	signal(SIGUSR1, job_want_late);
	little_ready();
	close(little_out);
	for (int round = 0;; round++) {
		while (ends.n_late < job_late_wanted && ends.n_late < JOB_LATE_MAX)
			job_start_late(ends.late[ends.n_late++]);
		job_round(&ends, setup, round);
		dprintf(1, "round %d\n", round);
		nanosleep(&(struct timespec){ .tv_nsec = 5 * NS_PER_MS }, NULL);
	}
}

static inline void job_prepare(struct job_setup *s)
{
	snprintf(s->dir, sizeof(s->dir), "/tmp/brumate-test-XXXXXX");
	CHECK(mkdtemp(s->dir));
	snprintf(s->log, sizeof(s->log), "%s/log", s->dir);
	snprintf(s->lock, sizeof(s->lock), "%s/lock", s->dir);
	snprintf(s->ghost, sizeof(s->ghost), "%s/ghost", s->dir);
	snprintf(s->data, sizeof(s->data), "%s/data", s->dir);
}

static inline struct proc_id job_start(struct job_setup *s)
{
	struct little l = little_start(job_run, s);

	little_wait_ready(&l);
	close(l.ready_fd);
	return little_id(&l);
}

static inline char *job_log_text(const struct job_setup *s)
{
	int fd = open(s->log, O_RDONLY | O_CLOEXEC);
	struct stat st;

	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	char *text = calloc(1, (size_t)st.st_size + 1);
	CHECK(text && fd_read_full(fd, text, (size_t)st.st_size) >= 0);
	close(fd);
	return text;
}

static inline int job_last_round(const struct job_setup *s)
{
	char *text = job_log_text(s), *last = NULL;
	int round = -1;

	if (strstr(text, "bad ")) {
		fprintf(stderr, "%s\n", strstr(text, "bad "));
		exit(1);
	}
	for (char *p = text; (p = strstr(p, "round ")); p++)
		last = p;
	if (last)
		sscanf(last, "round %d", &round);
	free(text);
	return round;
}

/* Waits until the job has done @n more rounds. */
static inline void job_must_run(const struct job_setup *s, int n)
{
	int fd = inotify_init1(IN_CLOEXEC), want = job_last_round(s) + n;
	char events[4096];

	CHECK(fd >= 0 && inotify_add_watch(fd, s->log, IN_MODIFY) >= 0);
	while (job_last_round(s) < want) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		if (poll(&p, 1, JOB_WAIT_MS) != 1) {
			fprintf(stderr, "the job does not run: last round %d, expected %d\n",
				job_last_round(s), want);
			exit(1);
		}
		CHECK(read(fd, events, sizeof(events)) > 0);
	}
	close(fd);
}

static inline void reap_everybody(void)
{
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
}

static inline void job_end(struct job_setup *s, struct proc_id root)
{
	CHECK(proc_tree_kill(root, deadline_in_ms(JOB_WAIT_MS)) == 0);
	reap_everybody();
	CHECK(remove_tree(AT_FDCWD, s->dir) == 0);
}
