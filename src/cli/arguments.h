// SPDX-License-Identifier: MIT
/* From a parsed command line to the parameters of a method. Each adds to @parameters what is given. */
#pragma once

#include <jansson.h>

#include "cli/command.h"

/** The value of a string option, if given, under @key. */
int add_string(json_t *parameters, const char *key, const char *value, struct brumate_error *err);

/** true under @key if the flag @id was given. */
int add_flag(json_t *parameters, const char *key, const struct invocation *in, enum option_id id,
	     struct brumate_error *err);

/** What is given of the options of a request for @where (REQUEST_SUSPEND …; job/request.h). A key is read
 * from its file here, as the user who calls. */
int add_request(json_t *parameters, const struct invocation *in, unsigned where,
		struct brumate_error *err);

/** --pid as "pid". */
int add_pid(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** --gpu, else $BRUMATE_GPU, as "gpu". */
int add_gpu(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** --dir and the like, made absolute. */
int add_path(json_t *parameters, const char *key, const char *path, struct brumate_error *err);

/** The job that is meant: exactly one of the operand and --pid. */
int add_target(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** What an operand is to mean: "job" by --job, "checkpoint" by --checkpoint; NULL if neither is given. */
int get_kind(const char **ret, const struct invocation *in, struct brumate_error *err);

/** @path made absolute by the working directory (owned), NULL without memory. */
char *absolute_path(const char *path);

/** --keep-last as "keep_last", --keep-within as "keep_within_ms". */
int add_retention(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** Our environment as Run takes it (owned), NULL without memory. What is not UTF-8 is told and left out. */
json_t *pack_environment(void);

/** `brumate checkpoint --every`. */
int schedule_checkpoints(const struct invocation *in, struct brumate_error *err);

/** Whether --format json was given. */
bool wants_json(const struct invocation *in);

/** Prints @o (borrowed) with "apiVersion" first, indented, on stdout. 0 or -EIO. */
int print_json(json_t *o, struct brumate_error *err);
