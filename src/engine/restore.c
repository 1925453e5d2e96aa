// SPDX-License-Identifier: MIT
/*
 * Restore: the image proven, while its device memory is on its way; CRIU, then the driver. Until the end nothing of the
 * image is touched, so after any failure the checkpoint is as good as before; a tree half restored is taken down again.
 */
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/thread.h"
#include "criu/images.h"
#include "datapath/park.h"
#include "datapath/move.h"
#include "engine/attributes.h"
#include "engine/connections.h"
#include "engine/externals.h"
#include "engine/gpu-set.h"
#include "engine/job-files.h"
#include "engine/listeners.h"
#include "engine/needs.h"
#include "engine/fetched.h"
#include "engine/rights.h"
#include "job/job.h"
#include "job/log.h"
#include "engine/secret.h"
#include "engine/steps.h"
#include "engine/together.h"
#include "process/hugetlb.h"
#include "process/pidns.h"
#include "process/reaper.h"

enum {
	CRIU_TIMEOUT_S = 600,
	KILL_TIMEOUT_MS = 30000,
	PID_TIMEOUT_MS = 2000,
	PID_TRIES = 3,
	FIND_TRIES = 3
};

/* ---- the image ---- */

/* Memory in chunks is not among these files: it is read but once, and compared when it is loaded. */
struct comparing {
	struct op *op;
	pthread_t thread;
	atomic_bool stop;
	atomic_uint_fast64_t done_bytes;
	uint64_t start_ns, end_ns;
	int r;
	struct brumate_error err;
};

static int fetch_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct op *op = arg;

	progress_done(&op->progress, done_bytes, total_bytes);
	return progress_check(&op->progress, NULL);
}

static int compare_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct comparing *c = arg;

	(void)total_bytes;
	c->done_bytes = done_bytes;
	return c->stop ? -ECANCELED : progress_check(&c->op->progress, NULL);
}

static uint64_t compared_bytes(void *arg)
{
	const struct comparing *c = arg;

	return c->done_bytes;
}

static void *compare_in_thread(void *arg)
{
	struct comparing *c = arg;

	c->r = store_verify_files(&c->op->restore.image, compare_progress, c, &c->err);
	c->end_ns = clock_now_ns();
	return NULL;
}

static int begin_comparing(struct op *op, struct brumate_error *err)
{
	struct comparing *c = calloc(1, sizeof(*c));

	if (!c)
		return brumate_fail(err, ENOMEM, "%m");
	c->op = op;
	c->start_ns = clock_now_ns();
	int r = thread_start(&c->thread, compare_in_thread, c);
	if (r < 0) {
		free(c);
		return brumate_fail(err, -r, "thread: %m");
	}
	op->restore.comparing = c;
	return 1; /* its duration is reported by the step that waits for it */
}

static void stop_comparing(struct op *op)
{
	struct comparing *c = take_ptr(&op->restore.comparing);

	if (!c)
		return;
	c->stop = true;
	pthread_join(c->thread, NULL);
	free(c);
}

/* ---- CRIU, which is run to tell its version ---- */

struct finding {
	struct op *op;
	pthread_t thread;
	int r;
	struct brumate_error err;
};

static void *find_in_thread(void *arg)
{
	struct finding *f = arg;

	f->r = criu_find(&f->op->images.criu, &f->err);
	return NULL;
}

/* Without a thread it is found when it is waited for. Once there is something of the job, a child of ours would look like
 * a member of it (target_members()): only here there is nothing yet. */
static void begin_finding(struct op *op)
{
	struct finding *f = calloc(1, sizeof(*f));

	if (!f)
		return;
	f->op = op;
	if (thread_start(&f->thread, find_in_thread, f) < 0)
		cleanup_free(&f);
	op->restore.finding = f;
}

static int end_finding(struct op *op, struct brumate_error *err)
{
	struct finding *f = take_ptr(&op->restore.finding);

	if (!f)
		return criu_find(&op->images.criu, err);
	pthread_join(f->thread, NULL);
	int r = f->r;
	if (r < 0 && err)
		*err = f->err;
	free(f);
	return r;
}

/* ---- the first step, which begins both ---- */

/* Starts comparing the files with a manifest that is believed; those of another place are fetched first. */
static int verify(struct op *op, struct brumate_error *err)
{
	uint64_t total = manifest_bytes(&op->restore.image.manifest);

	begin_finding(op);
	int r = secret_believe(op, err);
	op->image_bytes = total;
	if (r < 0 || !op->restore.fetched)
		return r < 0 ? r : begin_comparing(op, err);
	progress_done(&op->progress, 0, total);
	return fetched_files(op->restore.fetched, fetch_progress, op, err);
}

