// SPDX-License-Identifier: MIT
/*
 * Faults on demand. A fault is CALL:N:ACTION, several are separated by commas:
 *
 *	CALL    a driver function (cuMemAlloc or cuMemAlloc_v2), or target:lock, target:checkpoint,
 *	        target:restore, target:unlock for what the target of a checkpoint call does, or
 *	        init:found for cuInit when checkpoint calls find the process already
 *	N       the Nth such call of the process, from 1; * for every one
 *	ACTION  error=CODE, delay=MS, crash, hang, or hold=FIFO: waits until the FIFO has been opened for writing
 *	        and closed again
 *
 * They come from BRUMATE_SIM_FAULT and, for calls of the checkpoint family only, from the files
 * fault-PID and fault in the directory of the machine, which are read at each such call.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sim.h"

enum { FAULTS_MAX = 64, CALL_BYTES = 64, FIFO_BYTES = 256, FAULT_FILE_BYTES_MAX = 8192 };

enum action { ACTION_ERROR, ACTION_DELAY, ACTION_CRASH, ACTION_HANG, ACTION_HOLD };

struct fault {
	char call[CALL_BYTES];
	unsigned int nth; /* 0: every one */
	enum action action;
	unsigned int value; /* code or milliseconds */
	char fifo[FIFO_BYTES];
};

struct faults {
	struct fault list[FAULTS_MAX];
	size_t n;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct faults from_environment, from_files;
static bool any; /* changed under the lock, read without */
static struct {
	char call[CALL_BYTES];
	unsigned int count;
} counters[256];
static size_t n_counters;

static bool parse_action(char *text, struct fault *ret)
{
	char *value = strchr(text, '='), *end = NULL;

	if (value) {
		*value++ = '\0';
		if (!strcmp(text, "hold")) {
			ret->action = ACTION_HOLD;
			return snprintf(ret->fifo, FIFO_BYTES, "%s", value) < FIFO_BYTES;
		}
		ret->value = (unsigned int)strtoul(value, &end, 10);
		if (!*value || *end)
			return false;
	}
	if (!strcmp(text, "error") || !strcmp(text, "delay")) {
		ret->action = *text == 'e' ? ACTION_ERROR : ACTION_DELAY;
		return value;
	}
	if (strcmp(text, "crash") && strcmp(text, "hang"))
		return false;
	ret->action = *text == 'c' ? ACTION_CRASH : ACTION_HANG;
	return !value;
}

/* CALL:N:ACTION, where CALL may itself hold a colon. */
static bool parse_fault(char *text, struct fault *ret)
{
	char *action = strrchr(text, ':'), *nth, *end;

	if (!action)
		return false;
	*action++ = '\0';
	nth = strrchr(text, ':');
	if (!nth || nth == text || nth - text >= CALL_BYTES)
		return false;
	*nth++ = '\0';
	strcpy(ret->call, text);
	ret->nth = 0;
	if (strcmp(nth, "*")) {
		ret->nth = (unsigned int)strtoul(nth, &end, 10);
		if (*end || !ret->nth)
			return false;
	}
	return parse_action(action, ret);
}

static void parse_faults(char *text, const char *from, struct faults *into)
{
	char *rest = text, *item;

	while ((item = strsep(&rest, ",\n"))) {
		char shown[128];

		if (!*item)
			continue;
		snprintf(shown, sizeof(shown), "%s", item);
		if (into->n < FAULTS_MAX && parse_fault(item, &into->list[into->n]))
			into->n++;
		else
			fprintf(stderr, "simulated CUDA driver: %s: \"%s\" is not CALL:N:ACTION\n",
				from, shown);
	}
}

static void read_environment(void)
{
	const char *value = getenv("BRUMATE_SIM_FAULT");
	auto_free char *text = value ? strdup(value) : NULL;

	if (!text)
		return;
	pthread_mutex_lock(&lock);
	parse_faults(text, "BRUMATE_SIM_FAULT", &from_environment);
	__atomic_store_n(&any, from_environment.n > 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
}

static void read_fault_file(const char *path)
{
	auto_free char *text = NULL;

	if (!file_read(AT_FDCWD, path, FAULT_FILE_BYTES_MAX, &text, NULL))
		parse_faults(text, path, &from_files);
}

static void read_files(void)
{
	const struct config *config = config_get();
	char path[PATH_MAX];

	if (!config)
		return;
	pthread_mutex_lock(&lock);
	from_files.n = 0;
	snprintf(path, sizeof(path), "%s/fault-%d", config->dir, getpid());
	read_fault_file(path);
	snprintf(path, sizeof(path), "%s/fault", config->dir);
	read_fault_file(path);
	pthread_mutex_unlock(&lock);
}

static unsigned int count_call(const char *call)
{
	size_t i = 0;

	while (i < n_counters && strcmp(counters[i].call, call))
		i++;
	if (i == n_counters) {
		if (n_counters == sizeof(counters) / sizeof(*counters))
			return 0;
		snprintf(counters[n_counters++].call, CALL_BYTES, "%s", call);
	}
	return ++counters[i].count;
}

static bool same_call(const char *wanted, const char *call)
{
	size_t len = strlen(wanted);

	return !strncmp(call, wanted, len) && (!call[len] || !strcmp(call + len, "_v2"));
}

static bool find(const struct faults *faults, const char *call, unsigned int nth, struct fault *ret)
{
	for (size_t i = 0; i < faults->n; i++) {
		const struct fault *fault = &faults->list[i];

		if (same_call(fault->call, call) && (!fault->nth || fault->nth == nth)) {
			*ret = *fault;
			return true;
		}
	}
	return false;
}

static void hold(const char *fifo)
{
	auto_close int fd = open(fifo, O_RDONLY | O_CLOEXEC);
	char byte;

	while (fd >= 0 && read(fd, &byte, 1) < 0 && errno == EINTR)
		;
}

static CUresult act(const struct fault *fault)
{
	struct timespec wait = { fault->value / 1000, (long)(fault->value % 1000) * 1000000 };

	switch (fault->action) {
	case ACTION_ERROR:
		return (CUresult)fault->value;
	case ACTION_DELAY:
		while (clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, &wait) == EINTR)
			;
		return CUDA_SUCCESS;
	case ACTION_CRASH:
		abort();
	case ACTION_HANG:
		for (;;)
			pause();
	case ACTION_HOLD:
		hold(fault->fifo);
		return CUDA_SUCCESS;
	}
	return CUDA_SUCCESS;
}

CUresult sim_fault(const char *call)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool family = !strncmp(call, "target:", 7) || !strncmp(call, "cuCheckpoint", 12);
	struct fault fault;
	bool found;

	pthread_once(&once, read_environment);
	if (!family && !__atomic_load_n(&any, __ATOMIC_RELAXED))
		return CUDA_SUCCESS;
	if (family)
		read_files();
	pthread_mutex_lock(&lock);
	unsigned int nth = count_call(call);
	found = find(&from_environment, call, nth, &fault) ||
		(family && find(&from_files, call, nth, &fault));
	pthread_mutex_unlock(&lock);
	return found ? act(&fault) : CUDA_SUCCESS;
}
