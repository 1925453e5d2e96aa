// SPDX-License-Identifier: MIT
/* Small values of a command line, read and written; see words.h. */
#include "cli/words.h"
#include "base/cleanup.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool words_contain(const char *words, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = words; p && *p && len;) {
		size_t n = strcspn(p, " ");

		if (n == len && !strncmp(p, word, n))
			return true;
		p += n;
		p += strspn(p, " ");
	}
	return false;
}

static const struct {
	const char *unit;
	double ms;
} duration_units[] = {
	{ "", 1000 }, { "ms", 1 }, { "s", 1000 }, { "m", 60e3 }, { "h", 3600e3 }, { "d", 86400e3 },
};

enum { DURATION_DAYS_MAX = 365 };

static int fail_duration(const char *what, const char *text, struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "%s: \"%s\" is not a time", what, text);
	brumate_hint(err, "write it as 500ms, 30s, 2m, 1h or 7d");
	return -EINVAL;
}

int parse_duration(uint64_t *ret_ms, const char *what, const char *text, struct brumate_error *err)
{
	char *end;

	if (!isdigit((unsigned char)text[0]) || strspn(text, "0123456789.") > 15)
		return fail_duration(what, text, err);
	double number = strtod(text, &end);
	if (end != text + strspn(text, "0123456789."))
		return fail_duration(what, text, err); /* "1e5", "0x10", "1.2.3" */

	for (size_t i = 0; i < sizeof(duration_units) / sizeof(duration_units[0]); i++) {
		double ms = ceil(number * duration_units[i].ms);

		if (strcmp(end, duration_units[i].unit))
			continue;
		if (ms > DURATION_DAYS_MAX * 86400e3)
			return fail_duration(what, text, err);
		*ret_ms = (uint64_t)ms;
		return 0;
	}
	return fail_duration(what, text, err);
}

static int parse_integer(long *ret, const char *text, long min, long max)
{
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	long value = strtol(text, &end, 10);
	if (errno || *end || value < min || value > max)
		return -EINVAL;
	*ret = value;
	return 0;
}

int parse_count(int64_t *ret, const char *what, const char *text, struct brumate_error *err)
{
	long count;

	if (parse_integer(&count, text, 1, INT_MAX) < 0)
		return brumate_fail(err, EINVAL, "%s: \"%s\" is not a number from 1", what, text);
	*ret = count;
	return 0;
}

int parse_pid(int64_t *ret, const char *text, struct brumate_error *err)
{
	long pid;

	if (parse_integer(&pid, text, 1, INT_MAX) < 0)
		return brumate_fail(err, EINVAL, "--pid: \"%s\" is not a process id", text);
	*ret = pid;
	return 0;
}

static const struct {
	const char *name;
	int number;
} signal_names[] = {
	{ "HUP", SIGHUP },   { "INT", SIGINT },	  { "QUIT", SIGQUIT },	   { "ILL", SIGILL },
	{ "TRAP", SIGTRAP }, { "ABRT", SIGABRT }, { "BUS", SIGBUS },	   { "FPE", SIGFPE },
	{ "KILL", SIGKILL }, { "USR1", SIGUSR1 }, { "SEGV", SIGSEGV },	   { "USR2", SIGUSR2 },
	{ "PIPE", SIGPIPE }, { "ALRM", SIGALRM }, { "TERM", SIGTERM },	   { "CHLD", SIGCHLD },
	{ "CONT", SIGCONT }, { "STOP", SIGSTOP }, { "TSTP", SIGTSTP },	   { "TTIN", SIGTTIN },
	{ "TTOU", SIGTTOU }, { "URG", SIGURG },	  { "WINCH", SIGWINCH },   { "IO", SIGIO },
	{ "XCPU", SIGXCPU }, { "XFSZ", SIGXFSZ }, { "VTALRM", SIGVTALRM }, { "PROF", SIGPROF },
	{ "PWR", SIGPWR },   { "SYS", SIGSYS },
};

int parse_signal(int *ret, const char *text, struct brumate_error *err)
{
	const char *name = strncasecmp(text, "SIG", 3) ? text : text + 3;
	long number;

	if (parse_integer(&number, text, 1, NSIG - 1) == 0) {
		*ret = (int)number;
		return 0;
	}
	for (size_t i = 0; i < sizeof(signal_names) / sizeof(signal_names[0]); i++) {
		if (strcasecmp(signal_names[i].name, name))
			continue;
		*ret = signal_names[i].number;
		return 0;
	}
	brumate_fail(err, EINVAL, "--signal: \"%s\" is not a signal", text);
	brumate_hint(err, "write it as TERM, SIGTERM or 15; `kill -l` lists them");
	return -EINVAL;
}

static int fail_map(const char *text, struct brumate_error *err)
{
	brumate_fail(err, EINVAL, "--gpu-map: \"%s\" is not OLD=NEW", text);
	brumate_hint(err, "write it as GPU-aaaa=GPU-bbbb, or with numbers as 0=1,1=0");
	return -EINVAL;
}

static bool is_gpu_name(const char *text)
{
	long number;

	if (isdigit((unsigned char)text[0]))
		return parse_integer(&number, text, 0, 1023) == 0;
	return (!strncmp(text, "GPU-", 4) || !strncmp(text, "MIG-", 4)) && text[4] &&
	       strlen(text) < 48 && text[strspn(text, "GPUMIabcdefABCDEF0123456789-")] == '\0';
}

static int add_pair(json_t *pairs, char *text, struct brumate_error *err)
{
	char *to = strchr(text, '=');

	if (!to)
		return fail_map(text, err);
	*to++ = '\0';
	if (!is_gpu_name(text) || !is_gpu_name(to)) {
		to[-1] = '=';
		return fail_map(text, err);
	}

	size_t i;
	json_t *pair;
	json_array_foreach (pairs, i, pair)
		if (!strcmp(json_string_value(json_object_get(pair, "from")), text))
			return brumate_fail(err, EINVAL, "--gpu-map: %s is mapped twice", text);
	if (json_array_append_new(pairs, json_pack("{s:s,s:s}", "from", text, "to", to)) < 0)
		return brumate_fail(err, ENOMEM, "--gpu-map: %m");
	return 0;
}

int parse_gpu_map(json_t **ret, const char *text, struct brumate_error *err)
{
	auto_free char *copy = strdup(text);
	json_t *pairs = json_array();
	char *rest = copy;
	int r = copy && pairs ? 0 : brumate_fail(err, ENOMEM, "--gpu-map: %m");

	while (r == 0 && rest)
		r = add_pair(pairs, strsep(&rest, ","), err);
	if (r < 0) {
		json_decref(pairs);
		return r;
	}
	*ret = pairs;
	return 0;
}

void format_bytes(char ret[static WORD_BYTES], uint64_t bytes)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1000;
	int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
	snprintf(ret, WORD_BYTES, "%.*f %s", decimals, value, units[unit]);
}

void format_age(char ret[static WORD_BYTES], const char *stamp, time_t now)
{
	struct tm tm = { 0 };

	snprintf(ret, WORD_BYTES, "-");
	if (!stamp || !strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm))
		return;

	long long age = (long long)now - (long long)timegm(&tm);
	if (age < 0)
		age = 0; /* the clock was set back */
	if (age < 120)
		snprintf(ret, WORD_BYTES, "%llds", age);
	else if (age < 2 * 3600)
		snprintf(ret, WORD_BYTES, "%lldm", age / 60);
	else if (age < 2 * 86400)
		snprintf(ret, WORD_BYTES, "%lldh", age / 3600);
	else
		snprintf(ret, WORD_BYTES, "%lldd", age / 86400);
}
