// SPDX-License-Identifier: MIT
/*
 * Checkpoint: device memory into the processes, the tree to disk by CRIU, the image committed.
 *
 * A job that is to end is committed while CRIU still holds it frozen (CRIU's post-dump): where the
 * commit fails, CRIU lets the job run on. A job that goes on is released first and committed after, so
 * that hashing and syncing cost it nothing.
 */
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/size.h"
#include "datapath/move.h"
#include "datapath/park.h"
#include "engine/attributes.h"
#include "engine/connections.h"
#include "engine/steps.h"
#include "engine/externals.h"
#include "engine/rehearse.h"
#include "engine/gpu-set.h"
#include "engine/job-files.h"
#include "engine/listeners.h"
#include "engine/rights.h"
#include "engine/secret.h"
#include "engine/together.h"
#include "chunks/chunks.h"
#include "criu/images.h"

enum { CRIU_TIMEOUT_S = 600, STATUS_BYTES_MAX = 1 << 16, KILL_TIMEOUT_MS = 30000, IDS_MAX = 1000 };

/* ---- preflight ---- */

/* Memory of a member that CRIU will write. File pages that are only mapped stay where they are. */
static uint64_t own_bytes(pid_t pid)
{
	static const char *const keys[] = { "RssAnon:", "RssShmem:" };
	char path[64];
	auto_free char *text = NULL;
	uint64_t sum = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (file_read(AT_FDCWD, path, STATUS_BYTES_MAX, &text, NULL) < 0)
		return 0;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *line = strstr(text, keys[i]);

		if (line)
			sum += strtoull(line + strlen(keys[i]), NULL, 10) << 10;
	}
	return sum;
}

/* Of a suspended job it is the host copy that is written; one that is parked has none. */
static uint64_t device_bytes(const struct op *op)
{
	const struct vault *v = op->data.vault;

	if (!op->was_suspended)
		return gpu_set_bytes(&op->gpus);
	if (!v)
		return 0;
	return v->copied ? vault_copy_data_bytes(v) : vault_bytes(v);
}

/* What of the device memory, zeros apart, need not be written: it occurs several times, or an earlier checkpoint has it.
 * Encrypted chunks have other digests. */
static uint64_t shared_bytes(const struct op *op)
{
	const struct vault *v = op->data.vault;
	const struct digest_table *t = op->counted	? op->counted
				       : v && v->copied ? v->copy.digests
							: NULL;
	const struct chunks_options options = { .job = op->target->id, .uid = op->target->uid };
	uint64_t new, data;

	if (!t || !digest_table_is_whole(t) || secret_is_wanted(op->request) ||
	    store_count_new(&new, op->request->dir, &options,
			    digest_table_digests((struct digest_table *)t), t->n) < 0)
		return 0;
	data = op->counted ? t->n * (uint64_t)CHUNK_BYTES_MAX - op->zero_bytes
			   : vault_copy_data_bytes(v);
	return data > new ? data - new : 0;
}

static int check_space(struct op *op, struct brumate_error *err)
{
	uint64_t available, copies, need = device_bytes(op);

	for (size_t i = 0; i < op->tree.n; i++)
		need += own_bytes(op->tree.items[i].id.pid);
	int r = job_files_check(op, &copies, err);
	if (r < 0)
		return r;
	need += copies;
	op->image_bytes = need; /* a first guess, for progress */
	r = store_free_bytes(op->request->dir, &available, err);
	if (r < 0)
		return r;
	if (need > available) {
		uint64_t zero = op_zero_bytes(op);

		need -= zero < need ? zero : need;
	}
	if (need > available) {
		uint64_t shared = shared_bytes(op);

		need -= shared < need ? shared : need;
	}
	op->image_bytes = need;
	if (need <= available)
		return 0;
	brumate_fail(err, ENOSPC, "%s has %s free, the checkpoint needs about %s", op->request->dir,
		     SIZE_TEXT(available), SIZE_TEXT(need));
	brumate_hint(err, "make room, or choose another place with --dir");
	return -ENOSPC;
}

static int check_checkpoint(struct op *op, struct brumate_error *err)
{
	int r = criu_find(&op->images.criu, err);

	if (r < 0)
		return r;
	if ((r = preflight(op, SCAN_GPU | SCAN_CRIU, err)) < 0 ||
	    (r = op_listeners_look(op, err)) < 0)
		return r;
	if (op->gpus.n && op->gpus.vendor->saved_by_criu &&
	    (r = criu_check_vendor(&op->images.criu, op->gpus.vendor->id, err)) < 0)
		return r;
	if (op->request->rehearse && (r = gpu_set_check_rehearse(&op->gpus, op->gpus.n, err)) < 0)
		return r;
	return check_space(op, err);
}