static void undo_verify(struct op *op)
{
	stop_comparing(op);
	if (op->restore.finding)
		end_finding(op, NULL);
}

/* CRIU is given nothing that was not compared. */
static int end_comparing(struct op *op, struct brumate_error *err)
{
	struct comparing *c = op->restore.comparing;

	if (!c)
		return 1;
	progress_measure(&op->progress, compared_bytes, c, op->image_bytes);
	pthread_join(c->thread, NULL);
	progress_measure(&op->progress, NULL, NULL, 0);
	op->restore.comparing = NULL;
	int r = c->r;
	if (r == 0)
		progress_phase_at(&op->progress, "verify", c->start_ns,
				  (double)(c->end_ns - c->start_ns) / (double)NS_PER_S);
	else if (err)
		*err = c->err;
	if (r == -ECANCELED)
		progress_check(&op->progress, err);
	free(c);
	return r < 0 ? r : 1;
}

static int take_gpus(struct op *op)
{
	const struct manifest *m = &op->restore.image.manifest;
	struct job_gpu *gpus = calloc(m->n_gpus + 1, sizeof(*gpus));

	if (!gpus)
		return -ENOMEM;
	for (size_t i = 0; i < m->n_gpus; i++) {
		snprintf(gpus[i].uuid, sizeof(gpus[i].uuid), "%s", m->gpus[i].uuid);
		snprintf(gpus[i].name, sizeof(gpus[i].name), "%s", m->gpus[i].name);
		gpus[i].bytes = m->gpus[i].used_bytes;
	}
	free(op->target->gpus);
	op->target->gpus = gpus;
	op->target->n_gpus = m->n_gpus;
	return 0;
}

/* ---- preflight ---- */

static int check_machine(const struct manifest *m, struct brumate_error *err)
{
	struct utsname u;

	if (uname(&u) < 0 || strcmp(u.machine, m->host.machine)) {
		brumate_fail(err, EOPNOTSUPP, "checkpoint of a %s machine, this is a %s",
			     m->host.machine, u.machine);
		return -EOPNOTSUPP;
	}
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	if (m->host.page_bytes && m->host.page_bytes != page_bytes) {
		brumate_fail(err, EOPNOTSUPP,
			     "checkpoint of a kernel with pages of %" PRIu64
			     " KiB, this one has pages of %" PRIu64 " KiB",
			     m->host.page_bytes / 1024, page_bytes / 1024);
		brumate_hint(err, "boot a kernel with the other page size, or restore on a machine "
				  "that has one");
		return -EOPNOTSUPP;
	}
	return 0;
}

static int check_criu(struct op *op, struct brumate_error *err)
{
	int r = end_finding(op, err);

	if (r < 0)
		return r;
	if (op->images.criu.version >= op->restore.image.manifest.criu_version)
		return op->restore.image.manifest.n_gpus && op->gpus.vendor->saved_by_criu
			       ? criu_check_vendor(&op->images.criu, op->gpus.vendor->id, err)
			       : 0;
	brumate_fail(err, EOPNOTSUPP, "checkpoint by CRIU %d, here is the older %d",
		     op->restore.image.manifest.criu_version, op->images.criu.version);
	brumate_hint(err, "install a CRIU at least as new, or name one in BRUMATE_CRIU");
	return -EOPNOTSUPP;
}

/* The driver's libraries are mapped in the saved processes: another version of them cannot take
 * their place. */
static int check_driver(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	auto_free struct broker_info *info = calloc(1, sizeof(*info));
	int r;

	if (!m->n_gpus)
		return 0;
	if (!info)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = gpu_set_take_vendor(&op->gpus, m->job.gpu_vendor, err)) < 0)
		return r;
	op_note_vendor(op);
	if ((r = gpu_set_open(&op->gpus, err)) < 0 ||
	    (r = broker_client_info(&op->gpus.broker, info, err)) < 0)
		return r;
	if (!strcmp(info->device.driver_version, m->driver_version))
		return 0;
	brumate_fail(err, EOPNOTSUPP, "checkpoint with driver %s, here is driver %s",
		     m->driver_version, info->device.driver_version);
	brumate_hint(err,
		     "the saved processes hold the old driver's libraries; restore on a machine "
		     "with driver %s",
		     m->driver_version);
	return -EOPNOTSUPP;
}

