// SPDX-License-Identifier: MIT
/* Rehearsal of a checkpoint; see rehearse.h. */
#include "engine/rehearse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/machine.h"
#include "base/paths.h"
#include "base/thread.h"
#include "criu/images.h"
#include "engine/attributes.h"
#include "engine/connections.h"
#include "engine/job-files.h"
#include "engine/rights.h"
#include "engine/secret.h"
#include "engine/steps.h"
#include "gpu/vendor.h"
#include "job/job.h"
#include "process/apart.h"
#include "process/memory-dir.h"

enum { LOG_BYTES_MAX = 64 << 20, IMAGES_BYTES_MAX = 256 << 20, NICENESS = 10 };

/* What is left to the machine while it also holds the memory of a rehearsed job. */
#define SPARE_BYTES (512ull << 20)

#define LOG_NAME "restore.log"

struct rehearsing {
	struct op *op;
	struct rehearsal *result;
	struct apart apart;
	int work_fd;
	json_t *contents; /* of CRIU's images: Foretold of io.brumate, in part */
	bool goes_on;	  /* the job that was saved runs */
	struct proc_id root;
	bool groups_are_masked;
	bool is_same;
	atomic_bool
		is_given_up; /* the processes do not come back: nobody wants to know of the memory */
};

/* ---- what the images ask for ---- */

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len,
		      struct brumate_error *err)
{
	const struct rehearsing *h = arg;
	int r = file_read_plain(h->op->images.dir_fd, name, CRIU_IMAGE_BYTES_MAX, ret, ret_len);

	return r < 0 && r != -ENOENT ? brumate_fail(err, -r, "CRIU's image %s: %m", name) : r;
}

static bool saved_job_goes_on(const struct manifest *m)
{
	auto_(job_fini) struct job j = JOB_EMPTY;

	return job_id_is_valid(m->job.id) && job_load(&j, m->job.id, NULL) == 0 &&
	       !job_has_ended(&j);
}

/* ---- what is to be seen apart ---- */

struct view {
	const char **paths; /* borrowed from the contents */
	size_t n_paths;
	char **folders; /* owned */
	size_t n_folders;
	struct apart_stand_in *stand_ins;
	size_t n_stand_ins;
};

static void view_fini(struct view *v)
{
	for (size_t i = 0; i < v->n_stand_ins; i++)
		free(v->stand_ins[i].path);
	for (size_t i = 0; i < v->n_folders; i++)
		free(v->folders[i]);
	free(v->folders);
	free(v->stand_ins);
	free(v->paths);
}
DEFINE_AUTO_FINI(struct view, view_fini)

static int add_stand_in(struct view *v, const char *path, uint64_t len_bytes)
{
	for (size_t i = 0; i < v->n_stand_ins; i++)
		if (!strcmp(v->stand_ins[i].path, path))
			return 0;

	struct apart_stand_in *items = array_room(v->stand_ins, v->n_stand_ins, sizeof(*items));

	if (!items)
		return -ENOMEM;
	v->stand_ins = items;
	items[v->n_stand_ins] =
		(struct apart_stand_in){ .path = strdup(path), .len_bytes = len_bytes };
	return items[v->n_stand_ins++].path ? 0 : -ENOMEM;
}

/* The folder that @path lies in, which is below @base if it does not begin with '/'. */
static int add_folder_of(struct view *v, const char *base, const char *path)
{
	char **folders = array_room(v->folders, v->n_folders, sizeof(*folders));
	char *whole = *path == '/' ? strdup(path) : path_format("%s/%s", base, path);
	char *slash = whole ? strrchr(whole, '/') : NULL;

	if (folders)
		v->folders = folders;
	if (!folders || !slash) {
		free(whole);
		return -ENOMEM;
	}
	slash[slash == whole] = '\0';
	folders[v->n_folders++] = whole;
	return 0;
}

static bool may_be_written(json_t *file)
{
	const char *flags = json_string_value(json_object_get(file, "flags"));

	return (flags && strncmp(flags, "O_RDONLY", 8)) || json_object_get(file, "written");
}