/* ---- the image ---- */

/* Begins the memory of the checkpoint, unless it is begun. */
static int begin_memory(void *arg, struct chunks_writer **ret, struct brumate_error *err)
{
	struct op *op = arg;
	struct op_checkpoint *c = &op->checkpoint;
	const struct chunks_options options = { .job = op->target->id,
						.uid = op->target->uid,
						.compress = request_compress(op->request) };
	int r = c->memory ? 0 : store_chunks_begin(&c->memory, &c->writer, &options, err);

	*ret = c->memory;
	return r;
}

/* A job that waits to go on is not to wait for the processors that this takes. */
int image_begin_device(struct op *op, struct brumate_error *err)
{
	struct device_image_writer *w = &op->checkpoint.device;
	int r = begin_memory(op, &w->chunks, err);

	w->vault = op->data.vault;
	if (r == 0)
		op->data.sink =
			(struct datapath_sink){ .save = device_image_save,
						.arg = w,
						.while_copying = !op->request->leave_running };
	return r;
}

void image_end_device(struct op *op)
{
	chunks_writer_free(op->checkpoint.memory);
	op->checkpoint.memory = NULL;
	op->data.sink = (struct datapath_sink){ 0 };
	device_image_writer_fini(&op->checkpoint.device);
}

/* The record names the checkpoint that is being written. */
static int record_place(struct op *op, const char *id)
{
	struct target *target = op->target;

	snprintf(target->op.image_path, sizeof(target->op.image_path), "%s/%s", op->request->dir,
		 id);
	return target_save(target, NULL);
}

/* Jobs of one name, on machines that share the store, may be given the same id in the same second. */
static int begin_writing(struct op *op, struct brumate_error *err)
{
	struct store_writer *w = &op->checkpoint.writer;
	char id[MANIFEST_ID_BYTES];
	int r;

	snprintf(id, sizeof(id), "%s", op->request->id);
	for (int tries = 0;; tries++) {
		r = store_begin(w, op->request->dir, id, err);
		if (r != -EEXIST || !op->request->unnamed || tries == IDS_MAX)
			return r;
		*err = BRUMATE_ERROR_NONE;
		store_next_id(id);
		if ((r = record_place(op, id)) < 0)
			return brumate_fail(err, -r, "record of job %s: %m", op->target->id);
	}
}

static int begin_image(struct op *op, struct brumate_error *err)
{
	int r = begin_writing(op, err);

	if (r < 0)
		return r;
	if ((r = secret_begin(op, err)) < 0)
		return r;
	op->images.dir_fd = secret_images_to(op, err);
	if (op->images.dir_fd < 0)
		return op->images.dir_fd;
	return op->data.n_agents ? image_begin_device(op, err) : 0;
}

static void undo_image(struct op *op)
{
	cleanup_close(&op->images.dir_fd);
	image_end_device(op);
	cpu_memory_image_close(op->images.cpu_memory);
	op->images.cpu_memory = NULL;
	if (!op->checkpoint.committed)
		store_abort(&op->checkpoint.writer);
}

static int commit_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct op *op = arg;

	progress_done(&op->progress, done_bytes, total_bytes);
	return progress_check(&op->progress, NULL);
}

/* Waits for the transfer, then for the store. */
static int end_memory(struct op *op, struct brumate_error *err)
{
	uint64_t start_ns = clock_now_ns();
	struct chunks_sums sums = { 0 };
	int r = step_data(op, err);

	if (r < 0 || !op->checkpoint.memory)
		return r < 0 ? r : 0;
	if (op->images.cpu_memory &&
	    (r = cpu_memory_image_save(op->images.cpu_memory, op->checkpoint.memory, err)) < 0)
		return r;
	r = chunks_end(op->checkpoint.memory, &op->checkpoint.manifest, &sums, progress_is_over,
		       &op->progress, err);
	image_end_device(op);
	if (op->images.cpu_memory)
		cpu_memory_image_saved(op->images.cpu_memory);
	host_copy_fini(&op->data.saved);
	if (r == -ECANCELED)
		progress_check(&op->progress, err);
	if (r == 0)
		progress_phase(&op->progress, "store", start_ns);
	return r;
}

