// SPDX-License-Identifier: MIT
/*
 * `brumate export` and `import`: a checkpoint as one stream, through a file or a pipe. `push` and `pull`, and what
 * `ls`, `rm` and `restore` do with s3://...: credentials are read here, as the user who calls, and go along with
 * the call.
 */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "job/request.h"
#include "store/source.h"

/* ---- export and import ---- */

static int refuse_terminal(int fd, const char *verb, struct brumate_error *err)
{
	if (!isatty(fd))
		return 0;
	brumate_fail(err, EINVAL, "%s: a checkpoint cannot be written to a terminal", verb);
	brumate_hint(err,
		     "name a FILE, or use a pipe: brumate export ID | ssh HOST brumate import");
	return -EINVAL;
}

static int export_to(int fd, json_t *p, json_t **ret, struct brumate_error *err)
{
	int r = refuse_terminal(fd, "export", err);

	return r < 0 ? r : client_call_shown("Export", "export", p, &fd, ret, err);
}

static int export_to_special(const char *path, json_t *p, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	auto_close int fd = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", path);

	int r = export_to(fd, p, &reply, err);
	if (r == 0)
		puts(json_string_value(json_object_get(reply, "checkpoint")));
	return r;
}

/* The file appears when it is whole: it is written under another name in the same directory. */
static int export_to_file(const char *path, json_t *p, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	auto_free char *partial = path_format("%s.partial", path);
	auto_close int fd =
		partial ? open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
	if (fd < 0 && partial && errno == EEXIST) {
		brumate_fail(err, EEXIST,
			     "%s exists: another export to it is running, or one was killed",
			     partial);
		brumate_hint(err, "remove it if no export is running");
		return -EEXIST;
	}
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", path);

	int r = export_to(fd, p, &reply, err);
	if (r == 0 && (fsync(fd) < 0 || rename(partial, path) < 0))
		r = brumate_fail(err, errno, "%s: %m", path);
	if (r < 0)
		unlink(partial);
	else
		puts(json_string_value(json_object_get(reply, "checkpoint")));
	return r;
}

/* Adds the checkpoint that the first operand says, under @key, and where it is. */
static int add_checkpoint(json_t *p, const char *key, const struct invocation *in,
			  struct brumate_error *err)
{
	const char *word = in->operands[0];
	int r = add_operand(p, key, word, err);

	return r < 0 ? r : add_path(p, "dir", in->values[OPT_DIR], err);
}

int verb_export(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	const char *path = in->values[OPT_OUTPUT];
	int r = add_checkpoint(p, "checkpoint", in, err);

	if (r == 0)
		r = add_request(p, in, REQUEST_READ, err);
	if (r < 0)
		return r;
	if (path && strcmp(path, "-"))
		return (is_special(path) ? export_to_special : export_to_file)(path, p, err);
	return export_to(STDOUT_FILENO, p, &reply, err);
}

int verb_import(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	const char *path = in->n_operands ? in->operands[0] : "-";
	bool from_stdin = !strcmp(path, "-");
	auto_close int file = from_stdin ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	int fd = from_stdin ? STDIN_FILENO : file;
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", path);

	int r = refuse_terminal(fd, "import", err);
	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_READ, err);
	if (r == 0)
		r = client_call_shown("Import", "import", p, &fd, &reply, err);
	if (r < 0 && !from_stdin)
		brumate_wrap(err, r, "%s", path);
	if (r < 0 || wants_json(in))
		return r < 0 ? r : print_json(reply, err);
	puts(text_of(reply, "checkpoint"));
	return 0;
}

/* ---- places elsewhere ---- */

int add_remote(json_t *p, const char *url, struct brumate_error *err)
{
	const struct source_kind *kind;
	json_t *remote;
	int r = source_find_kind(&kind, url, err);

	if (r == 0)
		r = kind->address(&remote, url, err);
	if (r < 0)
		return r;
	if (json_object_set_new(p, "remote", remote) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return add_string(p, "url", url, err);
}

/* "pushed train-1: 12 files, 35.0 MB (8.1 MB of it moved) in 1.2 s", on stderr. */
static void print_moved(json_t *reply, const char *done)
{
	char bytes[WORD_BYTES], moved[WORD_BYTES], seconds[WORD_BYTES];
	const char *id = json_string_value(json_object_get(reply, "checkpoint"));

	format_bytes(bytes, bytes_of(reply, "bytes"));
	format_bytes(moved, bytes_of(reply, "moved_bytes"));
	format_seconds(seconds, json_number_value(json_object_get(reply, "seconds")));
	fprintf(stderr, "%s %s: %lld files, %s; moved %lld files, %s, in %s\n", done, id ? id : "",
		(long long)json_integer_value(json_object_get(reply, "files")), bytes,
		(long long)json_integer_value(json_object_get(reply, "moved_files")), moved,
		seconds);
}

/* Whether the checkpoint to push is not here, which @err then says in place of what it says of the object store: who
 * mistypes a name need not look for credentials first. */
static bool is_missing(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_pack("{s:s}", "kind", "checkpoint");
	struct brumate_error missing = { 0 };

	if (!p || add_checkpoint(p, "what", in, NULL) < 0 ||
	    client_ask("Inspect", p, NULL, &missing) != -ENOENT)
		return false;
	*err = missing;
	return true;
}

int verb_push(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_remote(p, in->operands[1], err);

	if (r < 0 && r != -EINVAL && is_missing(in, err))
		r = -ENOENT;
	if (r == 0)
		r = add_checkpoint(p, "checkpoint", in, err);
	if (r == 0)
		r = add_request(p, in, REQUEST_READ, err);
	if (r == 0)
		r = client_call_shown("Push", "push", p, NULL, &reply, err);
	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_moved(reply, "pushed");
	puts(json_string_value(json_object_get(reply, "url")));
	return 0;
}

static int pull(json_t **ret, const struct invocation *in, const char *url,
		struct brumate_error *err)
{
	auto_json json_t *p = json_object();
	int r = add_remote(p, url, err);

	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r == 0)
		r = add_request(p, in, REQUEST_READ, err);
	return r < 0 ? r : client_call_shown("Pull", "pull", p, NULL, ret, err);
}

int verb_pull(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = pull(&reply, in, in->operands[0], err);

	if (r < 0)
		return r;
	if (wants_json(in))
		return print_json(reply, err);
	print_moved(reply, "pulled");
	puts(json_string_value(json_object_get(reply, "checkpoint")));
	return 0;
}

int pull_path(char **ret, const struct invocation *in, const char *url, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	int r = pull(&reply, in, url, err);

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

	return r < 0 ? r : client_call_shown("RemoteCheckpoints", "ls", p, NULL, ret, err);
}

int remove_remote(const char *url, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	int r = add_remote(p, url, err);

	return r < 0 ? r : client_call_shown("RemoteRemove", "rm", p, NULL, &reply, err);
}