static int fail_huge_pages(const struct manifest_huge_pages *need, struct brumate_error *err)
{
	uint64_t page = need->page_bytes, there = hugetlb_free_bytes(page) / page;
	uint64_t pages = (need->bytes + page - 1) / page;

	brumate_fail(err, ENOSPC,
		     "the job needs %" PRIu64 " huge pages of %" PRIu64 " kB, %" PRIu64
		     " can be had here",
		     pages, page >> 10, there);
	brumate_hint(err,
		     "echo %" PRIu64 " > /sys/kernel/mm/hugepages/hugepages-%" PRIu64
		     "kB/nr_hugepages",
		     hugetlb_pool_pages(page) + pages - there, page >> 10);
	return -ENOSPC;
}

/* CRIU would find out in the middle, and not say it. */
static int check_huge_pages(const struct manifest *m, struct brumate_error *err)
{
	for (size_t i = 0; i < m->n_huge_pages; i++)
		if (hugetlb_free_bytes(m->huge_pages[i].page_bytes) < m->huge_pages[i].bytes)
			return fail_huge_pages(&m->huge_pages[i], err);
	return 0;
}

/* By a process or a thread, or by a group that has outlived its first process. */
static bool pid_is_taken(pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d", pid);
	return access(path, F_OK) == 0 || (pid > 1 && (kill(-pid, 0) == 0 || errno == EPERM));
}

static bool is_own_thread(pid_t tid)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/self/task/%d", tid);
	return tid != getpid() && access(path, F_OK) == 0;
}

/* Whether it is taken for a moment only: by a process that has ended and has yet to be reaped, a thread or a helper of
 * this program (a CRIU that is ending), or the keeper, which ends once it holds nothing. */
static bool gives_pid_back(const struct op *op, pid_t pid)
{
	const struct vault *v = op->data.vault;
	struct proc_info info;

	if ((v && v->keeper.pid == pid) || is_own_thread(pid))
		return true;
	return proc_read(&info, pid, NULL) < 0 || info.state == 'Z' || info.state == 'X' ||
	       info.ppid == getpid();
}

/* Nothing tells when a number is free again. */
static bool pid_stays_taken(struct op *op, pid_t pid, uint64_t deadline_ns)
{
	bool taken;

	while ((taken = pid_is_taken(pid)) && gives_pid_back(op, pid) &&
	       clock_now_ns() < deadline_ns)
		nanosleep(&(struct timespec){ .tv_nsec = 2 * NS_PER_MS }, NULL);
	return taken;
}

/* A namespace takes a capability that only root has. */
static bool may_have_namespace(void)
{
	return geteuid() == 0 ||
	       prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_SYS_ADMIN, 0, 0) == 1;
}

static int check_may_have_namespace(const char *why, struct brumate_error *err)
{
	if (may_have_namespace())
		return 0;
	brumate_fail(err, EEXIST, "%s, and only root can restore a job in a new pid namespace",
		     why);
	brumate_hint(err, "try again once that process has ended, or on another machine");
	return -EEXIST;
}

/* The processes of a copy have the id of another job in their environment, and agents listen by it. In a namespace of
 * their own they do so apart from that job. */
static int find_start(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	const char *id = *m->job.started_as ? m->job.started_as : m->job.id;
	struct target *target = op->target;

	if (!job_id_is_valid(id))
		return brumate_fail(err, EBADMSG, "checkpoint %s: \"%s\" is no id of a job", m->id,
				    id);
	snprintf(target->started_as, sizeof(target->started_as), "%s",
		 strcmp(id, target->id) ? id : "");
	if (!*target->started_as)
		return 0;
	op->restore.use_pid_ns = may_have_namespace();
	return op->restore.use_pid_ns ? 0 : job_check_agent_place(target, err);
}

static int choose_namespace(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	uint64_t deadline_ns = deadline_in_ms(PID_TIMEOUT_MS);

	for (size_t i = 0; i < m->n_processes && !op->restore.use_pid_ns; i++) {
		if (op->data.vault && op->data.vault->keeper.pid == m->processes[i].pid)
			op_clear_vault(op); /* a restore has no use for what it holds */
		if (!pid_stays_taken(op, m->processes[i].pid, deadline_ns))
			continue;
		char why[64];

		snprintf(why, sizeof(why), "process id %d of the checkpoint is in use",
			 m->processes[i].pid);
		int r = check_may_have_namespace(why, err);
		if (r < 0)
			return r;
		op->restore.use_pid_ns = true;
		progress_note(&op->progress,
			      "process id %d is taken: restored in a new pid namespace",
			      m->processes[i].pid);
	}
	return 0;
}

