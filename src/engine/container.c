// SPDX-License-Identifier: MIT
/* The GPU state of a container. See container.h. */
#include "engine/container.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "engine/placement.h"
#include "engine/steps.h"

#define RECORD_NAME "brumate-gpus.json"

enum { RECORD_BYTES_MAX = 1 << 20, RECORD_VERSION = 1, STATUS_BYTES_MAX = 65536, KILL_MS = 30000 };

/* A process that has the driver's files without being known to the driver. */
struct bystander {
	struct proc_id id;
	int n_threads;
};

struct container {
	struct job job; /* in memory alone */
	struct request request;
	struct op op;
	bool saved;
	bool is_unfinished; /* a restore; see container_abandon() */
	struct bystander *bystanders;
	size_t n_bystanders;
};

static bool wants_simulated(const struct brumate_conf *conf)
{
	const char *gpu = getenv("BRUMATE_GPU");

	return gpu ? !strcmp(gpu, "simulated") : conf->gpu == CONF_GPU_SIMULATED;
}

struct container *container_new(struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct container *c = calloc(1, sizeof(*c));

	if (!c) {
		brumate_fail(err, ENOMEM, "%m");
		return NULL;
	}
	if (conf_load(&conf, err) < 0) {
		free(c);
		return NULL;
	}
	snprintf(c->job.id, sizeof(c->job.id), "container");
	snprintf(c->job.name, sizeof(c->job.name), "container");
	c->job.data_path = JOB_DATA_DRIVER;
	c->job.simulated = wants_simulated(&conf);
	c->request.force = conf.container_force;
	static const struct progress_caller nobody;
	op_init(&c->op, "container", &c->job, &nobody, &c->request);
	c->op.data.lock_timeout_ms = (uint32_t)conf.lock_timeout_ms;
	return c;
}

void container_free(struct container *c)
{
	if (!c)
		return;
	op_fini(&c->op);
	job_fini(&c->job);
	free(c->bystanders);
	free(c);
}

int container_adopt(struct container *c, pid_t root, struct brumate_error *err)
{
	int r = proc_boot_id(c->job.boot_id);

	if (r < 0)
		return brumate_fail(err, -r, "boot id: %m");
	r = proc_identify(&c->job.root, root, err);
	c->saved = r == 0;
	return r;
}

/* ---- threads and processes, numbered as the container numbers them ---- */

/* The innermost id of thread @tid of process @pid; 0: it is gone. */
static pid_t inner_tid(pid_t pid, pid_t tid)
{
	auto_free char *text = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, tid);
	if (file_read(AT_FDCWD, path, STATUS_BYTES_MAX, &text, NULL) < 0)
		return 0;
	char *line = strstr(text, "\nNSpid:");
	char *end = line ? strchr(line + 1, '\n') : NULL;
	if (!end)
		return tid;
	*end = '\0';
	return (pid_t)strtol(strrchr(line, '\t') + 1, NULL, 10);
}

/* The thread of process @pid that is @inner to the container; 0: there is none. */
static pid_t find_thread(pid_t pid, pid_t inner)
{
	char path[64];
	const struct dirent *entry;
	pid_t found = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	while (dir && !found && (entry = readdir(dir))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (tid > 0 && inner_tid(pid, tid) == inner)
			found = tid;
	}
	return found;
}

/* Containers in a container may have processes of one number. */
static const struct proc_info *find_process(const struct proc_tree *tree, pid_t inner,
					    struct brumate_error *err)
{
	const struct proc_info *found = NULL;

	for (size_t i = 0; i < tree->n; i++) {
		if (tree->items[i].inner_pid != inner || tree->items[i].state == 'Z')
			continue;
		if (found) {
			brumate_fail(err, EOPNOTSUPP, "two processes of the container have pid %d",
				     inner);
			return NULL;
		}
		found = &tree->items[i];
	}
	if (!found)
		brumate_fail(err, ESRCH, "the container has no process %d", inner);
	return found;
}

static const struct proc_info *info_of(const struct proc_tree *tree, struct proc_id id)
{
	for (size_t i = 0; i < tree->n; i++)
		if (proc_is_same(tree->items[i].id, id))
			return &tree->items[i];
	return NULL;
}

