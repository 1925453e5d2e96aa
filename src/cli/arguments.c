// SPDX-License-Identifier: MIT
/*
 * From a command line to the parameters of a method: the line is read by the command table, then each value,
 * then what was given goes into the parameters. Reading is pure: it touches argv only.
 */
#include "cli/arguments.h"
#include "cli/command.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/nearest.h"
#include "base/paths.h"
#include "job/job.h"
#include "job/request.h"
#include "chunks/key.h"
#include "wire/wire.h"

/* ---- the line ---- */

const struct command *command_find(const char *name)
{
	const struct command *c;

	for (size_t i = 0; (c = command_at(i)); i++)
		if (!strcmp(c->name, name) || words_contain(c->aliases, name))
			return c;
	return NULL;
}

const char *command_suggest(const char *name)
{
	char lower[NEAREST_BYTES] = "";
	struct nearest n = { .word = lower };

	for (size_t i = 0; name[i] && i + 1 < sizeof(lower); i++)
		lower[i] = (char)tolower((unsigned char)name[i]);
	for (const struct former_command *f = former_commands; f->name; f++)
		if (!strcmp(f->name, lower))
			return f->now;
	for (size_t i = 0; command_at(i); i++)
		if (words_contain(command_at(i)->foreign, lower))
			return command_at(i)->name;
	for (size_t i = 0; command_at(i); i++)
		nearest_consider(&n, command_at(i)->name);
	return n.found[0] ? command_find(n.found)->name : NULL;
}

static const struct option_spec *find_option(const struct command *c, const char *name, size_t len)
{
	if (strlen(help_option.name) == len && !strncmp(help_option.name, name, len))
		return &help_option;
	for (const struct option_spec *o = c->options; o->name; o++)
		if (strlen(o->name) == len && !strncmp(o->name, name, len))
			return o;
	return NULL;
}

static const struct option_spec *find_letter(const struct command *c, char letter)
{
	if (letter == help_option.letter)
		return &help_option;
	for (const struct option_spec *o = c->options; o->name; o++)
		if (o->letter && o->letter == letter)
			return o;
	return NULL;
}

static void hint_help(const struct command *c, struct brumate_error *err)
{
	brumate_hint(err, "see `brumate %s --help`", c->name);
}

/* Replaces the hint by what to do instead of @option, an option of another tool. Whether there is such advice. */
static bool hint_foreign(const struct command *c, const char *option, struct brumate_error *err)
{
	for (const struct foreign_option *f = foreign_options; f->command; f++) {
		if ((*f->command && strcmp(f->command, c->name) != 0) ||
		    (strcmp(f->options, option) != 0 && !words_contain(f->options, option)))
			continue;
		brumate_hint(err, "%s", f->hint);
		return true;
	}
	return false;
}

/* Such an option is not to be typed because an error suggests it. */
static bool turns_check_off(enum option_id id)
{
	return id == OPT_FORCE || id == OPT_YES || id == OPT_ALLOW_UNAUTHENTICATED ||
	       id == OPT_TCP_CLOSE || id == OPT_TCP_SKIP_IN_FLIGHT || id == OPT_DROP_EXTERNAL;
}

static int fail_unknown_option(const struct command *c, const char *name, size_t len,
			       struct brumate_error *err)
{
	char wanted[NEAREST_BYTES + 2] = "--";
	struct nearest n = { .word = wanted + 2 };

	brumate_fail(err, EINVAL, "%s: unknown option --%.*s", c->name, (int)len, name);
	hint_help(c, err);
	if (len >= NEAREST_BYTES)
		return -EINVAL;

	memcpy(wanted + 2, name, len);
	wanted[len + 2] = '\0';
	if (hint_foreign(c, wanted, err))
		return -EINVAL;
	if (!strcmp(wanted, "--json") && find_option(c, "format", strlen("format"))) {
		brumate_hint(err, "did you mean --format json?");
		return -EINVAL;
	}
	const struct option_spec *begins = NULL; /* with what was given */
	for (const struct option_spec *o = c->options; o->name; o++) {
		if (turns_check_off(o->id))
			continue;
		nearest_consider(&n, o->name);
		if (!begins && len && !strncmp(o->name, name, len))
			begins = o;
	}
	if (begins || n.found[0])
		brumate_hint(err, "did you mean --%s?", begins ? begins->name : n.found);
	return -EINVAL;
}

static int store_option(struct invocation *in, const struct option_spec *o, const char *value,
			struct brumate_error *err)
{
	const struct command *c = in->command;