int image_commit(struct op *op, struct brumate_error *err)
{
	int r = end_memory(op, err);

	if (r < 0)
		return brumate_wrap(err, r, "commit");
	uint64_t start_ns = clock_now_ns();
	if ((r = describe_phases(op)) < 0)
		return brumate_fail(err, -r, "%m");
	r = secret_seal(op, err);
	if (r == 0)
		r = store_commit(&op->checkpoint.writer, &op->checkpoint.manifest, commit_progress,
				 op, err);
	if (r < 0)
		return brumate_wrap(err, r, "commit");
	op->checkpoint.committed = true;
	op->image_bytes = manifest_bytes(&op->checkpoint.manifest);
	progress_phase(&op->progress, "commit", start_ns);
	return 0;
}

/* Its set will not be. What cannot be removed now is garbage to `prune`. */
static void remove_image(struct op *op)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	store_abort(&op->checkpoint.writer); /* which keeps it from being removed */
	op->checkpoint.committed = false;
	if (store_remove(op->request->dir, op->checkpoint.manifest.id, &why) < 0)
		log_warn("the checkpoint of a set that failed stays: %s", why.text);
}

static int commit(struct op *op, struct brumate_error *err)
{
	int r = image_commit(op, err);

	if (r == 0 && (r = together_decide(op, "stored", err)) < 0)
		remove_image(op);
	if (r < 0)
		return r;
	if (!op->request
		     ->leave_running) /* from here on the job is on disk, and what is left of it is ended */
		progress_settle(&op->progress);

	auto_free char *path = path_format("%s/%s", op->request->dir, op->checkpoint.writer.id);

	return path && target_name_checkpoint(op->target, op->checkpoint.writer.id, path) == 0
		       ? 0
		       : brumate_fail(err, ENOMEM, "%m");
}

/* ---- CRIU ---- */

static uint64_t measure_image(void *arg)
{
	struct op *op = arg;
	int dup_fd = openat(op->images.dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *dir = dup_fd < 0 ? NULL : fdopendir(dup_fd);
	struct dirent *entry;
	struct stat st;
	uint64_t sum = 0;

	/* A job of many processes has eight files for each, and memory in one of them. */
	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, "pages-", strlen("pages-")) &&
		    fstatat(dup_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode))
			sum += (uint64_t)st.st_size;
	return sum;
}

static void criu_spawned(void *arg, struct proc_id criu)
{
	struct op *op = arg;

	op->target->op.criu = criu;
	target_save(op->target, NULL);
}

static int save_frozen(struct op *op, struct brumate_error *err)
{
	auto_free struct proc_id *gpus = gpu_set_ids(&op->gpus);
	const struct cpu_memory_frozen frozen = {
		.root = op->target->root,
		.gpus = gpus,
		.n_gpus = op->gpus.n,
		.goes_on = op->request->leave_running,
		.writer = begin_memory,
		.arg = op,
	};

	if (!gpus)
		return brumate_fail(err, ENOMEM, "%m");
	int r = together_hold(op, err);
	if (r == 0)
		r = op_connections_read(op, err);
	if (r == 0)
		r = op_listeners_take(op, err);
	if (r == 0)
		r = rights_check_dump(op, err);
	if (r == 0)
		r = rights_read_filters(op, err);
	if (r == 0)
		r = cpu_memory_image_threads(op->images.cpu_memory, &op->progress, err);
	if (r == 0)
		r = describe_tree(op, err);
	if (r == 0)
		r = op_attributes_read(op, err);
	return r < 0 ? r
		     : cpu_memory_image_frozen(op->images.cpu_memory, &frozen, &op->progress, err);
}

/* The preflight finds it where it may look at what is mapped, which takes root's rights. */
static int check_linked(struct op *op, struct brumate_error *err)
{
	auto_free char *name = NULL;
	int r = op->request->leave_running ? criu_linked_find(op->images.dir_fd, &name) : 0;

	if (r < 0)
		return brumate_fail(err, -r, "CRIU's images of files: %s", strerror(-r));
	if (r == 0)
		return 0;
	brumate_fail(err, EOPNOTSUPP,
		     "the job has %s mapped or open, which was deleted and has another name", name);
	brumate_hint(err, "without --leave-running and --every it can be saved");
	return -EOPNOTSUPP;
}