/* A file that the job goes on writing is taken as it was when the job was saved; any other as it is. */
static int consider_file(const struct rehearsing *h, struct view *v, json_t *file)
{
	const char *path = json_string_value(json_object_get(file, "path"));
	json_t *size = json_object_get(file, "size");
	struct stat st;

	if (!path || *path != '/')
		return 0;
	int r = array_add(v->paths, v->n_paths, path);
	if (r == 0 && json_object_get(file, "deleted"))
		r = add_folder_of(v, "/", path);
	if (r < 0 || json_object_get(file, "deleted") || !may_be_written(file) ||
	    lstat(path, &st) < 0 || !S_ISREG(st.st_mode))
		return r;
	return add_stand_in(v, path,
			    h->goes_on && size ? (uint64_t)json_integer_value(size)
					       : (uint64_t)st.st_size);
}

static int consider_process(struct view *v, json_t *process)
{
	static const char *const members[] = { "executable", "directory", "root" };
	int r = 0;

	for (size_t i = 0; r == 0 && i < sizeof(members) / sizeof(members[0]); i++) {
		const char *path = json_string_value(json_object_get(process, members[i]));

		if (path)
			r = array_add(v->paths, v->n_paths, path);
	}
	return r;
}

/* Names of sockets are paths, or begin with '@'. */
static int consider_socket(struct view *v, json_t *s)
{
	const char *kind = json_string_value(json_object_get(s, "kind"));
	const char *address = json_string_value(json_object_get(s, "address"));
	const char *base = json_string_value(json_object_get(s, "directory"));

	if (!kind || strcmp(kind, "unix") || !address || *address == '@' ||
	    (*address != '/' && !base))
		return 0;
	return add_folder_of(v, base, address);
}

/* A restore makes it what it was, or creates it again. */
static int consider_job_file(void *arg, const struct job_file *f)
{
	struct view *v = arg;
	size_t before = v->n_stand_ins;
	int r = add_stand_in(v, f->path, f->size_bytes);

	if (r < 0 || v->n_stand_ins == before)
		return r;
	struct apart_stand_in *s = &v->stand_ins[v->n_stand_ins - 1];
	s->is_made = *f->copy;
	s->mode = f->mode;
	s->uid = f->uid;
	s->gid = f->gid;
	return add_folder_of(v, "/", f->path);
}

static int consider_all(const struct rehearsing *h, struct view *v)
{
	json_t *item;
	size_t i;
	int r = array_add(v->paths, v->n_paths, h->op->restore.image.path);

	/* The first stand-in of a path is the one that counts. */
	if (r == 0)
		r = job_files_each(h->op, consider_job_file, v);
	/* CRIU itself writes there. */
	if (r == 0)
		r = add_folder_of(v, "/", "/tmp/any");
	if (r == 0)
		r = add_folder_of(v, path_runtime_dir(), "any");

	json_array_foreach (json_object_get(h->contents, "files"), i, item)
		r = r == 0 ? consider_file(h, v, item) : r;
	json_array_foreach (json_object_get(h->contents, "processes"), i, item)
		r = r == 0 ? consider_process(v, item) : r;
	json_array_foreach (json_object_get(h->contents, "sockets"), i, item)
		r = r == 0 ? consider_socket(v, item) : r;
	return r;
}

static pid_t highest_pid(const struct rehearsing *h)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;
	pid_t highest = 0;

	criu_image_tree_read(&tree, h->op->images.dir_fd);
	for (size_t i = 0; i < tree.n; i++)
		for (size_t k = 0; k < tree.items[i].n_threads; k++)
			highest = MAX(highest, tree.items[i].threads[k]);
	return highest;
}

