// SPDX-License-Identifier: MIT
/* Timers that are set to a time of day; see alarms.h. */
#include "process/alarms.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "process/process.h"

enum { FDINFO_BYTES_MAX = 1 << 20, TRIES = 100, AT_ONCE_NS = 50000 };

/* A fact of the kernel: how often it has expired since it was read. */
#define SET_TICKS _IOW('T', 0, uint64_t)

static uint64_t day_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static struct timespec time_of(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S),
				  .tv_nsec = (long)(ns % NS_PER_S) };
}

static uint64_t ns_of(struct timespec t)
{
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* The timer @number of the process, where it is one. */
static int take_timer(pid_t pid, int number)
{
	auto_close int fd = proc_descriptor(pid, number);
	struct itimerspec when;

	return fd < 0 || timerfd_gettime(fd, &when) < 0 ? -1 : take_fd(&fd);
}

static bool find_number(const char *info, const char *name, int base, uint64_t *ret)
{
	const char *line = strstr(info, name);

	if (line)
		*ret = strtoull(line + strlen(name), NULL, base);
	return line;
}

/* What is left of it, and when that is. */
static bool get_rest(int fd, struct itimerspec *ret, uint64_t *ret_due_ns)
{
	for (int i = 0; i < TRIES; i++) {
		const uint64_t now_ns = day_ns();

		if (timerfd_gettime(fd, ret) < 0)
			return false;
		*ret_due_ns = day_ns() + ns_of(ret->it_value);
		if (*ret_due_ns - ns_of(ret->it_value) - now_ns < AT_ONCE_NS)
			break;
	}
	return true;
}

/* Asking for the rest of one that repeats, and has expired unread, counts what has come and sets it to the next time, which
 * reading it would do as well. */
static bool read_alarm(struct alarm *ret, pid_t pid, int number)
{
	auto_close int fd = take_timer(pid, number);
	auto_free char *info = NULL;
	struct itimerspec when;
	uint64_t due_ns, clock, flags, ticks;
	char name[32];

	if (fd < 0 || !get_rest(fd, &when, &due_ns))
		return false;
	snprintf(name, sizeof(name), "fdinfo/%d", number);
	if (!ns_of(when.it_value) || proc_file_read(pid, name, FDINFO_BYTES_MAX, &info, NULL) < 0 ||
	    !find_number(info, "clockid: ", 10, &clock) || clock != CLOCK_REALTIME ||
	    !find_number(info, "\nsettime flags: ", 8, &flags) || !(flags & TFD_TIMER_ABSTIME) ||
	    !find_number(info, "\nticks: ", 10, &ticks))
		return false;
	*ret = (struct alarm){ .fd = number,
			       .ends_with_clock = flags & TFD_TIMER_CANCEL_ON_SET,
			       .due_ns = due_ns,
			       .interval_ns = ns_of(when.it_interval),
			       .ticks = ticks };
	return true;
}

/* ---- of processes ---- */

/* Facts of the kernel: the numbers of its queues, modulo 4, and the function of such a timer. */
enum { QUEUE_MONOTONIC = 0, QUEUE_REALTIME = 1, QUEUES_HARD = 4 };
#define TIMER_FUNCTION ", posix_timer_fn,"
#define NEAR_NS	       5000000ll /* what two looks at a clock may be apart */

/* @line: "# expires at 300-300 nsecs [in 200 to 200 nsecs]" */
static bool parse_due(const char *line, uint64_t *ret_due_ns, int64_t *ret_left_ns)
{
	return sscanf(line, " # expires at %" SCNu64 "-%*u nsecs [in %" SCNd64, ret_due_ns,
		      ret_left_ns) == 2;
}

enum alarm_kind alarm_judge(const char *queues, uint64_t left_ns, uint64_t age_ns,
			    uint64_t *ret_due_ns)
{
	size_t n_of_day = 0, n_of_span = 0;
	int queue = -1;
	uint64_t due_ns = 0;

	for (const char *line = queues, *next; line; line = next) {
		const char *end = strchr(line, '\n'), *function;
		uint64_t its_due_ns;
		int64_t its_left_ns;

		next = end ? end + 1 : NULL;
		if (sscanf(line, " .index: %d", &queue) == 1 || !next)
			continue;
		function = strstr(line, TIMER_FUNCTION);
		if (!function || function > end || !parse_due(next, &its_due_ns, &its_left_ns))
			continue;
		const int64_t passed_ns = (int64_t)left_ns - its_left_ns;
		if (passed_ns < -NEAR_NS || passed_ns > (int64_t)age_ns + NEAR_NS)
			continue;
		n_of_span += queue % QUEUES_HARD == QUEUE_MONOTONIC;
		if (queue % QUEUES_HARD == QUEUE_REALTIME && (!n_of_day || its_due_ns != due_ns)) {
			due_ns = its_due_ns;
			n_of_day++;
		}
	}
	if (n_of_day + (n_of_span > 0) != 1)
		return ALARM_UNKNOWN;
	if (n_of_day)
		*ret_due_ns = due_ns;
	return n_of_day ? ALARM_OF_DAY : ALARM_OF_SPAN;
}

void alarm_timer_words(uint64_t ret[static 4], const struct alarm_timer *t)
{
	ret[0] = t->interval_ns / NS_PER_S;
	ret[1] = t->interval_ns % NS_PER_S;
	ret[2] = t->due_ns / NS_PER_S;
	ret[3] = t->due_ns % NS_PER_S;
}

int alarms_read(struct alarm **ret, size_t *ret_n, pid_t pid)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "fd");
	auto_free struct alarm *items = NULL;
	size_t n_items = 0;

	for (struct dirent *e; dir && (e = readdir(dir));) {
		char target[64];
		struct alarm alarm;
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (!strcmp(target, "anon_inode:[timerfd]") &&
		    read_alarm(&alarm, pid, atoi(e->d_name)) &&
		    array_add(items, n_items, alarm) < 0)
			return -ENOMEM;
	}
	*ret = take_ptr(&items);
	*ret_n = n_items;
	return 0;
}

/* Setting it forgets what was not read; so it is set to a time to come, and what has come is counted here. */
static bool set_repeating(const struct alarm *a, int fd, int flags)
{
	for (int i = 0; i < TRIES; i++) {
		const uint64_t now_ns = day_ns();
		const uint64_t come =
			now_ns < a->due_ns ? 0 : (now_ns - a->due_ns) / a->interval_ns + 1;
		const uint64_t next_ns = a->due_ns + come * a->interval_ns;
		const uint64_t ticks = a->ticks + come;
		const struct itimerspec when = { .it_value = time_of(next_ns),
						 .it_interval = time_of(a->interval_ns) };

		if (timerfd_settime(fd, flags, &when, NULL) < 0 ||
		    (ticks && ioctl(fd, SET_TICKS, &ticks) < 0))
			return false;
		if (day_ns() < next_ns)
			return true;
	}
	return true; /* of a nanosecond or so: it ticks without end */
}

bool alarm_set(const struct alarm *a, pid_t pid)
{
	auto_close int fd = take_timer(pid, a->fd);
	const int flags = TFD_TIMER_ABSTIME | (a->ends_with_clock ? TFD_TIMER_CANCEL_ON_SET : 0);
	const struct itimerspec once = { .it_value = time_of(a->due_ns) };

	if (fd < 0)
		return false;
	return a->interval_ns ? set_repeating(a, fd, flags)
			      : timerfd_settime(fd, flags, &once, NULL) == 0;
}
