// SPDX-License-Identifier: MIT
/* What must be there for a checkpoint to be restored; see needs.h. The rules are CRIU's (4.2): of a file that it opens, size and
 * mode are to be as they were; of one that was written at its end alone, the mode. */
#include "engine/needs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/user.h"
#include "engine/externals.h"
#include "engine/job-files.h"
#include "base/escape.h"
#include "process/aside.h"
#include "wire/wire.h"

enum {
	PROBLEM_BYTES = 160,
	LISTED = 3,
	LIST_BYTES = 900,
	ANSWER_MS = 1000,
	SILENT_MAX = 3,
};

/* ---- files ---- */

/* What the kernel makes, and CRIU finds by other ways. */
static bool is_of_kernel(const char *path)
{
	return !strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5) ||
	       !strncmp(path, "/dev/pts/", 9);
}

/* Somewhere else it is given: brumate has it, or makes it. */
static bool is_given(const struct manifest *m, const char *path)
{
	for (size_t i = 0; i < m->n_externals; i++)
		if (!strcmp(m->externals[i].key, path + 1))
			return true;
	return (m->job.log && !strcmp(path, m->job.log)) || programs_are_kept(m, path);
}

static const char *kind_of(mode_t mode)
{
	return S_ISDIR(mode)			? "directory"
	       : S_ISFIFO(mode)			? "fifo"
	       : S_ISLNK(mode)			? "link"
	       : S_ISCHR(mode) || S_ISBLK(mode) ? "device"
						: "file";
}

static const struct job_file *find_job_file(const struct job_files *files, const char *path)
{
	for (size_t i = 0; i < files->n; i++)
		if (!strcmp(files->items[i].path, path))
			return &files->items[i];
	return NULL;
}

/* A file that the job writes is cut back where it has grown, and the restore looks at what it holds. */
static bool has_grown(const struct job_file *of_job, const struct stat *st)
{
	return of_job && st->st_size >= 0 && (uint64_t)st->st_size >= of_job->size_bytes;
}

/* A file that is to be looked at, and what was seen. */
struct wanted {
	json_t *file;		       /* borrowed */
	const struct job_file *of_job; /* it is one of the job's own; NULL: it is not */
	char *path;		       /* owned */
	bool is_link;
};

struct seen {
	int error; /* of stat(2) */
	struct stat st;
};

/* The child writes to @seen and @at, which it shares with us. */
struct looking {
	const struct wanted *wanted;
	size_t n, *at;
	struct seen *seen;
};

static int look_at_all(void *arg)
{
	const struct looking *l = arg;

	for (; *l->at < l->n; ++*l->at) {
		const struct wanted *w = &l->wanted[*l->at];
		struct seen *s = &l->seen[*l->at];

		s->error = (w->is_link ? lstat : stat)(w->path, &s->st) < 0 ? errno : 0;
	}
	return 0;
}

/* A file system that does not answer holds the child, not us; the next one goes on behind that file. A few such are waited for. */
static int look(const struct looking *l, struct brumate_error *err)
{
	int r = 0;

	for (int tries = 0; *l->at < l->n; tries++) {
		if (tries < SILENT_MAX)
			r = aside_run(look_at_all, (void *)l, -1, ANSWER_MS);
		if (r < 0 && r != -ETIMEDOUT)
			return brumate_fail(err, -r, "files of the job: %m");
		if (*l->at < l->n)
			l->seen[(*l->at)++].error = ETIMEDOUT;
	}
	return 0;
}

/* Compares what was seen with what @w->file says. Empty: nothing is wrong. */
static void find_problem(char ret[static PROBLEM_BYTES], const struct wanted *w,
			 const struct seen *s)
{
	const char *kind = text_of(w->file, "kind"), *mode = text_of(w->file, "mode");
	json_t *size = json_object_get(w->file, "size");
	const struct stat *st = &s->st;

	*ret = '\0';
	if (s->error)
		snprintf(ret, PROBLEM_BYTES, "%s",
			 s->error == ENOENT || s->error == ENOTDIR ? "is not there"
			 : s->error == ETIMEDOUT ? "is on a file system that does not answer"
						 : strerror(s->error));
	else if (*mode && strcmp(kind, kind_of(st->st_mode)))
		snprintf(ret, PROBLEM_BYTES, "is a %s, was a %s", kind_of(st->st_mode), kind);
	else if (size && st->st_size != json_integer_value(size) && !has_grown(w->of_job, st))
		snprintf(ret, PROBLEM_BYTES, "is %lld bytes long, was %lld", (long long)st->st_size,
			 (long long)json_integer_value(size));
	else if (*mode && (st->st_mode & 07777) != strtoul(mode, NULL, 8))
		snprintf(ret, PROBLEM_BYTES, "has mode %04o, had %s", st->st_mode & 07777, mode);
}

