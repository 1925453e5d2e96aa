// SPDX-License-Identifier: MIT
/*
 * `brumate push` and `pull`, and what `ls`, `rm` and `restore` do with s3://... . Credentials are read
 * here, as the user who calls, and go along with the call.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/remote.h"
#include "cli/words.h"
#include "remote/remote.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/paths.h"

int add_remote(json_t *p, const char *url, struct brumate_error *err)
{
	auto_(remote_config_fini) struct remote_config config = REMOTE_CONFIG_DEFAULT;
	auto_(remote_place_fini) struct remote_place place = REMOTE_PLACE_EMPTY;
	int r = remote_place_parse(&place, url, err);

	if (r == 0)
		r = remote_config_load(&config, place.bucket, err);
	if (r == 0)
		r = add_string(p, "url", url, err);
	if (r < 0)
		return r;
	if (json_object_set_new(p, "remote", remote_config_to_json(&config)) < 0)
		return brumate_fail(err, EINVAL, "%s: a setting for it is not UTF-8", url);
	return 0;
}

static int move(const char *method, const char *verb, json_t *p, json_t **ret,
		struct brumate_error *err)
{
	struct progress progress = { .verb = verb };
	int cancel_fd = interrupt_watch(true);

	if (cancel_fd < 0)
		return brumate_fail(err, -cancel_fd, "pipe: %m");
	int r = client_call(method, p, progress_show, &progress, cancel_fd, ret, err);
	progress_clear(&progress);
	return r;
}

/* "pushed train-1: 12 files, 35.0 MB (8.1 MB of it moved) in 1.2 s", on stderr. */
static void print_moved(json_t *reply, const char *done)
{
	char bytes[WORD_BYTES], moved[WORD_BYTES];
	const char *id = json_string_value(json_object_get(reply, "checkpoint"));

	format_bytes(bytes, (uint64_t)json_integer_value(json_object_get(reply, "bytes")));
	format_bytes(moved, (uint64_t)json_integer_value(json_object_get(reply, "moved_bytes")));
	fprintf(stderr, "%s %s: %lld files, %s; moved %lld files, %s, in %.1f s\n", done,
		id ? id : "", (long long)json_integer_value(json_object_get(reply, "files")), bytes,
		(long long)json_integer_value(json_object_get(reply, "moved_files")), moved,
		json_number_value(json_object_get(reply, "seconds")));
}

int verb_push(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	const char *word = in->operands[0];
	int r = add_remote(p, in->operands[1], err);

	if (r == 0)
		r = strchr(word, '/') ? add_path(p, "checkpoint", word, err)
				      : add_string(p, "checkpoint", word, err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = move("Push", "push", p, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_moved(reply, "pushed");
	puts(json_string_value(json_object_get(reply, "url")));
	return 0;
}

static int pull(json_t **ret, const char *url, const char *dir, struct brumate_error *err)
{
	auto_json json_t *p = json_object();
	int r = add_remote(p, url, err);

	if (r == 0)
		r = add_path(p, "dir", dir, err);
	return r < 0 ? r : move("Pull", "pull", p, ret, err);
}

int verb_pull(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = pull(&reply, in->operands[0], in->values[OPT_DIR], err);

	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_moved(reply, "pulled");
	puts(json_string_value(json_object_get(reply, "checkpoint")));
	return 0;
}

int pull_path(char **ret, const char *url, const char *dir, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = pull(&reply, url, dir, err);

	if (r < 0)
		return r;
	print_moved(reply, "pulled");
	char *path = path_format("%s/%s", json_string_value(json_object_get(reply, "dir")),
				 json_string_value(json_object_get(reply, "checkpoint")));
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = path;
	return 0;
}

int list_remote(json_t **ret, const char *url, struct brumate_error *err)
{
	auto_json json_t *p = json_object();
	int r = add_remote(p, url, err);

	return r < 0 ? r : move("RemoteCheckpoints", "ls", p, ret, err);
}

int remove_remote(const char *url, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_remote(p, url, err);

	return r < 0 ? r : move("RemoteRemove", "rm", p, &reply, err);
}
