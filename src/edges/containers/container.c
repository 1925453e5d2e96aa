// SPDX-License-Identifier: MIT
/* The GPU state of a container. See container.h. */
#include "edges/containers/container.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/paths.h"
#include "datapath/park.h"
#include "edges/containers/container-private.h"
#include "engine/gpu-set.h"
#include "engine/steps.h"

/* CRIU has one core write memory. With two, which also compare digests, nothing is gained. */
enum { STATUS_BYTES_MAX = 65536, KILL_MS = 30000, CORES_THAT_GAIN = 4 };

/* A process that has the driver's files without being known to the driver. */
struct bystander {
	struct proc_id id;
	int n_threads;
};

struct container {
	struct target target;
	struct request request;
	struct op op;
	struct vault vault;
	struct container_place place;
	struct container_record record; /* a restore */
	struct proc_id criu;		/* whose end a container that goes on waits for */
	bool saved;
	bool leaves_memory; /* the processes' own, to CRIU */
	bool is_unfinished; /* a restore; see container_abandon() */
	struct bystander *bystanders;
	size_t n_bystanders;
};

/* ---- the owner of what is saved: nothing of a container has a record of ours ---- */

static int describe_container(const struct target *t, struct manifest *m)
{
	(void)t;
	m->job.by_pid = true;
	m->job.argv = calloc(1, sizeof(*m->job.argv));
	m->job.cwd = strdup("/");
	return m->job.argv && m->job.cwd ? 0 : -ENOMEM;
}

static char *agent_dir_in_container(const struct target *t)
{
	return path_format("/proc/%d/root" AGENT_CONTAINER_DIR, t->root.pid);
}

/* The engine started it, and looks after it. */
static bool is_ours(const struct target *t)
{
	(void)t;
	return false;
}

static const struct target_owner container_owner = {
	.heir = "brumate-container",
	.describe = describe_container,
	.agent_dir = agent_dir_in_container,
	.was_started = is_ours,
	.may_stand_still = is_ours,
};

struct container *container_new(struct proc_id criu, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	auto_(container_free) struct container *c = calloc(1, sizeof(*c));

	if (!c) {
		brumate_fail(err, ENOMEM, "%m");
		return NULL;
	}
	c->target = (struct target){ .owned_by = &container_owner,
				     .id = "container",
				     .name = "container",
				     .data_path = JOB_DATA_BROKER };
	c->vault = VAULT_EMPTY;
	c->place = CONTAINER_PLACE_NONE;
	c->criu = criu;
	op_init(&c->op, "container", &c->target, NULL, &c->request);
	if (conf_load(&conf, err) < 0)
		return NULL;
	c->target.gpu_kind = gpu_kind_here(conf_wants_simulated(&conf));
	c->leaves_memory =
		conf.container_memory == CONF_MEMORY_CRIU ||
		(conf.container_memory == CONF_MEMORY_AUTO && machine_cores() < CORES_THAT_GAIN);
	c->request.force = c->op.data.force = conf.container_force;
	c->op.data.lock_timeout_ms = (uint32_t)conf.lock_timeout_ms;
	c->op.data.vault = &c->vault;
	snprintf(c->request.id, sizeof(c->request.id), CONTAINER_MEMORY_NAME);
	return take_ptr(&c);
}

void container_free(struct container *c)
{
	if (!c)
		return;
	op_fini(&c->op);
	vault_fini(&c->vault);
	container_place_fini(&c->place);
	container_record_fini(&c->record);
	target_fini(&c->target);
	free(c->bystanders);
	free(c);
}

/* ---- whose tree it is, and what is outside of it ---- */

/* Agents are where the container has them, and the vault has a directory. */
static int find_place(struct container *c, bool wait, struct brumate_error *err)
{
	struct op *op = &c->op;
	int r = container_place_take(&c->place, c->target.root, wait, err);

	if (r < 0)
		return r;
	free(c->target.dir);
	free(op->data.agent_dir);
	c->target.dir = strdup(c->place.dir);
	op->data.agent_dir = agent_dir_in_container(&c->target);
	if (!c->target.dir || !op->data.agent_dir)
		return brumate_fail(err, ENOMEM, "%m");
	return 0;
}

