// SPDX-License-Identifier: MIT
/* Named fault points, controlled by a file that tests write; see fault.h. Costs one load if unused. */
#include "base/fault.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PEERS_MAX = 8, SPEC_BYTES_MAX = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const char *who;
	pid_t pid;
} peers[PEERS_MAX];

void fault_register_peer(const char *who, pid_t pid)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < PEERS_MAX; i++) {
		if (peers[i].who && strcmp(peers[i].who, who))
			continue;
		peers[i].who = who;
		peers[i].pid = pid;
		break;
	}
	pthread_mutex_unlock(&lock);
}

/* 0: it is not there. */
static pid_t find_peer(const char *who)
{
	pid_t pid = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < PEERS_MAX && peers[i].who; i++)
		if (!strcmp(peers[i].who, who))
			pid = peers[i].pid;
	pthread_mutex_unlock(&lock);
	return pid;
}

/* The file names the process, so that a test can send it SIGCONT. */
static void stop(const char *path, pid_t pid)
{
	auto_free char *list = NULL;

	if (asprintf(&list, "%s.stopped", path) < 0)
		return;
	auto_close int fd = open(list, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0 && dprintf(fd, "%d\n", pid) > 0)
		/* To this thread, so that it does not run on until another one has taken the signal. */
		pid == getpid() ? tgkill(pid, gettid(), SIGSTOP) : kill(pid, SIGSTOP);
}

static void delay_ms(long ms)
{
	struct timespec left = { ms / 1000, (ms % 1000) * 1000000 };

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

/* Waits until a test opens the FIFO. Where another point waits already it does not. */
static void hold_point(const char *path)
{
	auto_free char *fifo = NULL, *making = NULL;
	struct inotify_event opened;

	if (asprintf(&fifo, "%s.held", path) < 0 ||
	    asprintf(&making, "%s.%d", fifo, gettid()) < 0 || mkfifo(making, 0600) < 0)
		return;
	/* A test that finds it may lower our limit of descriptors: so all are there before it has its name. */
	auto_close int fd = open(making, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	auto_close int watch_fd = inotify_init1(IN_CLOEXEC);
	const bool is_held = fd >= 0 && watch_fd >= 0 &&
			     inotify_add_watch(watch_fd, making, IN_OPEN) >= 0 &&
			     link(making, fifo) == 0;
	unlink(making);
	while (is_held && read(watch_fd, &opened, sizeof(opened)) < 0 && errno == EINTR)
		;
	if (is_held)
		unlink(fifo);
}

static int act(const char *path, const char *action, const char *arg)
{
	const pid_t pid = arg ? find_peer(arg) : getpid();

	if (!strcmp(action, "error"))
		return arg ? -abs(atoi(arg)) : -EIO;
	if (!strcmp(action, "delay"))
		delay_ms(arg ? atol(arg) : 0);
	else if (!strcmp(action, "hold"))
		hold_point(path);
	else if (!strcmp(action, "kill") && pid > 0)
		kill(pid, SIGKILL);
	else if (!strcmp(action, "stop") && pid > 0)
		stop(path, pid);
	return 0;
}

int fault_point(const char *name)
{
	const char *path = secure_getenv("BRUMATE_FAULT_FILE");
	if (!path)
		return 0;

	auto_free char *spec = NULL;
	if (file_read(AT_FDCWD, path, SPEC_BYTES_MAX, &spec, NULL) < 0)
		return 0;

	char *lines = spec;
	char *arg = strsep(&lines, "\n");
	const char *point = strsep(&arg, " ");
	if (strcmp(point, name) || !arg || unlink(path) < 0)
		return 0;
	if (lines && *lines)
		file_swap(AT_FDCWD, path, lines, strlen(lines), 0600);

	const char *action = strsep(&arg, ":");
	return act(path, action, arg && *arg ? arg : NULL);
}