static int criu_event(void *arg, enum criu_event event, struct proc_id root,
		      struct brumate_error *err)
{
	struct op *op = arg;
	int r = fault_point(event == CRIU_EVENT_FROZEN ? "checkpoint.frozen" : "checkpoint.dumped");

	(void)root;
	if (r < 0)
		return brumate_fail(err, -r, "injected while CRIU holds the job: %m");
	if (event == CRIU_EVENT_FROZEN)
		return save_frozen(op, err);
	if (event != CRIU_EVENT_DUMPED ||
	    (r = rights_check_images(op->images.dir_fd, &op->checkpoint.manifest, true, err)) < 0 ||
	    (r = check_linked(op, err)) < 0 || (r = op_connections_write(op, err)) < 0 ||
	    (r = op_attributes_write(op, err)) < 0 ||
	    (r = cpu_memory_image_dumped(op->images.cpu_memory, &op->progress, err)) < 0 ||
	    (r = job_files_save(op, err)) < 0)
		return r;
	if (op->request->leave_running) { /* it has yet to let the job run on */
		op_connections_leave(op, false);
		return together_meet(op, "held", err);
	}
	progress_phase(&op->progress, "criu", op->checkpoint.criu_start_ns);
	store_hash_ahead(&op->checkpoint.writer);
	progress_wait_for(&op->progress, "the image to be hashed and synced");
	return commit(op, err);
}

static void close_criu(struct op *op)
{
	criu_dump_free(take_ptr(&op->checkpoint.dump));
	op->target->op.criu = PROC_ID_NONE;
	if (!op->checkpoint.committed)
		op_connections_leave(op, false);
	externals_free(take_ptr(&op->checkpoint.externals));
	job_files_ahead_free(take_ptr(&op->checkpoint.ahead));
	cleanup_close(&op->checkpoint.work_fd);
}

/* Where the job is one of several, all close theirs in step. One with no gate to close comes to the meeting as well. */
static int close_gates(struct op *op, struct brumate_error *err)
{
	if (together_is_wanted(op))
		op->data.elsewhere = (struct datapath_elsewhere){ together_all_idle, op };
	int r = step_gate(op, err), again = together_is_wanted(op) && !op->together_idle;

	op->data.elsewhere = (struct datapath_elsewhere){ 0 };
	while (r >= 0 && again)
		if ((again = together_all_idle(op, err)) < 0)
			r = again;
	return r;
}

/* Starts CRIU, which comes up while the GPU processes are put away: the job does not wait for it. */
static int start_criu(struct op *op, struct brumate_error *err)
{
	struct criu_options options = {
		.images_dir_fd = op->images.dir_fd,
		.log_name = JOB_DUMP_LOG,
		.root = op->target->root,
		.leave_running = op->request->leave_running,
		.tcp = { .skip_in_flight = op->request->tcp_skip_in_flight,
			 .is_carried = !connections_may_be_repaired(),
			 .is_held = together_is_wanted(op) },
		.timeout_s = CRIU_TIMEOUT_S,
		.enter_ns_of = op->target->init.pid,
		.on_spawned = criu_spawned,
		.on_event = criu_event,
		.on_timer = op_attributes_timer,
		.on_tick = step_tick,
		.on_stuck = step_tell_stuck,
		.arg = op,
	};
	int r = externals_find(op, err);

	if (r == 0)
		r = programs_save(op, err);
	if (r == 0)
		r = op_attributes_read_ahead(op, err);
	if (r == 0)
		r = rights_for_dump(op, &options.user, err);
	if (r < 0)
		return r;
	op->checkpoint.externals = externals_for_dump(&op->checkpoint.manifest);
	if (!op->checkpoint.externals)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = job_files_announce(op, err)) < 0 || (r = job_files_hash_ahead(op, err)) < 0)
		return r;
	options.externals = (const char *const *)op->checkpoint.externals;
	options.shell_job = op->checkpoint.manifest.shell_job;
	/* The log belongs to the job, not into the image: it goes on after the image is hashed. */
	op->checkpoint.work_fd = target_open_criu_dir(op->target, err);
	if (op->checkpoint.work_fd < 0)
		return op->checkpoint.work_fd;
	options.work_dir_fd = op->checkpoint.work_fd;
	if ((r = cpu_memory_image_open(&op->images.cpu_memory, op->gpus.vendor, NULL, 0, &options,
				       err)) < 0)
		return r;
	return criu_dump_start(&op->checkpoint.dump, &op->images.criu, &options, err);
}