static int check_restore(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	int r;

	if (!m->n_processes)
		return brumate_fail(err, EBADMSG, "checkpoint %s: no processes", m->id);
	if ((r = together_check(op, err)) < 0 || (r = check_machine(m, err)) < 0 ||
	    (r = rights_check_users(op, err)) < 0 || (r = check_huge_pages(m, err)) < 0 ||
	    (r = check_driver(op, err)) < 0)
		return r;
	if (take_gpus(op) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if ((r = placement_map(op->target, &op->gpus, &op->progress, err)) < 0 ||
	    (r = placement_wait_room(op, err)) < 0)
		return r;
	op->data.pairs = op->gpus.pairs;
	op->data.n_pairs = op->gpus.n_pairs;
	/* The CRIU that tells its version has ended by then: its process ids may be some of the checkpoint. */
	if ((r = check_criu(op, err)) < 0 || (r = find_start(op, err)) < 0)
		return r;
	return choose_namespace(op, err);
}

/* ---- CRIU ---- */

/* The log is appended to: created if it is gone, never truncated. */
static int make_log(struct op *op, struct brumate_error *err)
{
	if (!op->target->log)
		return 0;
	auto_close int fd = job_log_open(op->target, true, err);
	if (fd < 0)
		return fd;
	off_t end = lseek(fd, 0, SEEK_END);
	op->restore.log_bytes = end > 0 ? (uint64_t)end : 0; /* none is a seekable file */
	return 0;
}

static int start_init(struct op *op, struct brumate_error *err)
{
	auto_free char *status = path_format("%s/%s", op->target->dir, JOB_NAMESPACE_STATUS);
	auto_free char *dir = job_agent_dir(op->target), *path = job_agent_place(op->target);
	auto_free char *parent = path_format("%s/agents", path_runtime_dir());
	const struct pidns_place place = { dir, parent, path };

	if (!status || !dir || !path || !parent)
		return brumate_fail(err, ENOMEM, "%m");
	unlink(status); /* an earlier life noted the end of the same number */
	return pidns_start(&op->target->init, op->restore.image.manifest.processes[0].pid, status,
			   *op->target->started_as ? &place : NULL, err);
}

static int start_namespace(struct op *op, struct brumate_error *err)
{
	int r;

	if (!op->restore.use_pid_ns && !*op->target->started_as)
		return 0;
	if (!op->restore.use_pid_ns) {
		r = target_save(op->target, err); /* for a removal of the job */
		return r < 0 ? r : job_take_agent_place(op->target, err);
	}
	r = start_init(op, err);
	if (r < 0)
		return r;
	progress_note(&op->progress,
		      "process %d (%s) is the init of that namespace: if it ends, so does the job",
		      op->target->init.pid, PIDNS_INIT_PROGRAM);
	return target_save(op->target, err);
}

/* A tree that a user's CRIU builds has CRIU's capabilities until it is about to run, and so the kernel lets nobody without
 * them write to its memory before. By then each member is to be the user's, and nothing more. */
static int fill_memory(struct op *op, enum criu_event event, struct brumate_error *err)
{
	const struct criu_user *user = op->images.user.uid ? &op->images.user : NULL;
	const enum criu_event when =
		op->images.criu.unprivileged || user ? CRIU_EVENT_RESUMING : CRIU_EVENT_RESTORED;

	int r = event == CRIU_EVENT_RESUMING
			? cpu_memory_image_threads(op->images.cpu_memory, &op->progress, err)
			: 0;
	if (r < 0 || event != when)
		return r;
	r = user ? rights_check(op, err) : 0;
	return r < 0 ? r
		     : cpu_memory_image_fill(&op->restore.image, op->target->root, user,
					     &op->progress, err);
}

/* Recorded before it runs, so that a shim that takes over finds it. */
static int on_event(void *arg, enum criu_event event, struct proc_id root,
		    struct brumate_error *err)
{
	struct op *op = arg;

	if (event != CRIU_EVENT_RESTORED) {
		int filled = event == CRIU_EVENT_RESUMING ? fault_point("restore.about-to-run") : 0;

		if (filled < 0)
			return brumate_fail(err, -filled, "injected before the job runs: %m");
		filled = fill_memory(op, event, err);
		if (filled == 0 && event == CRIU_EVENT_RESUMING) {
			op_connections_keep(op);
			filled = op_attributes_give(op, err);
		}
		if (filled == 0 && event == CRIU_EVENT_RESUMING)
			filled = op_locks_check(op, err);
		return filled == 0 && event == CRIU_EVENT_RESUMING ? together_meet(op, "built", err)
								   : filled;
	}
	int r = fault_point("restore.built");
	if (r < 0)
		return brumate_fail(err, -r, "injected while nobody knows of the job: %m");
	op->target->root = root;
	op->target->command = reaper_find_command(op->target->root);
	target_set_place(op->target);
	op->restore.root_restored = true;
	fault_register_peer("job", target_command(op->target).pid);
	fault_register_peer("reaper", op->target->root.pid);
	if ((r = target_save(op->target, err)) < 0)
		return r;
	r = fault_point("restore.restored");
	return r < 0 ? brumate_fail(err, -r, "injected while CRIU holds the job: %m")
		     : fill_memory(op, event, err);
}

static void on_spawned(void *arg, struct proc_id criu)
{
	struct op *op = arg;

	op->target->op.criu = criu;
	target_save(op->target, NULL);
	fault_point("restore.spawned");
}

static int call_criu(struct op *op, struct criu_options *options, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	struct criu_result result = { 0 };

	options->images_dir_fd = op->images.dir_fd;
	options->shell_job = m->shell_job;
	options->tcp.close = op->request->tcp_close || m->tcp_close;
	options->timeout_s = CRIU_TIMEOUT_S;
	int r = rights_for_restore(op, &options->user, err);
	if (r == 0)
		r = cpu_memory_image_open(&op->images.cpu_memory, op->gpus.vendor, op->gpus.pairs,
					  op->gpus.n_pairs, options, err);
	if (r == 0)
		r = op_attributes_ask(op, err);
	if (r < 0)
		return r;
	r = criu_restore(&op->images.criu, options, &result, err);
	cpu_memory_image_close(op->images.cpu_memory);
	op->images.cpu_memory = NULL;
	return r;
}

int step_run_criu(struct op *op, struct criu_options *own, struct brumate_error *err)
{
	struct criu_inherit *inherits = NULL;
	int r = externals_for_restore(op, &inherits, &own->n_inherits, err);

	if (r < 0)
		return r;
	/* What is copied for it is put where a restore puts it, for those who see all of the machine. */
	if (own->is_apart)
		op->target->init = PROC_ID_NONE;
	if ((r = programs_for_restore(op, &inherits, &own->n_inherits, err)) == 0 &&
	    (r = job_files_give(op, &inherits, &own->n_inherits, err)) == 0 &&
	    (r = op_connections_give(op, own->is_apart, &inherits, &own->n_inherits, err)) == 0 &&
	    (r = op_listeners_give(op, &inherits, &own->n_inherits, err)) == 0) {
		op->touched = true;
		own->inherits = inherits;
		r = call_criu(op, own, err);
	}
	externals_close(inherits, own->n_inherits);
	return r;
}

static int try_processes(struct op *op, int work_fd, struct brumate_error *err)
{
	int r = start_namespace(op, err);
	struct criu_options options = {
		.work_dir_fd = work_fd,
		.log_name = "restore.log",
		.enter_ns_of = op->target->init.pid,
		.on_spawned = on_spawned,
		.on_event = on_event,
		.on_tick = step_tick,
		.on_stuck = step_tell_stuck,
		.arg = op,
	};

	if (r == 0)
		r = step_run_criu(op, &options, err);
	op->target->op.criu = PROC_ID_NONE;
	/* While a user's CRIU builds it, the kernel does not show its user what the reaper is. */
	if (r == 0 && !op->target->command.pid)
		op->target->command = reaper_find_command(op->target->root);
	/* Before the driver is asked: recover_restore() reads it. */
	return r < 0 ? r : target_save(op->target, err);
}

/* The first id of the images that another process keeps, also as a thread's; 0: none. Images that cannot be read are
 * reported by CRIU. */
static pid_t find_taken(struct op *op)
{
	auto_(criu_image_tree_fini) struct criu_image_tree tree = CRIU_IMAGE_TREE_EMPTY;
	uint64_t deadline_ns = deadline_in_ms(PID_TIMEOUT_MS);

	criu_image_tree_read(&tree, op->images.dir_fd);
	for (size_t i = 0; i < tree.n; i++)
		for (size_t k = 0; k < tree.items[i].n_threads; k++)
			if (pid_stays_taken(op, tree.items[i].threads[k], deadline_ns))
				return tree.items[i].threads[k];
	return 0;
}

/* An id may be taken between the look at it and its use, by a process that is gone again at the next try. */
static int try_with_their_ids(struct op *op, int work_fd, struct brumate_error *err)
{
	for (int n = 1;; n++) {
		int r = try_processes(op, work_fd, err);

		if (r != -EEXIST || op->restore.use_pid_ns)
			return r;
		fault_point("restore.taken");
		pid_t pid = find_taken(op);
		if (pid)
			return brumate_fail(err, EEXIST,
					    "process id %d of the checkpoint is in use", pid);
		if (n == PID_TRIES)
			return r;
		*err = BRUMATE_ERROR_NONE;
	}
}

/* The job's files are made as they were: nobody uses them yet. */
static int restore_files(struct op *op, struct brumate_error *err)
{
	int r = op->images.dir_fd = secret_images_from(op, err);

	if (r < 0)
		return r;
	if ((r = needs_check(op, op->images.dir_fd, err)) == 0)
		return (r = op_locks_load(op, err)) < 0 ? r : job_files_restore(op, err);
	/* Images that ask for more than they may are the worse news. */
	struct brumate_error why = *err;
	int worse = rights_check_images(op->images.dir_fd, &op->restore.image.manifest, false, err);
	if (worse < 0)
		return worse;
	*err = why;
	return r;
}

/* With the process ids that they had, or else in a namespace of their own. */
static int try_all(struct op *op, int work_fd, struct brumate_error *err)
{
	int r = try_with_their_ids(op, work_fd, err);
	if (r != -EEXIST || op->restore.use_pid_ns)
		return r;

	const struct brumate_error why = *err;
	if ((r = check_may_have_namespace(why.text, err)) < 0)
		return r;
	op->restore.use_pid_ns = true;
	progress_note(&op->progress, "%s: restored in a new pid namespace", err->text);
	*err = BRUMATE_ERROR_NONE;
	return try_processes(op, work_fd, err);
}

static int restore_processes(struct op *op, struct brumate_error *err)
{
	struct criu_user *user;
	int r = make_log(op, err);

	/* Agents that were saved listen again where they did. */
	if (r < 0 || (r = job_make_agent_dir(op->target, err)) < 0 ||
	    (r = park_hold(&op->data, err)) < 0)
		return r;
	if ((r = addresses_check(op, err)) < 0 || (r = op_attributes_load(op, err)) < 0)
		return r;
	if ((r = rights_check_images(op->images.dir_fd, &op->restore.image.manifest,
				     op->request->force, err)) < 0 ||
	    (r = rights_for_restore(op, &user, err)) < 0 ||
	    (user && (r = rights_copy_images(op, err)) < 0))
		return r;
	auto_close int work_fd = target_open_criu_dir(op->target, err);
	if (work_fd < 0)
		return work_fd;
	r = try_all(op, work_fd, err);
	op_connections_drop(op);
	return r;
}

/* The restored processes. Where the root has ended, the others are our children. */
static struct proc_members restored_members(const struct target *target)
{
	struct proc_members m = target_members(target);

	if (!m.reaper.pid)
		proc_identify(&m.reaper, getpid(), NULL);
	return m;
}

/* Off the GPU before the kill: SIGKILL of a process that the driver restored is only safe then. */
static void undo_processes(struct op *op)
{
	struct target *target = op->target;

	if (op->restore.root_restored) {
		const struct proc_members members = restored_members(target);

		step_discard_gpus(op);
		if (proc_members_kill(&members, deadline_in_ms(KILL_TIMEOUT_MS)) < 0)
			log_error("the half restored job could not be ended: job=%s pid=%d",
				  target->id, target->root.pid);
	}
	if (target->init.pid)
		proc_signal(target->init, SIGKILL);
	target->root = PROC_ID_NONE;
	target->command = PROC_ID_NONE;
	target->init = PROC_ID_NONE;
	op->restore.root_restored = false;
}

/* ---- the driver ---- */

static size_t wanted_gpu_processes(const struct manifest *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->n_processes; i++)
		n += m->processes[i].gpu;
	return n;
}