static int enter_apart(struct rehearsing *h, struct brumate_error *err)
{
	auto_(view_fini) struct view v = { 0 };
	int r = consider_all(h, &v);

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	const struct apart_view view = {
		.paths = v.paths,
		.n_paths = v.n_paths,
		.folders = (const char *const *)v.folders,
		.n_folders = v.n_folders,
		.stand_ins = v.stand_ins,
		.n_stand_ins = v.n_stand_ins,
		.devices = h->op->gpus.vendor->devices,
		.highest_pid = highest_pid(h),
	};
	r = apart_start(&h->apart, &view, err);
	h->op->target->init = r == 0 ? h->apart.init : PROC_ID_NONE;
	return r;
}

/* ---- before it ---- */

static int read_contents(struct rehearsing *h, struct brumate_error *err)
{
	struct op *op = h->op;

	op->images.dir_fd = secret_images_from(op, err);
	if (op->images.dir_fd < 0)
		return op->images.dir_fd;
	return criu_contents_read(&h->contents, read_image, h, err);
}

static int check_rights(struct rehearsing *h, struct brumate_error *err)
{
	struct op *op = h->op;
	struct criu_user *user;
	int r = rights_check_users(op, err);

	if (r == 0)
		r = rights_check_images(op->images.dir_fd, &op->restore.image.manifest,
					op->request->force, err);
	if (r == 0)
		r = rights_for_restore(op, &user, err);
	return r < 0 || !user ? r : rights_copy_images(op, err);
}

/* ---- groups of a user, whom the kernel lets have no others in a user namespace ---- */

static bool are_ours(const struct manifest_rights *had)
{
	auto_free gid_t *own = NULL;
	int n = getgroups(0, NULL), found = 0;

	if (n < 0 || (size_t)n != had->n_groups || !(own = calloc((size_t)n + 1, sizeof(*own))) ||
	    getgroups(n, own) != n)
		return false;
	for (size_t i = 0; i < had->n_groups; i++)
		for (int k = 0; k < n; k++)
			found += own[k] == had->groups[i].gid;
	return found == n;
}

static int check_groups(const struct manifest *m, struct brumate_error *err)
{
	for (size_t i = 0; i < m->n_rights; i++) {
		if (are_ours(&m->rights[i]))
			continue;
		brumate_fail(
			err, EOPNOTSUPP,
			"process %d is in other groups than you are now, which cannot be rehearsed",
			m->rights[i].pid);
		brumate_hint(err, "rehearse it from a login that has the groups which the job was "
				  "started with, "
				  "or as root");
		return -EOPNOTSUPP;
	}
	return 0;
}

/* Pages and deleted files may be large, and are read where they are. */
static int copy_or_link(const struct rehearsing *h, int to_fd, const struct manifest_file *f)
{
	const char *name = f->path + strlen("criu/");
	auto_free char *path = path_format("%s/criu/%s", h->op->restore.image.path, name),
		       *text = NULL;
	size_t len;

	if (!path)
		return -ENOMEM;
	if (!strncmp(name, "pages-", strlen("pages-")) || f->len_bytes > CRIU_IMAGE_BYTES_MAX)
		return symlinkat(path, to_fd, name) < 0 ? -errno : 0;
	int r = file_read_plain(h->op->images.dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);
	return r < 0 ? r : file_swap(to_fd, name, text, len, 0600);
}

/* Images that are in memory already, in the clear, are ours to change. */
static int copy_images(struct rehearsing *h, struct brumate_error *err)
{
	const struct manifest *m = &h->op->restore.image.manifest;
	auto_close int to_fd = *m->key_id ? -1 : memory_dir_open(IMAGES_BYTES_MAX, err);
	int r = 0;

	if (*m->key_id)
		return 0;
	for (size_t i = 0; to_fd >= 0 && r == 0 && i < m->n_files; i++)
		if (!strncmp(m->files[i].path, "criu/", strlen("criu/")))
			r = copy_or_link(h, to_fd, &m->files[i]);
	if (to_fd < 0 || r < 0)
		return to_fd < 0 ? to_fd : brumate_fail(err, -r, "CRIU's images: %m");
	close(h->op->images.dir_fd);
	h->op->images.dir_fd = take_fd(&to_fd);
	return 0;
}