/* ---- the record beside CRIU's images ---- */

static int add_process(json_t *list, const struct op *op, const struct gpu_process *p,
		       struct brumate_error *err)
{
	const struct proc_info *info = info_of(&op->tree, p->id);
	pid_t thread = inner_tid(p->id.pid, p->dev.restore_tid);

	if (!info || !thread)
		return brumate_fail(err, ESRCH, "process %d ended", p->id.pid);
	if (!find_process(&op->tree, info->inner_pid, err))
		return -EOPNOTSUPP;
	return json_array_append_new(list, json_pack("{s:i,s:i}", "pid", (int)info->inner_pid,
						     "restore_thread", (int)thread)) < 0
		       ? brumate_fail(err, ENOMEM, "%m")
		       : 0;
}

static json_t *gpus_to_json(const struct job *job)
{
	json_t *list = json_array();

	for (size_t i = 0; i < job->n_gpus; i++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:I}", "uuid", job->gpus[i].uuid,
						      "name", job->gpus[i].name, "bytes",
						      (json_int_t)job->gpus[i].bytes));
	return list;
}

static int write_record(struct op *op, struct brumate_error *err)
{
	auto_json json_t *processes = json_array();
	int r = 0;

	for (size_t i = 0; i < op->gpus.n && r == 0; i++)
		r = add_process(processes, op, &op->gpus.items[i], err);
	if (r < 0)
		return r;
	auto_json json_t *record = json_pack("{s:i,s:O,s:o}", "version", RECORD_VERSION,
					     "processes", processes, "gpus", gpus_to_json(op->job));
	auto_free char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	r = file_swap(op->images.dir_fd, RECORD_NAME, text, strlen(text), 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", RECORD_NAME) : 0;
}

static int decode_gpu(struct job_gpu *ret, json_t *object)
{
	const char *uuid, *name;
	json_int_t bytes;
	uint8_t parsed[DEV_UUID_BYTES];

	if (json_unpack(object, "{s:s,s:s,s:I}", "uuid", &uuid, "name", &name, "bytes", &bytes) <
		    0 ||
	    bytes < 0 || dev_uuid_parse(parsed, uuid) < 0 || strlen(uuid) >= sizeof(ret->uuid) ||
	    strlen(name) >= sizeof(ret->name))
		return -EBADMSG;
	*ret = (struct job_gpu){ .bytes = (uint64_t)bytes };
	strcpy(ret->uuid, uuid);
	strcpy(ret->name, name);
	return 0;
}

static int decode_gpus(struct job *job, json_t *list)
{
	size_t n = json_array_size(list);
	int r = n > MANIFEST_GPUS_MAX ? -EBADMSG : 0;

	job->gpus = calloc(n + 1, sizeof(*job->gpus));
	if (!job->gpus)
		return -ENOMEM;
	for (size_t i = 0; i < n && r == 0; i++)
		r = decode_gpu(&job->gpus[i], json_array_get(list, i));
	job->n_gpus = r < 0 ? 0 : n;
	return r;
}

static int find_restored(struct op *op, json_t *object, pid_t *ret_tid, struct brumate_error *err)
{
	int pid, thread;

	if (json_unpack(object, "{s:i,s:i}", "pid", &pid, "restore_thread", &thread) < 0 ||
	    pid <= 0 || thread <= 0)
		return brumate_fail(err, EBADMSG, "%s is damaged", RECORD_NAME);
	const struct proc_info *info = find_process(&op->tree, pid, err);
	if (!info)
		return -EBADMSG;
	*ret_tid = find_thread(info->id.pid, thread);
	if (!*ret_tid)
		return brumate_fail(err, EBADMSG, "process %d has no thread %d", pid, thread);
	op->gpus.items[op->gpus.n++] = (struct gpu_process){
		.id = info->id,
		.dev = { .state = DEV_STATE_CHECKPOINTED, .restore_tid = *ret_tid },
	};
	return 0;
}

static int find_all_restored(struct op *op, json_t *list, pid_t *tids, struct brumate_error *err)
{
	size_t n = json_array_size(list);
	int r = 0;

	op->gpus.items = calloc(n + 1, sizeof(*op->gpus.items));
	if (!op->gpus.items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n && r == 0; i++)
		r = find_restored(op, json_array_get(list, i), &tids[i], err);
	return r;
}

static int read_record(struct op *op, int dir_fd, json_t **ret, struct brumate_error *err)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int version;
	int r = file_read(dir_fd, RECORD_NAME, RECORD_BYTES_MAX, &text, &len);

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", RECORD_NAME);
	auto_json json_t *record = NULL;
	if ((r = wire_decode(&record, text, len, NULL)) == 0)
		r = decode_gpus(op->job, json_object_get(record, "gpus"));
	if (r == -ENOMEM)
		return brumate_fail(err, ENOMEM, "%s: %m", RECORD_NAME);
	if (r < 0 || json_unpack(record, "{s:i}", "version", &version) < 0 ||
	    !json_is_array(json_object_get(record, "processes")))
		return brumate_fail(err, EBADMSG, "%s is damaged", RECORD_NAME);
	if (version != RECORD_VERSION)
		return brumate_fail(err, EOPNOTSUPP, "%s is of version %d, this brumate reads %d",
				    RECORD_NAME, version, RECORD_VERSION);
	*ret = json_incref(json_object_get(record, "processes"));
	return 0;
}