static int add_need(json_t *needs, const char *escaped, const char *kind, json_t *file,
		    const char *problem, struct brumate_error *err)
{
	json_t *o = json_pack("{s:s,s:s,s:O*,s:O*,s:s*}", "path", escaped, "kind", kind, "size",
			      json_object_get(file, "size"), "mode", json_object_get(file, "mode"),
			      "problem", *problem ? problem : NULL);

	return json_array_append_new(needs, o) < 0 ? brumate_fail(err, ENOMEM, "%m") : 0;
}

struct list {
	struct wanted *items; /* owned */
	size_t n;
};

static void list_fini(struct list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->items[i].path);
	free(l->items);
}
DEFINE_AUTO_FINI(struct list, list_fini)

/* One that was opened to be written at its end has no size, and says less. */
static bool is_listed(const struct list *l, const char *path, json_t *file)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->items[i].path, path) &&
		    (!json_object_get(file, "size") || json_object_get(l->items[i].file, "size")))
			return true;
	return false;
}

static int consider(struct list *l, const struct manifest *m, const struct job_files *files,
		    json_t *file, bool is_restore, struct brumate_error *err)
{
	const char *escaped = text_of(file, "path"), *kind = text_of(file, "kind");
	static const char *const kinds[] = { "file", "directory", "fifo", "link" };
	auto_free char *path = NULL;
	size_t k = 0;

	while (k < sizeof(kinds) / sizeof(*kinds) && strcmp(kind, kinds[k]))
		k++;
	if (k == sizeof(kinds) / sizeof(*kinds) || json_object_get(file, "deleted") ||
	    json_object_get(file, "external"))
		return 0;
	int r = text_unescape(&path, escaped);
	if (r < 0)
		return brumate_fail(err, -r, "path %s: %m", escaped);
	if (*path != '/' || is_of_kernel(path) || is_given(m, path) || is_listed(l, path, file))
		return 0;
	const struct job_file *of_job = find_job_file(files, path);
	/* A restore brings these back, or refuses them with more to say than their size. */
	if (of_job && (is_restore || of_job->kind == JOB_FILE_MEMORY || *of_job->copy))
		return 0;
	if (array_add(l->items, l->n,
		      (struct wanted){ file, of_job, path, !strcmp(kind, "link") }) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	take_ptr(&path);
	return 0;
}

static int add_files(json_t *needs, const struct list *l, struct brumate_error *err)
{
	const size_t len = sizeof(size_t) + l->n * sizeof(struct seen);
	size_t *shared = aside_memory(len);
	const struct looking looking = { l->items, l->n, shared, (struct seen *)(shared + 1) };
	char problem[PROBLEM_BYTES];
	int r = shared ? look(&looking, err) : brumate_fail(err, ENOMEM, "%m");

	for (size_t i = 0; i < l->n && r == 0; i++) {
		json_t *file = l->items[i].file;

		find_problem(problem, &l->items[i], &looking.seen[i]);
		r = add_need(needs, text_of(file, "path"), text_of(file, "kind"), file, problem,
			     err);
	}
	aside_free(shared, len);
	return r;
}

/* ---- agents ---- */

static bool has_device_memory(const struct manifest *m)
{
	for (size_t i = 0; i < m->memory.n_regions; i++)
		if (m->memory.regions[i].kind == MANIFEST_REGION_DEVICE)
			return true;
	return false;
}

/* Processes keep the path at which their agents listen. The directory of @address, where that is of agents (owned). */
static char *agents_of(const char *address, const char *id)
{
	auto_free char *part = path_format("/agents/%s/", id);
	const char *at = part ? strstr(address, part) : NULL;

	return at && *address == '/' ? strndup(address, (size_t)(at - address) + strlen(part) - 1)
				     : NULL;
}

static int consider_agents(json_t *needs, const struct manifest *m, json_t *sockets,
			   struct brumate_error *err)
{
	const char *id = *m->job.started_as ? m->job.started_as : m->job.id;
	auto_free char *here = path_format("%s/agents/%s", path_runtime_dir(), id);
	json_t *socket;
	size_t i;

	if (!here)
		return brumate_fail(err, ENOMEM, "%m");
	json_array_foreach (sockets, i, socket) {
		auto_free char *address = NULL;
		char problem[PROBLEM_BYTES] = "";

		if (strcmp(text_of(socket, "kind"), "unix") ||
		    text_unescape(&address, text_of(socket, "address")) < 0)
			continue;
		auto_free char *there = agents_of(address, id);
		if (!there)
			continue;
		if (strcmp(there, here))
			snprintf(problem, sizeof(problem),
				 "the runtime directory is %.100s here (BRUMATE_RUNTIME_DIR)",
				 path_runtime_dir());
		auto_free char *escaped = text_escape(there, SIZE_MAX);
		return escaped ? add_need(needs, escaped, "agents", NULL, problem, err)
			       : brumate_fail(err, ENOMEM, "%m");
	}
	return 0;
}

/* ---- all of it ---- */

/* What checkpoints of older writers do not have. */
static int read_job_files(struct job_files *ret, criu_image_read_fn read, void *arg,
			  struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r = read(arg, JOB_FILES_RECORD, &text, &len, err);

	if (r == -ENOENT)
		return 0;
	return r < 0 ? r : job_files_decode(ret, text, len, err);
}

static int find(json_t **ret, const struct manifest *m, criu_image_read_fn read, void *arg,
		bool is_restore, struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	auto_(job_files_fini) struct job_files files = JOB_FILES_EMPTY;
	auto_json json_t *all = NULL, *needs = json_array();
	auto_(list_fini) struct list wanted = { 0 };
	json_t *file;
	size_t i;
	int r = needs ? criu_files_read(&all, read, arg, err) : brumate_fail(err, ENOMEM, "%m");

	if (r == 0)
		r = read_job_files(&files, read, arg, err);
	if (r == 0 && has_device_memory(m))
		r = consider_agents(needs, m, json_object_get(all, "sockets"), err);
	if (r == 0 && m->job.uid != geteuid() && geteuid() == 0)
		r = user_files_enter(&user, m->job.uid, m->job.gid, err);
	if (r < 0)
		return r;
	json_array_foreach (json_object_get(all, "files"), i, file)
		if ((r = consider(&wanted, m, &files, file, is_restore, err)) < 0)
			return r;
	if ((r = add_files(needs, &wanted, err)) < 0)
		return r;
	*ret = json_incref(needs);
	return 0;
}

int needs_find(json_t **ret, const struct manifest *m, criu_image_read_fn read, void *arg,
	       struct brumate_error *err)
{
	return find(ret, m, read, arg, false, err);
}

struct images {
	int dir_fd;
};

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
		      struct brumate_error *err)
{
	const struct images *images = arg;
	int r = file_read(images->dir_fd, name, CRIU_IMAGE_BYTES_MAX, ret, ret_len_bytes);