static int take_place(struct container *c, struct proc_id root, bool wait,
		      struct brumate_error *err)
{
	int r = target_set_place(&c->target);

	if (r < 0)
		return brumate_fail(err, -r, "boot id: %m");
	c->target.root = root;
	return find_place(c, wait, err);
}

/* With what a predecessor has left. */
static int take_on(struct container *c, struct proc_id root, bool wait, struct brumate_error *err)
{
	int r = take_place(c, root, wait, err);

	return r < 0 ? r : vault_load(&c->vault, &c->target, err);
}

int container_adopt(struct container *c, pid_t pid, struct brumate_error *err)
{
	struct proc_id root;
	int r = proc_identify(&root, pid, err);

	if (r == 0)
		r = take_on(c, root, false, err);

	c->saved = r == 0;
	return r == -EBUSY ? 0 : r; /* the heir is at it */
}

int container_inherit(struct container *c, const char *dir, struct brumate_error *err)
{
	struct proc_id root;
	int r = container_place_inherit(dir, &root, &c->criu, err);

	if (r == 0)
		r = take_on(c, root, false, err);
	c->saved = r == 0;
	return r;
}

struct proc_id container_root(const struct container *c)
{
	return c->target.root;
}

struct proc_id container_criu(const struct container *c)
{
	return c->criu;
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

/* Threads that run, as CRIU still holds all others. */
struct runners {
	struct container_thread *items;
	size_t n;
};

static int add_runner(struct runners *r, pid_t tid, bool is_agent)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->items[i].tid == tid)
			return 0;
	return array_add(r->items, r->n, (struct container_thread){ tid, is_agent });
}

/* A thread that is our library's agent, or the driver's own. What is named so need not be one. */
static int add_if_it_serves(struct runners *r, pid_t pid, const char *tid)
{
	auto_free char *name = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/comm", pid, tid);
	if (file_read(AT_FDCWD, path, STATUS_BYTES_MAX, &name, NULL) < 0)
		return 0;
	bool is_agent = !strcmp(name, AGENT_THREAD_NAME "\n");
	if (!is_agent && !gpu_is_driver_thread(name))
		return 0;
	return add_runner(r, (pid_t)strtol(tid, NULL, 10), is_agent);
}