/* ---- out of the GPUs ---- */

static int note_bystanders(struct container *c, struct brumate_error *err)
{
	const struct proc_tree *tree = &c->op.tree;

	c->bystanders = calloc(tree->n + 1, sizeof(*c->bystanders));
	if (!c->bystanders)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].state != 'Z' && scan_uses_gpu(tree->items[i].id.pid) > 0)
			c->bystanders[c->n_bystanders++] =
				(struct bystander){ tree->items[i].id, tree->items[i].n_threads };
	return 0;
}

static int container_preflight(struct op *op, struct brumate_error *err)
{
	int r = gpu_set_check_suspend(&op->gpus, err);

	return r < 0 ? r : preflight(op, SCAN_GPU, err);
}

static const struct step container_save_steps[] = {
	{ "preflight", "the scan of the container's processes", container_preflight, NULL },
	{ "gpu-lock", "calls and kernels in flight", step_gpu_lock, step_undo_gpu },
	{ "gpu-checkpoint", "device memory to reach host memory", step_gpu_checkpoint,
	  step_undo_gpu },
	{ "record", "the directory of CRIU's images", write_record, step_undo_gpu },
};

static void log_notes(const struct op *op)
{
	for (size_t i = 0; i < op->progress.n_notes; i++)
		log_warn("%s", op->progress.notes[i]);
}

/* What is off the GPU already is another's to bring back, as of a container that brumate has suspended. */
static int check_running(const struct op *op, struct brumate_error *err)
{
	for (size_t i = 0; i < op->gpus.n; i++) {
		const struct gpu_process *p = &op->gpus.items[i];

		if (p->dev.state == DEV_STATE_RUNNING)
			continue;
		brumate_fail(err, EBUSY, "process %d is suspended (%s)", p->id.pid,
			     dev_state_name(p->dev.state));
		brumate_hint(err, "`brumate resume --container` lets it go on");
		return -EBUSY;
	}
	return 0;
}

int container_save(struct container *c, pid_t root, int images_dir_fd, struct brumate_error *err)
{
	struct op *op = &c->op;
	int r = container_adopt(c, root, err);

	if (r == 0)
		r = op_find_gpus(op, err);
	if (r == 0)
		r = note_bystanders(c, err);
	if (r == 0)
		r = check_running(op, err);
	if (r < 0 || !op->gpus.n) {
		c->saved = false;
		return r;
	}
	op->gpu_bytes = gpu_set_bytes(&op->gpus);
	op->images.dir_fd = fcntl(images_dir_fd, F_DUPFD_CLOEXEC, 0);
	if (op->images.dir_fd < 0)
		return brumate_fail(err, errno, "directory of images: %m");
	r = plan_run(container_save_steps,
		     sizeof(container_save_steps) / sizeof(*container_save_steps), op, err);
	log_notes(op);
	return r < 0 ? r : 1;
}