	/* As of a variable in a script that is not set: what would happen without the option is not what is meant. */
	if (o->value && !*value) {
		brumate_fail(err, EINVAL, "%s: --%s: the value is empty, expected %s", c->name,
			     o->name, o->value);
		hint_help(c, err);
		return -EINVAL;
	}
	if (o->value && o->words && !words_contain(o->words, value)) {
		char list[WORDS_LISTED_BYTES];

		words_list(list, o->words);
		brumate_fail(err, EINVAL, "%s: --%s: \"%s\": expected %s", c->name, o->name, value,
			     list);
		hint_help(c, err);
		return -EINVAL;
	}
	in->values[o->id] = o->value ? value : "";
	if (o->id != OPT_LABEL)
		return 0;
	if (in->n_labels == GIVEN_LABELS_MAX)
		return brumate_fail(err, EINVAL, "%s: more than %d labels", c->name,
				    GIVEN_LABELS_MAX);
	in->labels[in->n_labels++] = value;
	return 0;
}

/* The value of @o: what follows '=' or the letter, else the next argument. */
static int take_value(struct invocation *in, const struct option_spec *o, const char *attached,
		      int argc, char **argv, int *i, struct brumate_error *err)
{
	if (attached)
		return store_option(in, o, attached, err);
	if (*i + 1 < argc)
		return store_option(in, o, argv[++*i], err);

	brumate_fail(err, EINVAL, "%s: --%s needs a value: %s", in->command->name, o->name,
		     o->value);
	hint_help(in->command, err);
	return -EINVAL;
}

static int parse_long(struct invocation *in, int argc, char **argv, int *i,
		      struct brumate_error *err)
{
	const char *name = argv[*i] + 2;
	const char *equals = strchr(name, '=');
	size_t len = equals ? (size_t)(equals - name) : strlen(name);
	const struct option_spec *o = find_option(in->command, name, len);

	if (!o)
		return fail_unknown_option(in->command, name, len, err);
	if (o->value)
		return take_value(in, o, equals ? equals + 1 : NULL, argc, argv, i, err);
	if (!equals)
		return store_option(in, o, NULL, err);

	brumate_fail(err, EINVAL, "%s: --%s takes no value", in->command->name, o->name);
	hint_help(in->command, err);
	return -EINVAL;
}

static int fail_unknown_letter(const struct command *c, char letter, struct brumate_error *err)
{
	const char option[] = { '-', letter, '\0' };

	brumate_fail(err, EINVAL, "%s: unknown option %s", c->name, option);
	if (!hint_foreign(c, option, err))
		hint_help(c, err);
	return -EINVAL;
}

static int parse_letters(struct invocation *in, int argc, char **argv, int *i,
			 struct brumate_error *err)
{
	for (const char *p = argv[*i] + 1; *p; p++) {
		const struct option_spec *o = find_letter(in->command, *p);

		if (!o)
			return fail_unknown_letter(in->command, *p, err);
		if (o->value)
			return take_value(in, o, p[1] ? p + 1 : NULL, argc, argv, i, err);
		store_option(in, o, NULL, err);
	}
	return 0;
}

/* Those of a command line that is to be run may be empty. */
static int check_operands_not_empty(const struct invocation *in, struct brumate_error *err)
{
	for (int i = 0; i < in->n_operands && !in->command->operands_last; i++)
		if (!*in->operands[i]) {
			brumate_fail(err, EINVAL, "%s: an operand is empty, expected %s",
				     in->command->name, in->command->operands);
			hint_help(in->command, err);
			return -EINVAL;
		}
	return 0;
}

static int check_operands(const struct invocation *in, struct brumate_error *err)
{
	const struct command *c = in->command;

	if (in->values[OPT_HELP])
		return 0;
	bool is_missing = in->n_operands < c->n_operands_min && !in->values[OPT_EXAMPLE];
	if (is_missing)
		brumate_fail(err, EINVAL, "%s: missing operand, expected %s", c->name, c->operands);
	else if (c->n_operands_max >= 0 && in->n_operands > c->n_operands_max)
		brumate_fail(err, EINVAL, "%s: unexpected operand \"%s\"", c->name,
			     in->operands[c->n_operands_max]);
	else
		return check_operands_not_empty(in, err);
	if (is_missing || !hint_foreign(c, "", err))
		hint_help(c, err);
	return -EINVAL;
}

int command_parse(struct invocation *ret, const struct command *command, int argc, char **argv,
		  struct brumate_error *err)
{
	struct invocation in = { .command = command, .operands = argv };
	bool options_ended = false;
	int n = 0;