/* Whether a process of the checkpoint has ended since CRIU let it run: by a signal, a timer of its own, or a sibling's doing. */
static bool has_ended_since(const struct op *op, pid_t inner_pid)
{
	for (size_t i = 0; i < op->tree.n; i++)
		if (op->tree.items[i].inner_pid == inner_pid)
			return op->tree.items[i].state == 'Z' || op->tree.items[i].ends;
	return true;
}

/* Members that have ended are left out, as if they had ended later. */
static size_t count_ended(struct op *op)
{
	const struct manifest *m = &op->restore.image.manifest;
	size_t n = 0;

	for (size_t i = 0; i < m->n_processes; i++) {
		if (!m->processes[i].gpu || !has_ended_since(op, m->processes[i].pid))
			continue;
		progress_note(&op->progress,
			      "process %d (%s) has ended since it was restored, before its GPU "
			      "state was",
			      m->processes[i].pid, m->processes[i].comm);
		n++;
	}
	return n;
}

/* The root ends with the last of them. Looks again where one ends meanwhile. */
static int find_restored_gpus(struct op *op, struct brumate_error *err)
{
	int r = -ESRCH;

	for (int tries = 0; r == -ESRCH && tries < FIND_TRIES; tries++) {
		*err = BRUMATE_ERROR_NONE;
		r = op_find_gpus(op, err);
		if (r == -ESRCH && target_ends_now(op->target)) {
			*err = BRUMATE_ERROR_NONE;
			proc_tree_fini(&op->tree);
			op->gpus.n = 0;
			return 0;
		}
	}
	return r;
}

