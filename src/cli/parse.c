// SPDX-License-Identifier: MIT
/*
 * Reading a command line by the command table. Options and operands may stand in any order, unless
 * the command says that operands come last; "--" ends the options. Pure: touches argv only.
 */
#include "cli/command.h"
#include "cli/words.h"

#include <errno.h>
#include <string.h>

enum { NAME_MAX_COMPARED = 63 };

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t least = a < b ? a : b;

	return least < c ? least : c;
}

size_t edit_distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);
	size_t rows[3][NAME_MAX_COMPARED + 1];

	if (la > NAME_MAX_COMPARED || lb > NAME_MAX_COMPARED)
		return la > lb ? la : lb;

	for (size_t j = 0; j <= lb; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];

		now[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			now[j] = min3(last[j] + 1, now[j - 1] + 1,
				      last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = min3(now[j], before[j - 2] + 1, now[j]);
		}
	}
	return rows[la % 3][lb];
}

const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < n_commands; i++)
		if (!strcmp(commands[i].name, name) || words_contain(commands[i].aliases, name))
			return &commands[i];
	return NULL;
}

/* Keeps in @best what is nearest to @name, and only if it is near enough to be meant. */
static void consider(const char *name, const char *candidate, const char **best,
		     size_t *best_distance)
{
	size_t distance = edit_distance(name, candidate);
	bool near = distance <= (strlen(name) + 2) / 3;

	if (near && distance < *best_distance) {
		*best = candidate;
		*best_distance = distance;
	}
}

const char *command_suggest(const char *name)
{
	const char *best = NULL;
	size_t best_distance = SIZE_MAX;

	for (size_t i = 0; i < n_commands; i++)
		consider(name, commands[i].name, &best, &best_distance);
	return best;
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

static int fail_unknown(const struct command *c, const char *name, size_t len,
			struct brumate_error *err)
{
	const char *best = NULL;
	size_t best_distance = SIZE_MAX;
	char wanted[NAME_MAX_COMPARED + 1];

	brumate_fail(err, EINVAL, "%s: unknown option --%.*s", c->name, (int)len, name);
	hint_help(c, err);
	if (len > NAME_MAX_COMPARED)
		return -EINVAL;

	memcpy(wanted, name, len);
	wanted[len] = '\0';
	for (const struct option_spec *o = c->options; o->name; o++)
		consider(wanted, o->name, &best, &best_distance);
	if (best)
		brumate_hint(err, "did you mean --%s?", best);
	return -EINVAL;
}

static int store(struct invocation *in, const struct option_spec *o, const char *value,
		 struct brumate_error *err)
{
	const struct command *c = in->command;

	if (o->value && o->words && !words_contain(o->words, value)) {
		brumate_fail(err, EINVAL, "%s: --%s: \"%s\" is none of: %s", c->name, o->name,
			     value, o->words);
		hint_help(c, err);
		return -EINVAL;
	}
	in->values[o->id] = o->value ? value : "";
	return 0;
}

/* The value of @o: what follows '=' or the letter, else the next argument. */
static int take_value(struct invocation *in, const struct option_spec *o, const char *attached,
		      int argc, char **argv, int *i, struct brumate_error *err)
{
	if (attached)
		return store(in, o, attached, err);
	if (*i + 1 < argc)
		return store(in, o, argv[++*i], err);

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
		return fail_unknown(in->command, name, len, err);
	if (o->value)
		return take_value(in, o, equals ? equals + 1 : NULL, argc, argv, i, err);
	if (!equals)
		return store(in, o, NULL, err);

	brumate_fail(err, EINVAL, "%s: --%s takes no value", in->command->name, o->name);
	hint_help(in->command, err);
	return -EINVAL;
}

static int parse_letters(struct invocation *in, int argc, char **argv, int *i,
			 struct brumate_error *err)
{
	for (const char *p = argv[*i] + 1; *p; p++) {
		const struct option_spec *o = find_letter(in->command, *p);

		if (!o) {
			brumate_fail(err, EINVAL, "%s: unknown option -%c", in->command->name, *p);
			hint_help(in->command, err);
			return -EINVAL;
		}
		if (o->value)
			return take_value(in, o, p[1] ? p + 1 : NULL, argc, argv, i, err);
		store(in, o, NULL, err);
	}
	return 0;
}

static int check_operands(const struct invocation *in, struct brumate_error *err)
{
	const struct command *c = in->command;

	if (in->values[OPT_HELP])
		return 0;
	if (in->n_operands < c->n_operands_min)
		brumate_fail(err, EINVAL, "%s: %s is missing", c->name, c->operands);
	else if (c->n_operands_max >= 0 && in->n_operands > c->n_operands_max)
		brumate_fail(err, EINVAL, "%s: \"%s\" is too much", c->name,
			     in->operands[c->n_operands_max]);
	else
		return 0;
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