	for (int i = 0; i < argc; i++) {
		int r = 0;

		if (!options_ended && !strcmp(argv[i], "--")) {
			options_ended = true;
			continue;
		}
		if (options_ended || argv[i][0] != '-' || !argv[i][1]) {
			options_ended = options_ended || command->operands_last;
			argv[n++] = argv[i]; /* n <= i: operands move to the front */
			continue;
		}
		if (argv[i][1] == '-')
			r = parse_long(&in, argc, argv, &i, err);
		else
			r = parse_letters(&in, argc, argv, &i, err);
		if (r < 0)
			return r;
	}
	in.n_operands = n;
	argv[n] = NULL; /* argv[argc] is ours too: it is the NULL that ends every argv */

	int r = check_operands(&in, err);
	if (r < 0)
		return r;
	*ret = in;
	return 0;
}

/* ---- values ---- */

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

void words_list(char ret[static WORDS_LISTED_BYTES], const char *words)
{
	size_t len = 0;

	*ret = '\0';
	for (const char *p = words; *p && len < WORDS_LISTED_BYTES;) {
		const size_t n = strcspn(p, " ");
		const char *between = p == words ? "" : p[n] ? ", " : " or ";

		len += (size_t)snprintf(ret + len, WORDS_LISTED_BYTES - len, "%s%.*s", between,
					(int)n, p);
		p += n;
		p += strspn(p, " ");
	}
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
	brumate_fail(err, EINVAL, "%s: \"%s\" is not a duration", what, text);
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

int parse_deadline(uint64_t *ret_ns, const char *text, uint64_t default_ms,
		   struct brumate_error *err)
{
	uint64_t ms = default_ms;
	int r = text ? parse_duration(&ms, "--timeout", text, err) : 0;

	if (r == 0)
		*ret_ns = ms ? deadline_in_ms(ms) : DEADLINE_NEVER;
	return r;
}

/* Whether all of @text is a date and time by @format, with a "Z" for UTC or without. */
static bool parse_date(uint64_t *ret_ms, const char *text, const char *format)
{
	struct tm tm = { .tm_isdst = -1 };
	const char *rest = strptime(text, format, &tm);

	if (!rest || (*rest && strcmp(rest, "Z") != 0))
		return false;
	const time_t seconds = *rest ? timegm(&tm) : mktime(&tm);
	*ret_ms = (uint64_t)seconds * 1000;
	return seconds >= 0;
}

int parse_since(uint64_t *ret_ms, const char *text, struct brumate_error *err)
{
	static const char *const formats[] = { "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S",
					       "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d" };
	const uint64_t now_ms = clock_wall_ns() / NS_PER_MS;
	uint64_t ago_ms;

	if (clock_parse_stamp(ret_ms, text) == 0)
		return 0;
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (parse_date(ret_ms, text, formats[i]))
			return 0;
	if (parse_duration(&ago_ms, "--since", text, NULL) < 0) {
		brumate_fail(err, EINVAL, "--since: \"%s\" is not a time", text);
		brumate_hint(err, "write 10m or 2h for that long ago, or a date such as 2026-11-23 "
				  "or \"2026-11-23 20:15\"");
		return -EINVAL;
	}
	*ret_ms = now_ms > ago_ms ? now_ms - ago_ms : 0;
	return 0;
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
		return brumate_fail(err, EINVAL, "%s: \"%s\" is not a whole number of 1 or more",
				    what, text);
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

const char *signal_name(size_t i)
{
	return i < sizeof(signal_names) / sizeof(signal_names[0]) ? signal_names[i].name : NULL;
}

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

static int fail_gpu_map(const char *text, struct brumate_error *err)
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

static int add_gpu_pair(json_t *pairs, char *text, struct brumate_error *err)
{
	char *to = strchr(text, '=');

	if (!to)
		return fail_gpu_map(text, err);
	*to++ = '\0';
	if (!is_gpu_name(text) || !is_gpu_name(to)) {
		to[-1] = '=';
		return fail_gpu_map(text, err);
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
		r = add_gpu_pair(pairs, strsep(&rest, ","), err);
	if (r < 0) {
		json_decref(pairs);
		return r;
	}
	*ret = pairs;
	return 0;
}

/* ---- parameters ---- */

static int set_parameter(json_t *parameters, const char *key, json_t *value,
			 struct brumate_error *err)
{
	return json_object_set_new(parameters, key, value) < 0 ? brumate_fail(err, ENOMEM, "%m")
							       : 0;
}

int add_string(json_t *parameters, const char *key, const char *value, struct brumate_error *err)
{
	if (!value)
		return 0;

	json_t *string = json_string(value);
	if (!string)
		return brumate_fail(err, EINVAL, "%s: \"%s\" is not UTF-8", key, value);
	return set_parameter(parameters, key, string, err);
}

int add_number(json_t *parameters, const char *key, const char *value, struct brumate_error *err)
{
	char *end;

	errno = 0;
	long long n = strtoll(value, &end, 10);
	if (errno || end == value || *end)
		return brumate_fail(err, EINVAL, "--%s: \"%s\" is not a whole number", key, value);
	return set_parameter(parameters, key, json_integer(n), err);
}

int add_flag(json_t *parameters, const char *key, const struct invocation *in, int id,
	     struct brumate_error *err)
{
	return in->values[id] ? set_parameter(parameters, key, json_true(), err) : 0;
}

int add_pid(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	int64_t pid = 0;

	if (!in->values[OPT_PID])
		return 0;
	int r = parse_pid(&pid, in->values[OPT_PID], err);
	return r < 0 ? r : set_parameter(parameters, "pid", json_integer(pid), err);
}

int add_gpu(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	const char *kind = in->values[OPT_SIMULATED] ? "simulated" : getenv("BRUMATE_GPU");

	/* check_environment() has refused other values. */
	if (!kind || !*kind)
		return 0;
	return add_string(parameters, "gpu", strcmp(kind, "real") ? kind : "", err);
}

char *absolute_path(const char *path)
{
	if (path[0] == '/')
		return strdup(path);

	auto_free char *cwd = getcwd(NULL, 0);
	return cwd ? path_format("%s/%s", cwd, path) : NULL;
}

int add_path(json_t *parameters, const char *key, const char *path, struct brumate_error *err)
{
	if (!path)
		return 0;

	auto_free char *absolute = absolute_path(path);
	if (!absolute)
		return brumate_fail(err, errno, "%s: %m", path);
	return add_string(parameters, key, absolute, err);
}

int add_operand(json_t *parameters, const char *key, const char *word, struct brumate_error *err)
{
	return strchr(word, '/') ? add_path(parameters, key, word, err)
				 : add_string(parameters, key, word, err);
}

/* The key is read here, as the user who calls. */
static int add_key(json_t *parameters, const char *key_name, const char *path,
		   struct brumate_error *err)
{
	auto_(seal_key_fini) struct seal_key key = { { 0 } };
	char text[DIGEST_TEXT_BYTES];
	struct digest digits;

	int r = store_key_read(&key, path, err);
	if (r < 0)
		return r;
	memcpy(digits.bytes, key.bytes, sizeof(digits.bytes));
	digest_format(text, &digits);
	r = add_string(parameters, key_name, text, err);
	explicit_bzero(text, sizeof(text));
	explicit_bzero(&digits, sizeof(digits));
	return r;
}

static int add_time(json_t *parameters, const struct request_option *o, const char *value,
		    struct brumate_error *err)
{
	char what[64];
	uint64_t ms;

	snprintf(what, sizeof(what), "--%s", o->word);
	int r = parse_duration(&ms, what, value, err);
	return r < 0 ? r : set_parameter(parameters, o->name, json_integer((json_int_t)ms), err);
}

static int add_gpu_map(json_t *parameters, const char *key, const char *value,
		       struct brumate_error *err)
{
	json_t *map;
	int r = parse_gpu_map(&map, value, err);

	return r < 0 ? r : set_parameter(parameters, key, map, err);
}

static int add_request_option(json_t *parameters, const struct request_option *o, const char *value,
			      struct brumate_error *err)
{
	switch (o->type) {
	case REQUEST_FLAG:
		return set_parameter(parameters, o->name, json_true(), err);
	case REQUEST_TIME:
		return add_time(parameters, o, value, err);
	case REQUEST_GPU_MAP:
		return add_gpu_map(parameters, o->name, value, err);
	case REQUEST_KEY:
		return add_key(parameters, o->name, value, err);
	case REQUEST_PATH:
		return add_path(parameters, o->name, value, err);
	default:
		return add_string(parameters, o->name, value, err);
	}
}

/* What was given for --@word; NULL: nothing, or the command has no such option. */
static const char *value_of(const struct invocation *in, const char *word)
{
	for (const struct option_spec *o = in->command->options; word && o->name; o++)
		if (!strcmp(o->name, word))
			return in->values[o->id];
	return NULL;
}

int add_request(json_t *parameters, const struct invocation *in, unsigned where,
		struct brumate_error *err)
{
	REQUEST_FOR_EACH (o, where) {
		const char *value = value_of(in, o->word);
		int r = value ? add_request_option(parameters, o, value, err) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}

int add_target(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	const bool may_be_container = find_option(in->command, "container", strlen("container"));
	int ways = (in->n_operands > 0) + !!in->values[OPT_PID] + !!in->values[OPT_CONTAINER];

	if (ways != 1) {
		brumate_fail(err, EINVAL, "%s: expected one of JOB, --all%s and --pid",
			     in->command->name, may_be_container ? ", --container" : "");
		brumate_hint(err, "`brumate ps` lists the jobs");
		return -EINVAL;
	}
	if (in->n_operands > 0)
		return add_string(parameters, "job", in->operands[0], err);
	if (in->values[OPT_CONTAINER])
		return add_string(parameters, "container", in->values[OPT_CONTAINER], err);
	return add_pid(parameters, in, err);
}

int parse_span(uint64_t *ret_ms, const char *what, const char *text, const char *hint,
	       struct brumate_error *err)
{
	int r = parse_duration(ret_ms, what, text, err);

	if (r == 0 && *ret_ms && !text[strspn(text, "0123456789.")])
		r = brumate_fail(err, EINVAL, "%s: \"%s\" has no unit, expected a duration", what,
				 text);
	if (r < 0)
		brumate_hint(err, "%s", hint);
	return r;
}

int add_retention(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	uint64_t within_ms;
	int64_t last = 0;
	int r = 0;

	if (in->values[OPT_KEEP_LAST]) {
		r = parse_count(&last, "--keep-last", in->values[OPT_KEEP_LAST], err);
		if (r == 0)
			r = set_parameter(parameters, "keep_last", json_integer(last), err);
	}
	if (r < 0 || !in->values[OPT_KEEP_WITHIN])
		return r;
	r = parse_span(&within_ms, "--keep-within", in->values[OPT_KEEP_WITHIN],
		       "write it as 12h, 7d or 2w; what is older is removed", err);
	if (r == 0 && within_ms == 0)
		r = brumate_fail(err, EINVAL, "--keep-within: must be positive");
	return r < 0 ? r
		     : set_parameter(parameters, "keep_within_ms",
				     json_integer((json_int_t)within_ms), err);
}

/* What a label may be is checked where the job is made. */
static int add_label(json_t *labels, const char *label, struct brumate_error *err)
{
	const char *value = strchr(label, '=');
	auto_free char *key = value ? strndup(label, (size_t)(value - label)) : NULL;

	if (!value) {
		brumate_fail(err, EINVAL, "run: --label: \"%s\" is not KEY=VALUE", label);
		brumate_hint(err, "as in --label team=vision");
		return -EINVAL;
	}
	if (key && json_object_get(labels, key))
		return brumate_fail(err, EINVAL, "run: --label %s is given twice", key);
	if (!key || json_object_set_new(labels, key, json_string(value + 1)) < 0)
		return brumate_fail(err, EINVAL, "run: --label: \"%s\" is not UTF-8", label);
	return 0;
}

int add_labels(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *labels = json_object();
	int r = labels ? 0 : brumate_fail(err, ENOMEM, "%m");

	for (int i = 0; i < in->n_labels && r == 0; i++)
		r = add_label(labels, in->labels[i], err);
	if (r == 0 && in->values[OPT_WAKE])
		r = add_label(labels, JOB_WAKE_LABEL "=" JOB_WAKE_LABEL_YES, err);
	return r < 0 || !json_object_size(labels)
		       ? r
		       : set_parameter(parameters, "labels", take_ptr(&labels), err);
}

int check_word_options(const struct invocation *in, const struct word_option *all, size_t n,
		       struct brumate_error *err)
{
	for (size_t i = 0; i < n; i++)
		if (in->values[all[i].id] && !words_contain(all[i].words, in->operands[0]))
			return brumate_fail(err, EINVAL, "%s %s: %s goes with %s",
					    in->command->name, in->operands[0], all[i].option,
					    all[i].words);
	return 0;
}

json_t *pack_environment(void)
{
	json_t *env = json_array();

	for (char **v = environ; env && *v; v++)
		if (json_array_append_new(env, json_string(*v)) < 0)
			fprintf(stderr, "brumate: %.*s is not passed on: its value is not UTF-8\n",
				(int)strcspn(*v, "="), *v);
	return env;
}

int get_kind(const char **ret, const struct invocation *in, struct brumate_error *err)
{
	const char *other = in->values[OPT_CHECKPOINT] ? "--checkpoint"
			    : in->values[OPT_DIR]      ? "--dir"
						       : NULL;

	if (in->values[OPT_JOB] && other)
		return brumate_fail(err, EINVAL, "%s: expected either --job or %s",
				    in->command->name, other);
	*ret = in->values[OPT_JOB] ? "job" : in->values[OPT_CHECKPOINT] ? "checkpoint" : NULL;
	return 0;
}