static int dump(struct op *op, struct brumate_error *err)
{
	struct criu_result result = { 0 };

	if (!op->progress.stopped_ns && !op->was_suspended)
		op->progress.stopped_ns = clock_now_ns();
	op->touched = true;
	park_detach(&op->data); /* a connection to outside could not be dumped */
	op->checkpoint.criu_start_ns = clock_now_ns();
	progress_measure(&op->progress, measure_image, op, op->image_bytes);
	/* CRIU works by one thread. A job that goes on only waits for it, and its images may be the user's until it is done. */
	if (!op->request->leave_running && !op->images.user.uid)
		store_hash_closed(&op->checkpoint.writer, "criu");
	int r = criu_dump_run(op->checkpoint.dump, &result, err);
	close_criu(op);
	if (r == 0 && op->request->leave_running)
		progress_phase(&op->progress, "criu", op->checkpoint.criu_start_ns);
	/* A CRIU that died on its way out of a job that is to end may leave it alive, and the commit
	 * stands: the kill is ours to finish. */
	if (r < 0 && op->checkpoint.committed) {
		log_warn("CRIU failed after the image was committed: job=%s reason=\"%s\"",
			 op->target->id, err ? err->text : "");
		r = 0;
	}
	return r < 0 ? r : 1; /* its phases were recorded where they ended */
}

/* ---- afterwards ---- */

/* Ends the job, which is on disk: nothing of it may be left, also where CRIU was to end it. */
static int end_tree(struct op *op, struct brumate_error *err)
{
	if (op->request->leave_running)
		return 1;
	int r = target_kill_members(op->target, deadline_in_ms(KILL_TIMEOUT_MS));
	if (r < 0 && r != -ESRCH)
		log_warn("processes are left after the checkpoint: job=%s", op->target->id);
	op_connections_leave(op, r == 0 || r == -ESRCH);
	op_clear_vault(op);
	(void)err;
	return 0;
}

static bool needs_live(void *arg, const struct vault_piece *pieces, size_t n)
{
	struct op *op = arg;

	return !placement_has_room_twice(&op->gpus, pieces, n);
}

/* A job that goes on waits for the copy of what its GPUs have no room for once more: most of that is copied before. */
static int copy_live(struct op *op, struct brumate_error *err)
{
	if (!op->request->leave_running || op->was_suspended)
		return 1;
	return live_copy(&op->data, needs_live, op, err);
}

static void undo_live(struct op *op)
{
	live_undo(&op->data);
}

/* What is parked is copied behind a job that goes on, which gets memory of its own. Members may have come to the GPU,
 * and agents be found, since the image was begun. */
static int copy_out(struct op *op, struct brumate_error *err)
{
	const struct vault *v = op->data.vault;
	int r = v && v->n_pieces && !op->data.sink.save ? image_begin_device(op, err) : 0;

	if (op->request->leave_running && !op->was_suspended)
		op->data.copy = v && placement_has_room_twice(&op->gpus, v->pieces, v->n_pieces)
					? DATAPATH_COPY_AFTER
					: DATAPATH_COPY_BEHIND;
	return r < 0 ? r : step_copy_out(op, err);
}

static int data_out(struct op *op, struct brumate_error *err)
{
	return op->data.copy == DATAPATH_COPY_FIRST ? step_data(op, err) : 1;
}

static int let_go(struct op *op, struct brumate_error *err)
{
	int r = 0;

	if (!op->request->leave_running)
		return 1;
	together_let_go(op);
	if (!op->was_suspended)
		r = step_bring_back(op, err);
	op->progress.released_ns = clock_now_ns();
	return r;
}

static int drain(struct op *op, struct brumate_error *err)
{
	if (op->request->leave_running)
		store_hash_ahead(&op->checkpoint.writer);
	int r = op->data.copy == DATAPATH_COPY_FIRST ? 1 : park_drain(&op->data, err);

	if (r != 0)
		return r;
	op->progress.drained_ns = clock_now_ns();
	step_record_baseline(op);
	return 0;
}

static int commit_after(struct op *op, struct brumate_error *err)
{
	int r = op->request->leave_running ? commit(op, err) : 0;

	return r < 0 ? r : 1; /* commit() records its phase by itself, for both ways here */
}

