// SPDX-License-Identifier: MIT
/* `brumate rehearse`: a checkpoint is restored apart from the machine, compared with what was saved, and thrown away. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"

#include <stdio.h>
#include <string.h>

#include "job/request.h"

static long long number_of(json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

static void print_rehearsal(json_t *o)
{
	char memory[WORD_BYTES];
	json_t *note;
	size_t i;

	json_array_foreach (json_object_get(o, "notes"), i, note) {
		print_styled(stderr, STYLE_YELLOW, "note:");
		fprintf(stderr, " %s\n", json_string_value(note));
	}
	format_bytes(memory, (uint64_t)(number_of(o, "memory_bytes") + number_of(o, "page_bytes")));
	fprintf(stderr,
		"%s: comes back as it was: %lld processes, %lld mappings, %lld descriptors, %s of "
		"memory, %.3f s\n",
		text_of(o, "id"), number_of(o, "processes"), number_of(o, "mappings"),
		number_of(o, "descriptors"), memory,
		json_number_value(json_object_get(o, "seconds")));
	puts(text_of(o, "id"));
}

int verb_rehearse(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_operand(p, "checkpoint", in->operands[0], err);

	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_REHEARSE, err);
	if (r == 0)
		r = client_call_shown("Rehearse", "rehearse", p, NULL, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_rehearsal(json_object_get(reply, "rehearsal"));
	return 0;
}