	return r < 0 && r != -ENOENT ? brumate_fail(err, -r, "CRIU's image %s: %m", name) : r;
}

static int fail_needs(const struct manifest *m, json_t *needs, struct brumate_error *err)
{
	char list[LIST_BYTES] = "";
	json_t *need;
	size_t i, n = 0;

	json_array_foreach (needs, i, need) {
		size_t used = strlen(list);

		if (!json_object_get(need, "problem") || ++n > LISTED)
			continue;
		snprintf(list + used, sizeof(list) - used, "%s%.150s %s", used ? "; " : "",
			 text_of(need, "path"), text_of(need, "problem"));
	}
	if (!n)
		return 0;
	brumate_fail(err, EOPNOTSUPP, "checkpoint %s needs what is not here as it was: %s%s", m->id,
		     list, n > LISTED ? "; and more" : "");
	brumate_hint(
		err,
		"`brumate inspect --needs %s` lists all that it needs; put back what is not as "
		"it was (%zu)",
		m->id, n);
	return -EOPNOTSUPP;
}

int needs_check(struct op *op, int images_dir_fd, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	struct images images = { images_dir_fd };
	auto_json json_t *needs = NULL;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	/* What is damaged the digests tell, or CRIU does. */
	if (op->request->force || find(&needs, m, read_image, &images, true, &why) < 0)
		return 0;
	return fail_needs(m, needs, err);
}