/* Those by which the agent of process @pid does what it is asked. */
static int add_agent_threads(struct runners *r, pid_t pid)
{
	char path[64];
	const struct dirent *entry;
	int added = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	while (dir && added == 0 && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			added = add_if_it_serves(r, pid, entry->d_name);
	return added;
}

/* ---- the record beside CRIU's images ---- */

/* CRIU's plugin of the vendor saves it, with the processes, and brings it back: the driver has no calls for that. */
static bool is_by_plugin(const struct op *op)
{
	return op->gpus.vendor->saved_by_criu;
}

/* One that has ended since it was saved will not be there to be restored. */
static int add_process(struct container_record *record, const struct op *op,
		       const struct gpu_process *p, struct brumate_error *err)
{
	const struct proc_info *info = info_of(&op->tree, p->id);
	pid_t thread = inner_tid(p->id.pid, is_by_plugin(op) ? p->id.pid : p->dev.restore_tid);

	if (info && !thread && proc_has_ended(p->id))
		return 0;
	if (!info || !thread)
		return brumate_fail(err, ESRCH, "process %d ended", p->id.pid);
	if (!find_process(&op->tree, info->inner_pid, err))
		return -EOPNOTSUPP;
	record->processes[record->n_processes++] =
		(struct container_process){ info->inner_pid, thread };
	return 0;
}

static int fill_record(struct container_record *record, const struct op *op,
		       struct brumate_error *err)
{
	const struct target *target = op->target;
	int r = 0;

	if (is_by_plugin(op))
		snprintf(record->vendor, sizeof(record->vendor), "%s", op->gpus.vendor->id);

	record->has_agents = op->data.uses_agents;
	record->has_cpu_memory = cpu_memory_image_is_in(&op->checkpoint.manifest);
	record->processes = calloc(op->gpus.n + 1, sizeof(*record->processes));
	record->gpus = calloc(target->n_gpus + 1, sizeof(*record->gpus));
	if (!record->processes || !record->gpus)
		return brumate_fail(err, ENOMEM, "%m");
	if (target->n_gpus)
		memcpy(record->gpus, target->gpus, target->n_gpus * sizeof(*target->gpus));
	record->n_gpus = target->n_gpus;
	for (size_t i = 0; i < op->gpus.n && r == 0; i++)
		r = add_process(record, op, &op->gpus.items[i], err);
	return r;
}

/* Once it is there, so is all that it names. */
static int write_record(struct op *op, struct brumate_error *err)
{
	auto_(container_record_fini) struct container_record record = CONTAINER_RECORD_EMPTY;
	int r = container_memory_commit(op, record.image, err);

	if (r == 0)
		r = fill_record(&record, op, err);
	if (r < 0)
		return r;
	auto_free char *text = container_record_encode(&record);
	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	r = file_swap(op->images.dir_fd, PATH_CONTAINER_RECORD, text, strlen(text), 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %m", PATH_CONTAINER_RECORD) : 0;
}

static int read_record(struct container_record *ret, char ret_seal[static DIGEST_TEXT_BYTES],
		       int dir_fd, struct brumate_error *err)
{
	auto_free char *text = NULL;
	struct digest digest;
	size_t len = 0;
	int r = file_read(dir_fd, PATH_CONTAINER_RECORD, CONTAINER_RECORD_BYTES_MAX, &text, &len);

	if (r == 0)
		r = digest_buffer(&digest, text, len);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", PATH_CONTAINER_RECORD);
	digest_format(ret_seal, &digest);
	r = container_record_decode(ret, text, len, err);
	return r < 0 ? brumate_wrap(err, r, "%s", PATH_CONTAINER_RECORD) : 0;
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

/* The GPUs are emptied when CRIU dumps the files by which they are used. */
static int plugin_preflight(struct op *op, struct brumate_error *err)
{
	return preflight(op, SCAN_GPU, err);
}

static int note_gpus(struct op *op, struct brumate_error *err)
{
	return placement_record(op->target, &op->gpus, err);
}

static int park(struct op *op, struct brumate_error *err)
{
	int r = step_park(op, err);

	return r == 0 ? container_memory_check(op, err) : r;
}

static const struct step container_save_steps[] = {
	{ "preflight", "the scan of the container's processes", container_preflight, NULL },
	{ "image", "the directory of CRIU's images", container_memory_begin,
	  container_memory_abort },
	{ "gate", "calls and kernels in flight", step_gate, step_undo_park },
	{ "park", "the container's agents", park, step_undo_park },
	{ "copy", "nothing", step_copy_out, step_undo_copy },
	{ "unmap", "the container's agents", step_unmap, NULL },
	{ "gpu-lock", "calls and kernels in flight", step_gpu_lock, step_undo_gpu },
	{ "gpu-checkpoint", "device memory to reach host memory", step_gpu_checkpoint,
	  step_undo_gpu },
};

static const struct step container_plugin_steps[] = {
	{ "preflight", "the scan of the container's processes", plugin_preflight, NULL },
	{ "image", "the directory of CRIU's images", container_memory_begin,
	  container_memory_abort },
	{ "gpus", "the driver", note_gpus, NULL },
};

static const struct step container_finish_steps[] = {
	{ "record", "memory to reach the directory of CRIU's images", write_record, NULL },
};

static void log_notes(const struct op *op)
{
	for (size_t i = 0; i < op->progress.n_notes; i++)
		log_warn("%s", op->progress.notes[i]);
}

/* Nobody else can tell how long which step took: the engine's log has CRIU's alone. */
static void log_phases(const char *what, const struct op *op)
{
	const struct progress *p = &op->progress;
	char text[1024] = "";

	for (size_t i = 0, len = 0; i < p->n_phases && len < sizeof(text); i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, " %s=%.3f-%.3f",
					p->phases[i].name, p->phases[i].start,
					p->phases[i].start + p->phases[i].seconds);
	log_info("%s, each step from and to, in seconds:%s", what, text);
}

/* What is off the GPU already is another's to bring back, as of a container that brumate has suspended. */
static int check_running(const struct op *op, struct brumate_error *err)
{
	for (size_t i = 0; i < op->gpus.n; i++) {
		const struct gpu_process *p = &op->gpus.items[i];

		if (p->dev.state == DEV_STATE_RUNNING)
			continue;
		if (p->dev.state == DEV_STATE_UNKNOWN) {
			brumate_fail(err, EBUSY,
				     "the driver does not tell in what state process %d is",
				     p->id.pid);
			brumate_hint(err, "checkpoint the container again");
			return -EBUSY;
		}
		brumate_fail(err, EBUSY, "process %d is suspended (%s)", p->id.pid,
			     dev_state_name(p->dev.state));
		brumate_hint(err, "`brumate resume --container` resumes it");
		return -EBUSY;
	}
	return 0;
}

/* Without agents all goes as if there were none to be: nothing of ours is left in the container. */
static int find_agents(struct op *op, struct brumate_error *err)
{
	int r = is_by_plugin(op) ? 0 : op_find_agents(op, true, err);

	if (r == 0 && !op->data.n_agents) {
		op->target->data_path = JOB_DATA_DRIVER;
		op->data.uses_agents = false;
	}
	return r;
}

/* From here on the container gets back what is taken from it, even if one of us dies. */
static int guard(struct container *c, struct brumate_error *err)
{
	int r = container_place_want_heir(&c->place, c->criu, err);

	return r < 0 ? r : vault_guard(&c->vault, &c->target, err);
}

/* The driver does not answer about it, nor its agents. CRIU from 4.2 on lets it run as long as it takes. */
static int refuse_paused(const struct container *c, struct brumate_error *err)
{
	if (!machine_is_frozen(c->op.target->root.pid))
		return 0;
	brumate_fail(err, EBUSY, "the container is paused");
	brumate_hint(err,
		     "resume it before, or use CRIU 4.2 or newer, which lets it run meanwhile");
	return -EBUSY;
}

static int find_what_to_save(struct container *c, struct brumate_error *err)
{
	struct op *op = &c->op;
	int r = refuse_paused(c, err);

	if (r == 0)
		r = op_find_gpus(op, err);
	if (r == 0)
		r = note_bystanders(c, err);
	if (r == 0)
		r = check_running(op, err);
	if (r == 0 && op->gpus.n)
		r = find_agents(op, err);
	return r;
}

static int take_off(struct op *op, struct brumate_error *err)
{
	return is_by_plugin(op)
		       ? plan_run(container_plugin_steps,
				  sizeof(container_plugin_steps) / sizeof(*container_plugin_steps),
				  op, err)
		       : plan_run(container_save_steps,
				  sizeof(container_save_steps) / sizeof(*container_save_steps), op,
				  err);
}

int container_save(struct container *c, pid_t pid, int images_dir_fd, struct brumate_error *err)
{
	struct op *op = &c->op;
	struct proc_id root;
	int r = proc_identify(&root, pid, err);

	if (r == 0)
		r = take_on(c, root, true, err);
	if (r == 0)
		r = find_what_to_save(c, err);
	if (r < 0 || !op->gpus.n)
		return r;
	op->gpu_bytes = gpu_set_bytes(&op->gpus);
	op->images.dir_fd = fcntl(images_dir_fd, F_DUPFD_CLOEXEC, 0);
	if (op->images.dir_fd < 0)
		return brumate_fail(err, errno, "directory of images: %m");
	/* An old one would go with what is new. */
	if (unlinkat(op->images.dir_fd, PATH_CONTAINER_RECORD, 0) < 0 && errno != ENOENT)
		return brumate_fail(err, errno, "%s: %m", PATH_CONTAINER_RECORD);
	if ((r = guard(c, err)) < 0)
		return r;
	c->saved = true;
	r = take_off(op, err);
	park_detach(&op->data); /* connections to outside could not be dumped */
	log_notes(op);
	return r < 0 ? r : 1;
}

int container_take_memory(struct container *c, int table_fd, struct brumate_error *err)
{
	if (!c->saved)
		return brumate_fail(err, EINVAL, "nothing was saved");
	return c->leaves_memory ? 0 : container_memory_take(&c->op, table_fd, err);
}

int container_finish(struct container *c, char ret_seal[static DIGEST_TEXT_BYTES],
		     struct brumate_error *err)
{
	auto_(container_record_fini) struct container_record record = CONTAINER_RECORD_EMPTY;

	if (!c->saved)
		return brumate_fail(err, EINVAL, "nothing was saved");
	int r = plan_run(container_finish_steps,
			 sizeof(container_finish_steps) / sizeof(*container_finish_steps), &c->op,
			 err);
	if (r == 0)
		log_phases("saved", &c->op);
	return r < 0 ? r : read_record(&record, ret_seal, c->op.images.dir_fd, err);
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

/* Whether the vault keeps anything that a living process only has by it, or that it is yet to get back. */
static void let_go(struct container *c)
{
	bool wanted = c->vault.n_pieces && !target_has_ended(&c->target);

	if (c->place.dir && !wanted)
		vault_clear(&c->vault, &c->target);
	container_place_leave(&c->place, wanted);
}

int container_return(struct container *c, struct brumate_error *err)
{
	struct op *op = &c->op;
	int r = 0;

	container_memory_abort(op);
	if (c->saved && !target_has_ended(&c->target)) {
		r = op_find_gpus(op, err);
		if (r == 0)
			r = step_bring_back(op, err);
		if (r < 0 && target_has_ended(&c->target))
			r = 0;
	}
	if (r == 0)
		let_go(c);
	return r;
}

/* ---- into a restored container ---- */

const char *container_plugin(const struct container *c)
{
	return c->op.gpus.n && is_by_plugin(&c->op) ? c->op.gpus.vendor->id : "";
}

int container_look(struct container *c, int images_dir_fd, char ret_seal[static DIGEST_TEXT_BYTES],
		   struct brumate_error *err)
{
	return read_record(&c->record, ret_seal, images_dir_fd, err);
}

int container_open(struct container *c, int images_dir_fd, struct brumate_error *err)
{
	struct op *op = &c->op;
	int r = *c->record.vendor ? gpu_set_take_vendor(&op->gpus, c->record.vendor, err) : 0;

	if (r < 0)
		return r;
	if (is_by_plugin(op) != (*c->record.vendor != '\0'))
		return brumate_fail(err, EOPNOTSUPP,
				    *c->record.vendor ? "no plugin of CRIU restores %s GPUs"
						      : "it is of other GPUs than those of %s",
				    op->gpus.vendor->name);
	/* The record and the job have the same GPUs: one of them owns the list. */
	c->target.gpus = take_ptr(&c->record.gpus);
	c->target.n_gpus = c->record.n_gpus;
	c->record.n_gpus = 0;
	if ((r = gpu_set_open(&op->gpus, err)) < 0 ||
	    (r = placement_map(&c->target, &op->gpus, &op->progress, err)) < 0 ||
	    (r = placement_check_room(&c->target, &op->gpus, NULL, err)) < 0)
		return r;
	op->data.uses_agents = c->record.has_agents;
	return *c->record.image ? container_memory_load(op, images_dir_fd, c->record.image, err)
				: 0;
}

static int find_restored(struct op *op, const struct container_process *p, struct runners *runners,
			 struct brumate_error *err)
{
	const struct proc_info *info = find_process(&op->tree, p->pid, err);

	if (!info)
		return -EBADMSG;
	if (is_by_plugin(op))
		return 0;
	pid_t tid = find_thread(info->id.pid, p->restore_thread);
	if (!tid)
		return brumate_fail(err, EBADMSG, "process %d has no thread %d", p->pid,
				    p->restore_thread);
	op->gpus.items[op->gpus.n++] = (struct gpu_process){
		.id = info->id,
		.dev = { .state = DEV_STATE_CHECKPOINTED, .restore_tid = tid },
	};
	int r = add_runner(runners, tid, false);
	if (r == 0 && op->data.uses_agents)
		r = add_agent_threads(runners, info->id.pid);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int find_all_restored(struct container *c, struct runners *runners,
			     struct brumate_error *err)
{
	struct op *op = &c->op;
	int r = proc_tree_read(&op->tree, c->target.root, err);

	op->gpus.items = calloc(c->record.n_processes + 1, sizeof(*op->gpus.items));
	if (r == 0 && !op->gpus.items)
		r = brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < c->record.n_processes && r == 0; i++)
		r = find_restored(op, &c->record.processes[i], runners, err);
	return r;
}

char *container_plugin_restore(const struct container *c)
{
	auto_free char *map = dev_gpu_pairs_format(c->op.gpus.pairs, c->op.gpus.n_pairs);

	if (!*c->record.vendor)
		return strdup("");
	return map ? path_format("%s%s%s", c->record.vendor, *map ? " " : "", map) : NULL;
}

int container_load(struct container *c, pid_t pid, struct container_thread **ret_threads,
		   size_t *ret_n, struct brumate_error *err)
{
	struct runners runners = { 0 };
	struct proc_id root;
	int r = proc_identify(&root, pid, err);

	c->is_unfinished = r == 0;
	if (r == 0)
		r = take_place(c, root, false, err);
	if (r == 0)
		r = find_all_restored(c, &runners, err);
	if (r == 0 && c->op.restore.image.path)
		r = cpu_memory_image_fill(&c->op.restore.image, root, NULL, &c->op.progress, err);
	*ret_threads = runners.items;
	*ret_n = runners.n;
	return r < 0 ? r : runners.n > 0;
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

/* Only the restored processes tell whether they have agents, and what memory these want. */
static int map_early(struct op *op, struct brumate_error *err)
{
	if (!op->data.uses_agents)
		return 1;
	int r = op_find_agents(op, false, err);
	if (r == 0)
		r = park_look(&op->data, err);
	if (r == 0)
		r = device_image_assign(&op->data, err);
	return r < 0 ? r : step_map_early(op, err);
}

static int open_gates(struct op *op, struct brumate_error *err)
{
	return op->data.uses_agents ? step_open(op, err) : 1;
}

static const struct step container_restore_steps[] = {
	{ "gpu-restore", "host memory to reach device memory", restore_gpus, NULL },
	{ "gpu-unlock", "the driver", unlock_gpus, NULL },
	{ "map-ahead", "device memory to be filled", map_early, NULL },
	{ "data-in", "device memory to be filled", step_data, step_undo_copy },
	{ "map", "the container's agents", step_map, NULL },
	{ "open", "the container's agents", open_gates, NULL },
};

int container_restore(struct container *c, struct brumate_error *err)
{
	int r = is_by_plugin(&c->op) ? 0
				     : plan_run(container_restore_steps,
						sizeof(container_restore_steps) /
							sizeof(*container_restore_steps),
						&c->op, err);

	park_detach(&c->op.data);
	log_notes(&c->op);
	if (r == 0)
		log_phases("restored", &c->op);
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
	int r = proc_tree_kill(c->target.root, deadline_in_ms(KILL_MS));
	if (r < 0)
		log_error("processes of an unfinished restore are left: root=%d reason=\"%s\"",
			  c->target.root.pid, strerror(-r));
}