static int mask_groups(struct rehearsing *h, struct brumate_error *err)
{
	int r = geteuid() == 0 ? 0 : criu_images_have_groups(h->op->images.dir_fd);

	if (r > 0 && (r = check_groups(&h->op->restore.image.manifest, err)) == 0 &&
	    (r = copy_images(h, err)) == 0) {
		h->groups_are_masked = true;
		r = criu_mask_groups(h->op->images.dir_fd);
	}
	return r < 0 && !err->code ? brumate_fail(err, -r, "CRIU's images: %m") : r;
}

static int open_work_dir(struct rehearsing *h, struct brumate_error *err)
{
	const struct criu_user *user = h->op->images.user.uid ? &h->op->images.user : NULL;
	int r;

	h->work_fd = memory_dir_open(LOG_BYTES_MAX, err);
	if (h->work_fd < 0)
		return h->work_fd;
	r = user ? criu_lend_dir(h->work_fd, user) : 0;
	return r < 0 ? brumate_fail(err, -r, "CRIU's log: %m") : 0;
}

/* ---- what gives way to whatever runs ---- */

typedef int (*aside_fn)(struct rehearsing *h, struct brumate_error *err);

/* Work in a thread of less priority, which the threads that it makes have, too. CRIU is not made there: what it restores
 * would have that priority, and a user could not take it back. */
struct aside {
	struct rehearsing *h;
	aside_fn fn;
	pthread_t thread;
	bool is_running;
	int r;
	struct brumate_error err;
};

static void *work_aside(void *arg)
{
	struct aside *a = arg;

	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
	a->r = a->fn(a->h, &a->err);
	return NULL;
}

static int start_aside(struct aside *a, struct rehearsing *h, aside_fn fn,
		       struct brumate_error *err)
{
	*a = (struct aside){ .h = h, .fn = fn };
	int r = thread_start(&a->thread, work_aside, a);

	a->is_running = r == 0;
	return r < 0 ? brumate_fail(err, -r, "thread: %m") : 0;
}

/* One that was not started is done. */
static int end_aside(struct aside *a, struct brumate_error *err)
{
	if (!a->is_running)
		return 0;
	pthread_join(a->thread, NULL);
	a->is_running = false;
	if (a->r < 0 && err)
		*err = a->err;
	return a->r;
}

static int do_aside(struct rehearsing *h, aside_fn fn, struct brumate_error *err)
{
	struct aside a;
	int r = start_aside(&a, h, fn, err);

	return r < 0 ? r : end_aside(&a, err);
}

/* ---- bytes ---- */

static int verify_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct rehearsing *h = arg;

	progress_done(&h->op->progress, done_bytes, total_bytes);
	return h->is_given_up ? -ECANCELED : progress_check(&h->op->progress, NULL);
}

static int explain_verify(struct rehearsing *h, int r, struct brumate_error *err)
{
	if (r == -ECANCELED || r == -ETIMEDOUT)
		progress_check(&h->op->progress, err);
	return r;
}

/* CRIU is given nothing that was not compared. */
static int verify_files(struct rehearsing *h, struct brumate_error *err)
{
	return explain_verify(h, store_verify_files(&h->op->restore.image, verify_progress, h, err),
			      err);
}

/* Memory that no process of the rehearsal gets is as good as its digests say. */
static int verify_memory(struct rehearsing *h, struct brumate_error *err)
{
	const struct store_image *image = &h->op->restore.image;
	int r = store_verify_memory(image, verify_progress, h, err);

	if (r == 0)
		h->result->memory_bytes = manifest_memory_bytes(&image->manifest);
	return explain_verify(h, r, err);
}

/* ---- while all of it stands still ---- */

