// SPDX-License-Identifier: MIT
/* `brumate doctor`: one line a finding, and below each that is not well what to do about it. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *level;
	enum style style;
} levels[] = {
	{ "ok", STYLE_GREEN },
	{ "note", STYLE_DIM },
	{ "warn", STYLE_YELLOW },
	{ "fail", STYLE_RED },
};

static void print_finding(json_t *o)
{
	const char *level = text_of(o, "level");
	enum style style = STYLE_PLAIN;
	char padded[16];

	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
		if (!strcmp(levels[i].level, level))
			style = levels[i].style;
	snprintf(padded, sizeof(padded), "%-5s", level);
	print_styled(stdout, style, padded);
	printf(" %-18s %s\n", text_of(o, "key"), text_of(o, "text"));
	if (text_of(o, "hint")[0] && strcmp(level, "ok"))
		printf("      hint: %s\n", text_of(o, "hint"));
}

static bool has_failures(json_t *findings)
{
	json_t *item;
	size_t i;

	json_array_foreach (findings, i, item)
		if (!strcmp(text_of(item, "level"), "fail"))
			return true;
	return false;
}

int verb_doctor(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *parameters = json_object(), *reply = NULL;
	json_t *findings, *item;
	size_t i;
	int r = add_string(parameters, "job", in->values[OPT_JOB], err);

	if (r == 0)
		r = add_pid(parameters, in, err);
	if (r == 0)
		r = add_gpu(parameters, in, err);
	if (r == 0)
		r = client_ask("Doctor", parameters, &reply, err);
	if (r < 0)
		return r;

	findings = json_object_get(reply, "findings");
	if (wants_json(in)) {
		r = print_json(reply, err);
		if (r < 0)
			return r;
	} else {
		json_array_foreach (findings, i, item)
			print_finding(item);
	}
	return has_failures(findings) ? EXIT_UNSUPPORTED : EXIT_OK;
}