int container_check(struct container *c, pid_t pid, struct brumate_error *err)
{
	struct proc_info info;
	int r = proc_read(&info, pid, err);

	if (r < 0 || info.state == 'Z')
		return r == -ESRCH ? 0 : r;
	int uses = scan_uses_gpu(pid);
	if (uses < 0)
		return brumate_fail(err, -uses, "process %d (%s): cannot be looked at: %m", pid,
				    info.comm);
	for (size_t i = 0; i < c->op.gpus.n && c->saved; i++)
		if (proc_is_same(c->op.gpus.items[i].id, info.id))
			return 0;
	/* The driver cannot be asked: what is stopped does not answer. */
	for (size_t i = 0; i < c->n_bystanders; i++)
		if (proc_is_same(c->bystanders[i].id, info.id) &&
		    c->bystanders[i].n_threads == info.n_threads)
			return 0;
	if (!uses || !scan_can_have_gpu_state(&info))
		return 0;
	brumate_fail(err, EBUSY, "process %d (%s) began to use the GPU while it was being stopped",
		     pid, info.comm);
	brumate_hint(err, "checkpoint the container again");
	return -EBUSY;
}

/* ---- and back, where the container goes on ---- */

int container_return(struct container *c, struct brumate_error *err)
{
	struct op *op = &c->op;

	if (!c->saved || job_has_ended(&c->job))
		return 0;
	int r = op_find_gpus(op, err);
	if (r == -ESRCH)
		return 0;
	return r < 0 ? r : step_bring_back(op, err);
}

/* ---- into a restored container ---- */

int container_load(struct container *c, pid_t root, int images_dir_fd, pid_t **ret_tids,
		   size_t *ret_n, struct brumate_error *err)
{
	struct op *op = &c->op;
	auto_json json_t *processes = NULL;
	int r = container_adopt(c, root, err);

	c->saved = false;
	c->is_unfinished = r == 0;
	if (r == 0)
		r = read_record(op, images_dir_fd, &processes, err);
	if (r == 0)
		r = proc_tree_read(&op->tree, c->job.root, err);
	if (r < 0)
		return r;
	auto_free pid_t *tids = calloc(json_array_size(processes) + 1, sizeof(*tids));
	if (!tids)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = find_all_restored(op, processes, tids, err)) < 0 ||
	    (r = gpu_set_open(&op->gpus, err)) < 0 ||
	    (r = placement_map(&c->job, &op->gpus, &op->progress, err)) < 0 ||
	    (r = placement_check_room(&c->job, &op->gpus, NULL, err)) < 0)
		return r;
	*ret_tids = take_ptr(&tids);
	*ret_n = op->gpus.n;
	return op->gpus.n > 0;
}

static int restore_gpus(struct op *op, struct brumate_error *err)
{
	op->touched = true;
	return gpu_set_restore_suspended(&op->gpus, err);
}

static int unlock_gpus(struct op *op, struct brumate_error *err)
{
	return gpu_set_act(&op->gpus, DEV_UNLOCK, DEV_STATE_RUNNING, GPU_SET_DRIVER_TIMEOUT_MS,
			   err);
}

static const struct step container_restore_steps[] = {
	{ "gpu-restore", "host memory to reach device memory", restore_gpus, NULL },
	{ "gpu-unlock", "the driver", unlock_gpus, NULL },
};

int container_restore(struct container *c, struct brumate_error *err)
{
	int r = plan_run(container_restore_steps,
			 sizeof(container_restore_steps) / sizeof(*container_restore_steps), &c->op,
			 err);

	log_notes(&c->op);
	return r;
}

int container_keep(struct container *c)
{
	c->is_unfinished = false;
	return 0;
}

void container_abandon(struct container *c)
{
	if (!c->is_unfinished)
		return;
	int r = proc_tree_kill(c->job.root, deadline_in_ms(KILL_MS));
	if (r < 0)
		log_error("processes of an unfinished restore are left: root=%d reason=\"%s\"",
			  c->job.root.pid, strerror(-r));
}