static int fill_memory(struct rehearsing *h, struct brumate_error *err)
{
	struct op *op = h->op;
	const struct criu_user *user = op->images.user.uid ? &op->images.user : NULL;
	uint64_t bytes = manifest_region_bytes(&op->restore.image.manifest, MANIFEST_REGION_HOST);

	if (!bytes)
		return 0;
	if (bytes + SPARE_BYTES > machine_room_bytes()) {
		progress_note(&op->progress,
			      "%.1f GB of the job's CPU memory were compared with their digests, "
			      "and not restored: there "
			      "is no room for them beside what runs",
			      (double)bytes / 1e9);
		return 0;
	}
	int r = cpu_memory_image_fill(&op->restore.image, h->root, user, &op->progress, err);
	if (r == 0)
		h->result->filled_bytes = bytes;
	return r;
}

static int compare(struct rehearsing *h, struct brumate_error *err)
{
	const struct manifest *m = &h->op->restore.image.manifest;
	auto_free const char **replaced = calloc(m->n_externals + 1, sizeof(*replaced));

	if (!replaced)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->n_externals; i++)
		replaced[i] = m->externals[i].key;
	const struct criu_comparing what = {
		.dir_fd = h->op->images.dir_fd,
		.init = h->apart.init.pid,
		.replaced = replaced,
		.n_replaced = m->n_externals,
		.groups_are_masked = h->groups_are_masked,
	};
	return criu_compare(&h->result->compared, &what, err);
}

static int on_event(void *arg, enum criu_event event, struct proc_id root,
		    struct brumate_error *err)
{
	struct rehearsing *h = arg;

	if (event != CRIU_EVENT_RESUMING)
		return 0;
	h->root = root;
	int r = fault_point("rehearse.restored");
	if (r < 0)
		return brumate_fail(err, -r, "injected while the job stands apart: %m");
	h->op->target->root = root;
	r = cpu_memory_image_threads(h->op->images.cpu_memory, &h->op->progress, err);
	if (r == 0)
		r = do_aside(h, fill_memory, err);
	if (r == 0)
		r = op_attributes_give(h->op, err);
	if (r == 0)
		r = compare(h, err);
	if (r == 0)
		r = progress_check(&h->op->progress, err);
	if (r < 0)
		return r;
	/* That is the end of it: CRIU is refused, and what it made is killed. */
	h->is_same = true;
	return brumate_fail(err, ECANCELED, "the rehearsal is over");
}

static int on_tick(void *arg, struct brumate_error *err)
{
	const struct rehearsing *h = arg;

	return progress_check(&h->op->progress, err);
}

static int restore_apart(struct rehearsing *h, struct brumate_error *err)
{
	struct criu_options options = {
		.work_dir_fd = h->work_fd,
		.log_name = LOG_NAME,
		.enter_ns_of = h->apart.init.pid,
		.is_apart = true,
		.on_event = on_event,
		.on_tick = on_tick,
		.arg = h,
	};
	int r = step_run_criu(h->op, &options, err);

	op_connections_drop(h->op);
	if (!h->is_same)
		return r < 0 ? r : brumate_fail(err, EIO, "CRIU let the job go by itself");
	if (err)
		*err = BRUMATE_ERROR_NONE;
	return 0;
}

/* ---- the whole ---- */

static char *log_path(const struct rehearsing *h)
{
	return path_format("%s/rehearsal-%s.log", path_log_dir(), h->op->restore.image.manifest.id);
}

static void forget_log(const struct rehearsing *h)
{
	auto_free char *path = log_path(h);

	if (path)
		unlink(path);
}

/* CRIU's log is in memory alone; where it says why, it is kept. */
static void keep_log(const struct rehearsing *h, struct brumate_error *err)
{
	auto_free char *text = NULL;
	auto_free char *path = log_path(h);
	size_t len = 0;

	if (!path || h->work_fd < 0 ||
	    file_read_plain(h->work_fd, LOG_NAME, LOG_BYTES_MAX, &text, &len) < 0 ||
	    mkdir_parents(path_log_dir(), 0700) < 0 ||
	    file_swap(AT_FDCWD, path, text, len, 0600) < 0)
		return;
	brumate_hint(err, "CRIU's log of it: %s", path);
}