static int gpu_restore(struct op *op, struct brumate_error *err)
{
	size_t wanted = wanted_gpu_processes(&op->restore.image.manifest);
	int r;

	if (!wanted)
		return 1;
	if ((r = find_restored_gpus(op, err)) < 0)
		return r;
	if (op->gpus.n != wanted && op->gpus.n + count_ended(op) != wanted)
		return brumate_fail(err, EIO,
				    "%zu processes have GPU state, the checkpoint has %zu",
				    op->gpus.n, wanted);
	if (!op->gpus.n)
		return 1;
	for (size_t i = 0; i < op->gpus.n && !op->gpus.vendor->saved_by_criu; i++)
		if (op->gpus.items[i].dev.state != DEV_STATE_CHECKPOINTED)
			return brumate_fail(
				err, EIO, "process %d: its GPU state is %s, expected checkpointed",
				op->gpus.items[i].id.pid,
				dev_state_name(op->gpus.items[i].dev.state));
	return gpu_set_act(&op->gpus, DEV_RESTORE, DEV_STATE_LOCKED, GPU_SET_DRIVER_TIMEOUT_MS,
			   err);
}

/* ---- the data ---- */

/* Starts loading the image's device memory into a host copy, and filling device memory from that. */
static int load_device_image(struct op *op, struct brumate_error *err)
{
	const struct datapath_source source = device_image_source(&op->restore.device);
	struct vault *v = op->data.vault;

	if (!v)
		return 1;
	op_clear_vault(op);
	int r = device_image_open(&op->restore.device, &op->restore.image, v, err);
	if (r == 0 && v->n_pieces)
		r = move_start_in(&op->data, &source, err);
	return r < 0 ? r : 1; /* its duration is reported by the step that waits for it */
}

