// SPDX-License-Identifier: MIT
/*
 * From a parsed command line to the parameters of a method: reading small values (pure), and adding to
 * @parameters what is given.
 */
#pragma once

#include "cli/command.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/** Whether @word is one of the space-separated @words (may be NULL). */
bool words_contain(const char *words, const char *word);

/** The states of a job that is no more, as words_contain() takes them. */
#define STATES_ENDED "exited lost"

/** Those of a job that has no processes. */
#define STATES_WITHOUT_PROCESSES STATES_ENDED " checkpointed"

enum { WORDS_LISTED_BYTES = 256 };

/** The space-separated @words as a sentence has them: "auto, none, lz4 or zstd". */
void words_list(char ret[static WORDS_LISTED_BYTES], const char *words);

/** Reads a time: "500ms", "30s", "2m", "1h", "7d", "1.5s"; a bare number is seconds. -EINVAL names @what. */
int parse_duration(uint64_t *ret_ms, const char *what, const char *text, struct brumate_error *err);

/** The same, of one that wants a unit unless it is 0: "5 minutes" in two words would be five seconds, and removes or saves what nobody
 * meant. @hint: what to write. */
int parse_span(uint64_t *ret_ms, const char *what, const char *text, const char *hint,
	       struct brumate_error *err);

/** Reads a moment: a time ago ("2h", as parse_duration() takes it), or a date and time: "2026-11-23", "2026-11-23 20:15",
 * "2026-11-23T20:15:00" of here, and with a "Z" at its end of UTC. Milliseconds since 1970. -EINVAL. */
int parse_since(uint64_t *ret_ms, const char *text, struct brumate_error *err);

/** When to give up by @text, the value of --timeout, or @default_ms after now where it is NULL; 0: never. */
int parse_deadline(uint64_t *ret_ns, const char *text, uint64_t default_ms,
		   struct brumate_error *err);

/** Reads a number from 1. -EINVAL names @what. */
int parse_count(int64_t *ret, const char *what, const char *text, struct brumate_error *err);

/** Reads a process id. */
int parse_pid(int64_t *ret, const char *text, struct brumate_error *err);

/** Reads a signal: "TERM", "SIGTERM" or "15". */
int parse_signal(int *ret, const char *text, struct brumate_error *err);

/** The name of the @i-th signal, as parse_signal() reads it; NULL after the last. */
const char *signal_name(size_t i);

/** Reads "OLD=NEW,OLD=NEW" as an array of {from, to}; each side a UUID or a number. Owned. */
int parse_gpu_map(json_t **ret, const char *text, struct brumate_error *err);

/** The value of a string option, if given, under @key. */
int add_string(json_t *parameters, const char *key, const char *value, struct brumate_error *err);

/** The whole number @value under @key, which is its option's name too; the method checks its range. -EINVAL. */
int add_number(json_t *parameters, const char *key, const char *value, struct brumate_error *err);

/** true under @key if the flag @id was given. */
int add_flag(json_t *parameters, const char *key, const struct invocation *in, int id,
	     struct brumate_error *err);

/** What is given of the options of a request for @where (REQUEST_SUSPEND …; job/request.h). A key is read
 * from its file here, as the user who calls. */
int add_request(json_t *parameters, const struct invocation *in, unsigned where,
		struct brumate_error *err);

/** --pid as "pid". */
int add_pid(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** --simulated, else $BRUMATE_GPU, as "gpu". */
int add_gpu(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** --dir and the like, made absolute. */
int add_path(json_t *parameters, const char *key, const char *path, struct brumate_error *err);

/** Adds what names a checkpoint or job: a path where there is a slash in it, or else a word. */
int add_operand(json_t *parameters, const char *key, const char *word, struct brumate_error *err);

/** The job that is meant: exactly one of the operand and --pid. */
int add_target(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** An option of a command that only some of its words take, as --oci of "k8s checkpoint". */
struct word_option {
	int id;
	const char *option, *words;
};

/** Refuses an option that the word, the first operand, does not take. 0 or -EINVAL. */
int check_word_options(const struct invocation *in, const struct word_option *all, size_t n,
		       struct brumate_error *err);

/** What an operand is to mean: "job" by --job, "checkpoint" by --checkpoint; NULL if neither is given. */
int get_kind(const char **ret, const struct invocation *in, struct brumate_error *err);

/** @path made absolute by the working directory (owned), NULL without memory. */
char *absolute_path(const char *path);

/** --keep-last as "keep_last", --keep-within as "keep_within_ms". */
int add_retention(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** Each --label, as "labels". */
int add_labels(json_t *parameters, const struct invocation *in, struct brumate_error *err);

/** Our environment as Run takes it (owned), NULL without memory. Leaves out variables that are not UTF-8, and says
 * so. */
json_t *pack_environment(void);