/* What the place or the machine lacks says nothing of the checkpoint: where nothing can be made; owners that a user namespace
 * does not map; what CRIU finds out of the kernel before it looks at images; memory. */
static bool is_of_the_place(const char *why)
{
	static const char *const words[] = {
		"Read-only file system",  "Can't setup uid",	     "kerndat",
		"Cannot allocate memory", "No space left on device", "Too many open files",
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strstr(why, words[i]))
			return true;
	return false;
}

/* The processes are those of the checkpoint, or CRIU could not make them so. */
static int blame_checkpoint(const struct rehearsing *h, int r, struct brumate_error *err)
{
	if (r == -ECANCELED || r == -ETIMEDOUT || r == -ENOMEM || r == -EPERM || r == -EMFILE)
		return r;
	keep_log(h, err);
	/* A CRIU that was killed, by the kernel for its memory perhaps, has not said anything of it. */
	if (r == -EPIPE)
		return brumate_wrap(err, r, "checkpoint %s was not rehearsed",
				    h->op->restore.image.manifest.id);
	if (is_of_the_place(err->text)) {
		brumate_error_exit(err, EXIT_UNSUPPORTED);
		return brumate_wrap(err, r, "checkpoint %s cannot be rehearsed here",
				    h->op->restore.image.manifest.id);
	}
	brumate_error_exit(err, EXIT_BAD_IMAGE);
	return brumate_wrap(err, r, "checkpoint %s does not come back",
			    h->op->restore.image.manifest.id);
}

static int rehearse_processes(struct rehearsing *h, struct brumate_error *err)
{
	int r = enter_apart(h, err);

	if (r == 0) {
		r = restore_apart(h, err);
		r = r < 0 ? blame_checkpoint(h, r, err) : 0;
	}
	apart_end(&h->apart);
	h->op->target->init = PROC_ID_NONE;
	return r;
}

/* What it ends with is the first that fails, and the processes come before the memory. */
static int rehearse_all(struct rehearsing *h, struct brumate_error *err)
{
	struct brumate_error of_memory = BRUMATE_ERROR_NONE;
	struct aside memory;
	int r = start_aside(&memory, h, verify_memory, err);

	if (r < 0)
		return r;
	r = rehearse_processes(h, err);
	h->is_given_up = r < 0;
	int m = end_aside(&memory, &of_memory);
	if (r < 0 || m == 0)
		return r;
	*err = of_memory;
	return m;
}

static int check_gpus(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	const struct gpu_vendor *saved = gpu_vendor_find(m->job.gpu_vendor);
	size_t n = 0;

	if (saved)
		op->gpus.vendor = saved;

	for (size_t i = 0; i < m->n_processes; i++)
		n += m->processes[i].gpu;
	return gpu_set_check_rehearse(&op->gpus, n, err);
}

static int rehearse(struct rehearsing *h, struct brumate_error *err)
{
	struct op *op = h->op;
	int r = secret_believe(op, err);

	if (r == 0)
		r = check_gpus(op, err);
	if (r == 0)
		r = do_aside(h, verify_files, err);
	if (r == 0)
		r = read_contents(h, err);
	if (r == 0)
		r = check_rights(h, err);
	if (r == 0)
		r = job_files_rehearse(op, h->goes_on, err);
	if (r < 0 && brumate_exit_code(err) == EXIT_FAILED)
		return blame_checkpoint(h, r, err);
	if (r == 0)
		r = op_attributes_load(op, err);
	if (r == 0)
		r = mask_groups(h, err);
	if (r == 0)
		r = criu_find_apart(&op->images.criu, err);
	if (r == 0)
		r = open_work_dir(h, err);
	return r < 0 ? r : rehearse_all(h, err);
}