/* Only the restored processes tell whether they have agents; of those that have none nothing is to be
 * said, they had none before. */
static int find_agents(struct op *op, struct brumate_error *err)
{
	op->target->data_path = JOB_DATA_BROKER;
	op->data.uses_agents = true;
	int r = op_find_agents(op, false, err);
	if (r < 0)
		return r;
	if (!op->data.n_agents)
		op->target->data_path = JOB_DATA_DRIVER;
	op->data.uses_agents = op->data.n_agents > 0;
	r = park_look(&op->data, err);
	return r < 0 ? r : device_image_assign(&op->data, err);
}

static int map_early(struct op *op, struct brumate_error *err)
{
	int r = find_agents(op, err);

	if (r < 0 || !op->data.n_agents)
		return r < 0 ? r : 1;
	return step_map_early(op, err);
}

/* All that may fail has been done. */
static int agree(struct op *op, struct brumate_error *err)
{
	int r = together_decide(op, "filled", err);

	if (r == 0)
		together_let_go(op);
	return r < 0 || together_is_wanted(op) ? r : 1;
}

static const struct step restore_steps[] = {
	{ "verify", "the image to be read", verify, undo_verify },
	{ "preflight", "free device memory", check_restore, NULL },
	{ "load", "the store", load_device_image, step_undo_copy },
	{ "compare", "the image to be read and compared", end_comparing, NULL },
	{ "meet", "the other members of the set", together_begin, NULL },
	{ "files", "the job's files to be as they were", restore_files, job_files_undo },
	{ "criu", "CRIU to bring the processes back", restore_processes, undo_processes },
	{ "continue", "nothing", step_continue_restored, NULL },
	{ "gpu-restore", "host memory to reach device memory", gpu_restore, NULL },
	{ "gpu-unlock", "the driver", step_gpu_unlock, NULL },
	{ "map-ahead", "device memory to be filled", map_early, NULL },
	{ "data-in", "device memory to be filled", step_data, step_undo_copy },
	{ "map", "the job's agents", step_map, NULL },
	{ "agree", "the other members of the set", agree, NULL },
	{ "open", "the job's agents", step_open, NULL },
	{ "continue-others", "the processes that were stopped", step_continue_others, NULL },
};

