// SPDX-License-Identifier: MIT
/* The environment as it goes to the job: in order, and without what JSON cannot carry, which is told. */
#include "check.h"
#include "cli/arguments.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *some[] = { (char[]){ "A=1" }, (char[]){ "BAD=\xff" }, (char[]){ "C=\xc3\xa4=b" },
			NULL };
static char *none[] = { NULL };

int main(void)
{
	char told[256] = "";
	FILE *out = tmpfile();

	CHECK(out && dup2(fileno(out), STDERR_FILENO) == STDERR_FILENO);
	environ = some;
	json_t *env = pack_environment();
	environ = none;
	json_t *empty = pack_environment();

	CHECK(json_array_size(env) == 2 && json_is_array(empty) && !json_array_size(empty));
	CHECK_STR(json_string_value(json_array_get(env, 0)), "A=1");
	CHECK_STR(json_string_value(json_array_get(env, 1)), "C=\xc3\xa4=b");
	CHECK(pread(fileno(out), told, sizeof(told) - 1, 0) > 0);
	CHECK_STR(told, "brumate: BAD is not passed on: its value is not UTF-8\n");
	json_decref(env);
	json_decref(empty);
	fclose(out);
	return 0;
}