int engine_rehearse(struct rehearsal *ret, struct op *op, struct brumate_error *err)
{
	struct rehearsal result = { 0 };
	struct rehearsing h = {
		.op = op,
		.result = &result,
		.apart = APART_NONE,
		.work_fd = -1,
		.goes_on = saved_job_goes_on(&op->restore.image.manifest),
	};
	uint64_t start_ns = clock_now_ns();
	int r = rehearse(&h, err);

	job_files_undo(op);
	cleanup_close(&h.work_fd);
	json_decref(h.contents);
	if (r < 0)
		return r;
	forget_log(&h);
	result.seconds = clock_since_s(start_ns);
	*ret = result;
	return 0;
}

/* ---- a checkpoint that was just made ---- */

void rehearse_name_fini(struct rehearse_name *n)
{
	cleanup_free(&n->id);
	cleanup_free(&n->path);
}

int rehearse_get_name(struct rehearse_name *ret, const struct target *target)
{
	if (!target->checkpoint || !target->checkpoint_path)
		return 0;
	ret->id = strdup(target->checkpoint);
	ret->path = strdup(target->checkpoint_path);
	return ret->id && ret->path ? 0 : -ENOMEM;
}

void rehearse_swap_name(struct target *target, struct rehearse_name *name)
{
	const struct rehearse_name named = { target->checkpoint, target->checkpoint_path };

	target->checkpoint = name->id;
	target->checkpoint_path = name->path;
	*name = named;
}

/* Its key is the one that it was made with. */
static struct request own_request(const struct op *op)
{
	struct request r = {
		.timeout_ms = progress_left_ms(&op->progress, 0),
		.force = op->request->force,
	};

	if (op->images.authority.has_key || *op->images.authority.key.id)
		r.key = op->images.authority.key;
	return r;
}

static int rehearse_image(struct rehearsal *ret, struct op *op, const char *path,
			  struct brumate_error *err)
{
	auto_(request_fini) struct request request = own_request(op);
	auto_(job_fini) struct job job = JOB_EMPTY;
	auto_(op_fini) struct op inner;

	snprintf(job.id, sizeof(job.id), "%s", op->target->id);
	job.uid = op->target->uid;
	job.gid = op->target->gid;
	job.gpu_kind = op->target->gpu_kind;
	job.dir = strdup(path_runtime_dir()); /* for what has no name soon */
	if (!job.dir)
		return brumate_fail(err, ENOMEM, "%m");
	op_init(&inner, "rehearse", &job.target, &op->progress.caller, &request);
	int r = store_open(&inner.restore.image, NULL, path, err);
	if (r == 0)
		r = engine_rehearse(ret, &inner, err);
	for (size_t i = 0; r == 0 && i < inner.progress.n_notes; i++)
		progress_note(&op->progress, "%s", inner.progress.notes[i]);
	return r;
}

/* Nobody finds it any more. */
static int remove_own(struct op *op, const struct rehearse_name *made, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = store_remove(op->request->dir, made->id, &why);

	brumate_error_exit(err, EXIT_STILL_RUNNING);
	if (r < 0)
		return brumate_wrap(err, -err->code, "checkpoint %s could not be removed (%s)",
				    made->id, why.text);
	return -err->code;
}

int rehearse_own(struct op *op, struct rehearse_name *made, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	uint64_t start_ns = clock_now_ns();
	struct rehearsal done;

	store_abort(&op->checkpoint.writer); /* it is committed, and locked no more */
	int r = rehearse_image(&done, op, made->path, &why);
	if (r < 0 && brumate_exit_code(&why) == EXIT_BAD_IMAGE) {
		*err = why;
		return remove_own(op, made, err);
	}
	rehearse_swap_name(op->target, made);
	int saved = target_save(op->target, err);
	if (r < 0) {
		*err = why;
		return brumate_wrap(err, r, "checkpoint %s was made, and could not be rehearsed",
				    op->target->checkpoint);
	}
	progress_phase(&op->progress, "rehearse", start_ns);
	progress_note(&op->progress, "rehearsed: %" PRIu64 " processes come back as they were",
		      done.compared.processes);
	return saved;
}