const struct step *restore_plan(size_t *ret_n)
{
	*ret_n = sizeof(restore_steps) / sizeof(restore_steps[0]);
	return restore_steps;
}

/* What the next checkpoint comes after: this one, all that this record has seen, and, where the record is new, those that
 * were made of the job in the same store. */
static void follow_sequence(struct op *op)
{
	const struct store_image *image = &op->restore.image;
	const char *slash = strrchr(image->path, '/');
	struct target *target = op->target;

	if (!target->sequence && !op->restore.fetched && slash) {
		auto_free char *dir = strndup(image->path, (size_t)(slash - image->path));

		target->sequence = dir ? store_newest_sequence(dir, target->id) : 0;
	}
	if (manifest_sequence(&image->manifest) > target->sequence)
		target->sequence = manifest_sequence(&image->manifest);
}

static int begin(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;

	target->op = (struct job_op){ .before = target->state };
	free(take_ptr(&target->stopped));
	target->n_stopped = 0;
	follow_sequence(op);
	snprintf(target->op.kind, sizeof(target->op.kind), "restore");
	snprintf(target->op.image_path, sizeof(target->op.image_path), "%s",
		 op->restore.image.path);
	return target_set_state(target, JOB_RESTORING, err);
}

/* A damaged image is said to be one, however long that took. */
static void say_if_late(const struct op *op, struct brumate_error *err)
{
	const enum exit_code code = brumate_exit_code(err);

	if (progress_left_ms(&op->progress, 1) || (code != EXIT_TIMEOUT && code != EXIT_FAILED))
		return;
	progress_say_late(&op->progress, err);
	brumate_error_exit(err, EXIT_TIMEOUT);
	brumate_hint(err, "a longer --timeout gives it more time; the job stays %s",
		     job_state_name(target_state_after_restore(op->target)));
}

/* The job is what it was before. */
static void go_back(struct op *op, const struct brumate_error *why)
{
	struct target *target = op->target;
	enum job_state state = target_state_after_restore(target);

	op_clear_vault(op);
	target->op = (struct job_op){ 0 };
	snprintf(target->message, sizeof(target->message), "restore: %s", why->text);
	target_set_state(target, state, NULL);
}

int engine_restore(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	size_t n;
	const struct step *steps = restore_plan(&n);
	int r = begin(op, err);

	if (r == 0)
		r = plan_run(steps, n, op, err);
	/* The name goes away with the image. After a failure it stays where the record was made for it. */
	if ((r == 0 || target->op.before == JOB_CREATED) &&
	    target_name_checkpoint(target, op->restore.image.manifest.id, op->restore.image.path) <
		    0)
		log_warn("the record does not name the checkpoint it came from: job=%s",
			 target->id);
	fetched_close(take_ptr(
		&op->restore.fetched)); /* before the record says that nothing is under way */
	if (r < 0) {
		say_if_late(op, err);
		go_back(op, err);
		if (r != -ESRCH)
			return r;
		err->code = EIO; /* what has ended was made of the job: it is still there */
		return -EIO;
	}
	job_files_settle(op);
	if (!op->data.n_agents) /* the process that was to have it has ended */
		op_clear_vault(op);
	programs_sweep(); /* what earlier jobs had, and this one before it was saved */
	target->op = (struct job_op){ 0 };
	target->restored = true;
	target->exit_code = JOB_EXIT_UNKNOWN;
	op_listeners_drop(op);
	target->message[0] = '\0';
	engine_done(op, JOB_RUNNING);
	return 0;
}
