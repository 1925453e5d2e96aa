// SPDX-License-Identifier: MIT
/* `brumate doctor`: a verdict, then one line a finding, the gravest first, and below each that is not well what to do
 * about it. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"

/* In order of weight. */
static const struct {
	const char *level;
	enum style style;
} levels[] = {
	{ "fail", STYLE_RED },
	{ "warn", STYLE_YELLOW },
	{ "note", STYLE_DIM },
	{ "ok", STYLE_GREEN },
};

enum { N_LEVELS = sizeof(levels) / sizeof(levels[0]) };

static void print_finding(json_t *o, enum style style)
{
	char padded[16];

	snprintf(padded, sizeof(padded), "%-5s", text_of(o, "level"));
	print_styled(stdout, style, padded);
	printf(" %-18s %s\n", text_of(o, "key"), text_of(o, "text"));
	if (text_of(o, "hint")[0] && strcmp(text_of(o, "level"), "ok"))
		printf("      hint: %s\n", text_of(o, "hint"));
}

static unsigned count_level(json_t *findings, const char *level)
{
	unsigned n = 0;
	json_t *item;
	size_t i;

	json_array_foreach (findings, i, item)
		n += !strcmp(text_of(item, "level"), level);
	return n;
}

/* The first line: what all the others come to. */
static void print_verdict(json_t *findings, bool of_slurm)
{
	unsigned fails = count_level(findings, "fail"), warnings = count_level(findings, "warn");
	char text[128];

	if (fails)
		snprintf(text, sizeof(text), "%u %s in the way here", fails,
			 fails == 1 ? "thing stands" : "things stand");
	else if (warnings)
		snprintf(text, sizeof(text), "ready, with %u warning%s", warnings,
			 warnings == 1 ? "" : "s");
	else
		snprintf(text, sizeof(text),
			 of_slurm ? "ready: Slurm suspends and saves jobs of --brumate"
				  : "ready: jobs can be suspended, checkpointed and restored here");
	print_styled(stdout, fails ? STYLE_RED : warnings ? STYLE_YELLOW : STYLE_GREEN, text);
	putchar('\n');
}

static void print_findings(json_t *findings)
{
	json_t *item;
	size_t i;

	for (size_t l = 0; l < N_LEVELS; l++)
		json_array_foreach (findings, i, item)
			if (!strcmp(levels[l].level, text_of(item, "level")))
				print_finding(item, levels[l].style);
}

/* "LEVEL\tKEY\tTEXT\tHINT" */
static json_t *read_finding(char *line)
{
	const char *level = strsep(&line, "\t"), *key = strsep(&line, "\t");
	const char *text = strsep(&line, "\t"), *hint = strsep(&line, "\t\n");

	return hint ? json_pack("{s:s,s:s,s:s,s:s}", "level", level, "key", key, "text", text,
				"hint", hint)
		    : NULL;
}

/* Slurm is another program's subject. */
static int ask_slurm(json_t **ret, struct brumate_error *err)
{
	auto_free char *program = path_find_helper("brumate-slurm");
	auto_free char *command = program ? path_format("exec '%s' doctor", program) : NULL;
	auto_json json_t *findings = json_array();
	auto_free char *line = NULL;
	size_t room = 0;
	FILE *f = command && findings ? popen(command, "re") : NULL;

	if (!program)
		return brumate_fail(err, ENOENT, "brumate-slurm is not installed");
	if (!f)
		return brumate_fail(err, errno, "%s: %m", program);
	while (getline(&line, &room, f) > 0) {
		json_t *one = read_finding(line);

		if (one)
			json_array_append_new(findings, one);
	}
	int status = pclose(f);
	if (status || !json_array_size(findings))
		return brumate_fail(err, EIO, "%s: ended with status %d", program, status);
	*ret = json_pack("{s:O}", "findings", findings);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

int verb_doctor(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	json_t *findings;
	const char *other = in->values[OPT_JOB]		? "--job"
			    : in->values[OPT_PID]	? "--pid"
			    : in->values[OPT_SIMULATED] ? "--simulated"
							: NULL;

	if (in->values[OPT_SLURM] && other)
		return brumate_fail(err, EINVAL, "doctor: --slurm cannot be combined with %s",
				    other);
	int r = add_string(parameters, "job", in->values[OPT_JOB], err);

	if (r == 0)
		r = add_pid(parameters, in, err);
	if (r == 0)
		r = add_gpu(parameters, in, err);
	if (r == 0)
		r = in->values[OPT_SLURM] ? ask_slurm(&reply, err)
					  : client_ask("Doctor", parameters, &reply, err);
	if (r < 0)
		return r;

	findings = json_object_get(reply, "findings");
	if (wants_json(in)) {
		r = print_json(reply, err);
		if (r < 0)
			return r;
	} else {
		if (!in->values[OPT_JOB] && !in->values[OPT_PID])
			print_verdict(findings, in->values[OPT_SLURM]);
		print_findings(findings);
	}
	return count_level(findings, "fail") ? EXIT_UNSUPPORTED : EXIT_OK;
}