static const struct step checkpoint_steps[] = {
	{ "identify", "the driver", step_identify, NULL },
	{ "preflight", "the scan of the job's processes", check_checkpoint, NULL },
	{ "image", "the store", begin_image, undo_image },
	{ "live", "the copy of a running job", copy_live, undo_live },
	{ "criu-start", "CRIU to start", start_criu, close_criu },
	{ "meet", "the other members of the set", together_begin, NULL },
	{ "gate", "calls and kernels in flight", close_gates, step_undo_park },
	{ "park", "the job's agents", step_park, step_undo_park },
	{ "copy", "nothing", copy_out, step_undo_copy },
	{ "unmap", "the job's agents", step_unmap, NULL },
	{ "gpu-lock", "calls and kernels in flight", step_gpu_lock, step_undo_gpu },
	{ "gpu-checkpoint", "device memory to reach host memory", step_gpu_checkpoint,
	  step_undo_gpu },
	{ "criu", "CRIU to write the processes to the store", dump, together_let_go },
	{ "data-out", "device memory to reach host memory", data_out, step_undo_copy },
	{ "end", "the processes to end", end_tree, NULL },
	{ "let-go", "host memory to reach device memory", let_go, NULL },
	{ "drain", "device memory to reach host memory, behind the job", drain, step_undo_copy },
	{ "commit", "the image to be hashed and synced", commit_after, NULL },
};

const struct step *checkpoint_plan(size_t *ret_n)
{
	*ret_n = sizeof(checkpoint_steps) / sizeof(checkpoint_steps[0]);
	return checkpoint_steps;
}

/* A record of an older version does not tell what the job's checkpoints have come to. */
static void find_sequence(struct target *target, const char *dir)
{
	auto_(store_image_fini) struct store_image last = STORE_IMAGE_EMPTY;

	target->sequence = store_newest_sequence(dir, target->id);
	if (target->checkpoint_path &&
	    store_open(&last, NULL, target->checkpoint_path, NULL) == 0 &&
	    manifest_sequence(&last.manifest) > target->sequence)
		target->sequence = manifest_sequence(&last.manifest);
}

static int begin(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;

	op->was_suspended = target->state == JOB_SUSPENDED;
	target->ports[0] = '\0';
	target->op = (struct job_op){ .was_suspended = op->was_suspended,
				      .leave_running = op->request->leave_running };
	snprintf(target->op.kind, sizeof(target->op.kind), "checkpoint");
	snprintf(target->op.image_path, sizeof(target->op.image_path), "%s/%s", op->request->dir,
		 op->request->id);
	if (!target->sequence)
		find_sequence(target, op->request->dir);
	target_next_sequence(target);
	return target_set_state(target, JOB_CHECKPOINTING, err);
}

/* A job that ends is no longer there when its checkpoint turns out not to come back. */
int check_rehearse(const struct op *op, struct brumate_error *err)
{
	if (!op->request->rehearse || op->request->leave_running)
		return 0;
	brumate_fail(err, EINVAL, "checkpoint: --rehearse goes with --leave-running");
	brumate_hint(
		err,
		"a checkpoint that does not come back is none, and the job is to be there then");
	return -EINVAL;
}

int engine_checkpoint(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	auto_(rehearse_name_fini) struct rehearse_name name = { NULL, NULL };
	enum job_state before = target->state;
	size_t n = 0;
	const struct step *steps = checkpoint_plan(&n);
	int r = check_rehearse(op, err);

	if (r == 0)
		r = op_check_thawed(op, err);
	if (r < 0)
		return r;
	if (op->request->rehearse && rehearse_get_name(&name, target) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	r = begin(op, err);

	if (r == 0)
		r = plan_run(steps, n, op, err);
	/* Once the image of a job that ends is there, no late failure makes it undone. */
	if (r < 0 && op->checkpoint.committed && !op->request->leave_running &&
	    target_has_ended(target))
		r = 0;
	if (r < 0) {
		op_listeners_drop(op);
		return engine_failed(op, r, before, err);
	}
	target->op = (struct job_op){ 0 };
	target->message[0] = '\0';
	if (op->request->leave_running) {
		/* If the shim is killed meanwhile, the record names a checkpoint that comes back. */
		if (op->request->rehearse)
			rehearse_swap_name(target, &name);
		engine_done(op, before);
		return op->request->rehearse ? rehearse_own(op, &name, err) : 0;
	}
	op_clear_vault(op);
	free(take_ptr(&target->stopped));
	target->n_stopped = 0;
	target->parked = false;
	target_forget_processes(target);
	engine_done(op, JOB_CHECKPOINTED);
	return 0;
}
