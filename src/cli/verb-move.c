// SPDX-License-Identifier: MIT
/* `brumate export` and `import`: a checkpoint as one stream, through a file or a pipe. */
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"

static int move(const char *method, const char *verb, json_t *p, int fd, json_t **ret,
		struct brumate_error *err)
{
	struct progress progress = { .verb = verb };
	int cancel_fd = interrupt_watch(true);

	if (cancel_fd < 0)
		return brumate_fail(err, -cancel_fd, "pipe: %m");
	int r = client_call_fd(method, p, fd, progress_show, &progress, cancel_fd, ret, err);
	progress_clear(&progress);
	return r;
}

static int refuse_terminal(int fd, const char *verb, struct brumate_error *err)
{
	if (!isatty(fd))
		return 0;
	brumate_fail(err, EINVAL, "%s: a checkpoint is nothing for a terminal", verb);
	brumate_hint(err,
		     "name a FILE, or use a pipe: brumate export ID | ssh HOST brumate import");
	return -EINVAL;
}

/* The file appears when it is whole: written beside it under another name. */
static int export_to_file(const char *path, json_t *p, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	auto_free char *partial = path_format("%s.partial", path);
	auto_close int fd =
		partial ? open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
	if (fd < 0 && partial && errno == EEXIST) {
		brumate_fail(err, EEXIST,
			     "%s is there: another export to it, or one that was killed", partial);
		brumate_hint(err, "remove it if no export is under way");
		return -EEXIST;
	}
	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", partial ? partial : path);

	int r = move("Export", "export", p, fd, &reply, err);
	if (r == 0 && (fsync(fd) < 0 || rename(partial, path) < 0))
		r = brumate_fail(err, errno, "%s: %m", path);
	if (r < 0)
		unlink(partial);
	else
		puts(json_string_value(json_object_get(reply, "checkpoint")));
	return r;
}

int verb_export(const struct invocation *in, struct brumate_error *err)
{
	auto_json json_t *p = json_object(), *reply = NULL;
	const char *word = in->operands[0], *path = in->values[OPT_OUTPUT];
	int r = strchr(word, '/') ? add_path(p, "checkpoint", word, err)
				  : add_string(p, "checkpoint", word, err);

	if (r == 0)
		r = add_path(p, "dir", in->values[OPT_DIR], err);
	if (r < 0)
		return r;
	if (path && strcmp(path, "-"))
		return export_to_file(path, p, err);
	r = refuse_terminal(STDOUT_FILENO, "export", err);
	return r < 0 ? r : move("Export", "export", p, STDOUT_FILENO, &reply, err);
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
		r = move("Import", "import", p, fd, &reply, err);
	if (r == 0)
		puts(json_string_value(json_object_get(reply, "checkpoint")));
	return r;
}
