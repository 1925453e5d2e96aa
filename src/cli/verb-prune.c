// SPDX-License-Identifier: MIT
/* `brumate prune` and `gc`: letting checkpoints go by a rule, and what interrupted ones left. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/terminal.h"

#include <errno.h>
#include <stdio.h>

static void print_remarks(json_t *remarks, const char *what)
{
	json_t *remark;
	size_t i;

	json_array_foreach (remarks, i, remark) {
		print_styled(stderr, STYLE_YELLOW, "note:");
		fprintf(stderr, " %s %s: %s\n", what,
			json_string_value(json_object_get(remark, "id")),
			json_string_value(json_object_get(remark, "text")));
	}
}

int verb_prune(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	json_t *id;
	size_t i;
	int r = add_retention(p, in, err);

	if (r == 0 && !in->values[OPT_KEEP_LAST] && !in->values[OPT_KEEP_WITHIN]) {
		brumate_fail(err, EINVAL, "prune: --keep-last or --keep-within is missing");
		brumate_hint(err, "say what to keep; --dry-run shows what would go");
		return -EINVAL;
	}
	if (r == 0)
		r = add_string(p, "job", in->values[OPT_JOB], err);
	if (r == 0)
		r = add_flag(p, "dry_run", in, OPT_DRY_RUN, err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = client_ask("Prune", p, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_remarks(json_object_get(reply, "kept"), "kept");
	print_remarks(json_object_get(reply, "damaged"), "damaged, kept");
	json_array_foreach (json_object_get(reply, "removed"), i, id)
		puts(json_string_value(id));
	return 0;
}

int verb_gc(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_path(p, "dir", in->values[OPT_DIR], err);

	if (r == 0)
		r = client_ask("Sweep", p, &reply, err);
	if (r == 0)
		printf("%" JSON_INTEGER_FORMAT "\n",
		       json_integer_value(json_object_get(reply, "swept")));
	return r;
}
