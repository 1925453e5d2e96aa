// SPDX-License-Identifier: MIT
/* The use of the record, by the main thread or by an operation, and how the end of the job gets into it. */
#include "shim/shim.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/agent.h"
#include "client/beside.h"

enum { ENDING_MS = 300, ENDING_MOST_MS = 10000, HANG_UP_MS = 200 };

void shim_wake(struct shim *s)
{
	loop_wake(s->loop);
}

void shim_life_begins(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	s->exits.n = 0;
	if (s->life_fds[0] < 0 && pipe2(s->life_fds, O_CLOEXEC) < 0)
		s->life_fds[0] = s->life_fds[1] = -1; /* Wait then replies at once */
	pthread_mutex_unlock(&s->lock);
}

static void life_ends(struct shim *s)
{
	if (s->life_fds[0] < 0)
		return;
	close(s->life_fds[1]);
	close(s->life_fds[0]);
	s->life_fds[0] = s->life_fds[1] = -1;
}

static bool is_over(enum job_state state)
{
	return state == JOB_EXITED || state == JOB_LOST || state == JOB_CHECKPOINTED;
}

static const struct shim_exit *find_exit(const struct shim *s, pid_t pid)
{
	const struct shim_exits *all = &s->exits;
	size_t n = all->n < SHIM_EXITS ? all->n : SHIM_EXITS;

	for (size_t i = 1; i <= n; i++) {
		const struct shim_exit *e = &all->ring[(all->n - i) % SHIM_EXITS];

		if (e->pid == pid)
			return e;
	}
	return NULL;
}

/* The oldest process that the job's own command has left to us, or to the init of its namespace. */
static bool find_orphan(const struct job *job, struct proc_id *ret)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct proc_members members = { .reaper = job->init };
	const struct proc_info *oldest = NULL;

	if (!members.reaper.pid && proc_identify(&members.reaper, getpid(), NULL) < 0)
		return false;
	proc_members_read(&tree, &members, NULL);
	for (size_t i = 0; i < tree.n; i++) {
		const struct proc_info *info = &tree.items[i];

		if (info->state != 'Z' && proc_is_orphan(&members, info) &&
		    (!oldest || info->id.start_ticks < oldest->id.start_ticks))
			oldest = info;
	}
	if (oldest)
		*ret = oldest->id;
	return oldest;
}

/* A command that leaves processes behind, as a daemon or a launcher does, is not the end of its job. */
static bool go_on_with_orphan(struct shim *s, const struct shim_exit *e)
{
	struct job *job = &s->job;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct proc_id orphan;

	if (!find_orphan(job, &orphan))
		return false;
	if (!s->exits.command_ended)
		s->exits.command_code = e ? e->code : JOB_EXIT_UNKNOWN;
	s->exits.command_ended = true;
	job->root = orphan;
	job->command = PROC_ID_NONE;
	log_info("the command of job %s has ended, and left processes: exit_code=%d pid=%d",
		 job->id, s->exits.command_code, orphan.pid);
	if (job_save(job, &err) < 0)
		log_error("job %s: reason=\"%s\"", job->id, err.text);
	shim_wake(s);
	return true;
}

/* The caller has the lock. */
static void settle(struct shim *s)
{
	struct job *job = &s->job;

	if (s->busy)
		return;
	if (!is_over(job->state) && job->state != JOB_CREATED && job_has_ended(job)) {
		const struct shim_exit *e = find_exit(s, job->root.pid);

		if (!e && !proc_is_gone(job->root))
			return; /* a zombie; when it is reaped, shim_note_exit() gets its status */
		if (go_on_with_orphan(s, e))
			return;
		job->exit_code = s->exits.command_ended ? s->exits.command_code
				 : e			? e->code
							: JOB_EXIT_UNKNOWN;
		s->exits.command_ended = false;
		job->root = PROC_ID_NONE;
		job->command = PROC_ID_NONE;
		job->init = PROC_ID_NONE;
		job_set_state(job, job->exit_code != JOB_EXIT_UNKNOWN ? JOB_EXITED : JOB_LOST,
			      NULL);
		log_info("job %s ended: exit_code=%d", job->id, job->exit_code);
	}
	if (is_over(job->state))
		life_ends(s);
}

void shim_settle(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	settle(s);
	pthread_mutex_unlock(&s->lock);
}

bool shim_knows_exit(struct shim *s, pid_t pid)
{
	pthread_mutex_lock(&s->lock);
	const bool knows = find_exit(s, pid);
	pthread_mutex_unlock(&s->lock);
	return knows;
}

void shim_note_exit(struct shim *s, pid_t pid, int code)
{
	pthread_mutex_lock(&s->lock);
	s->exits.ring[s->exits.n++ % SHIM_EXITS] = (struct shim_exit){ pid, code };
	/* How another process ended, such as the init of a namespace, says nothing of the root. */
	if (pid == s->job.root.pid)
		settle(s);
	pthread_mutex_unlock(&s->lock);
}

/* Says in which state the job is, as the one in which it would have to be is another, and what is possible in that. */
static int fail_for_state(const struct job *job, struct brumate_error *err)
{
	const bool saved = job->checkpoint;

	if (job->state == JOB_EXITED)
		brumate_fail(err, EBUSY, "job %s has exited", job->id);
	else
		brumate_fail(err, EBUSY, "job %s is %s", job->id, job_state_name(job->state));
	if (job->state == JOB_SUSPENDED)
		brumate_hint(err, "`brumate resume %s` puts it back on its GPUs", job->id);
	else if (saved && (job->state == JOB_CHECKPOINTED || job_has_ended(job)))
		brumate_hint(err, "`brumate restore %s` brings it back from its latest checkpoint",
			     job->id);
	return -EBUSY;
}

/* The caller has the lock. */
static int begin_locked(struct shim *s, const char *kind, unsigned states,
			struct brumate_error *err)
{
	int r = 0;

	if (s->busy) {
		r = brumate_fail(err, EBUSY, "job %s: a %s is in progress", s->job.id, s->busy);
		brumate_hint(err, "wait for it, or cancel it with Ctrl-C where it was started");
	} else if (s->held.unknown) {
		r = brumate_fail(err, EBUSY, "job %s: its saved memory cannot be fetched yet%s%s",
				 s->job.id, s->held.why.text[0] ? ": " : "", s->held.why.text);
		if (s->held.why.code == EBADMSG)
			brumate_hint(err, "if that file cannot be repaired: brumate kill %s",
				     s->job.id);
		else
			brumate_hint(err, "that is tried again and again; see %s/shim.log",
				     s->job.dir);
	} else if (states && !(states & 1u << s->job.state)) {
		r = fail_for_state(&s->job, err);
	} else {
		s->busy = kind;
		s->ending = false;
	}
	return r;
}

int shim_begin(struct shim *s, const char *kind, unsigned states, struct brumate_error *err)
{
	const uint64_t soon_ns = deadline_in_ms(ENDING_MS),
		       late_ns = deadline_in_ms(ENDING_MOST_MS);

	pthread_mutex_lock(&s->lock);
	while (s->busy && deadline_left_ms(s->ending ? late_ns : soon_ns)) {
		const struct timespec until = deadline_timespec(deadline_in_ms(ENDING_MS));

		pthread_cond_timedwait(&s->freed, &s->lock, &until);
	}
	int r = begin_locked(s, kind, states, err);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int shim_begin_within(struct shim *s, const char *kind, unsigned states, uint32_t wait_ms,
		      struct progress *progress, struct brumate_error *err)
{
	const uint64_t until_ns = deadline_in_ms(wait_ms);
	int r = 0;

	pthread_mutex_lock(&s->lock);
	while (s->busy && !s->left && deadline_left_ms(until_ns) && r == 0) {
		const uint64_t look_ns = deadline_in_ms(HANG_UP_MS);
		const struct timespec until =
			deadline_timespec(look_ns < until_ns ? look_ns : until_ns);

		pthread_cond_timedwait(&s->freed, &s->lock, &until);
		pthread_mutex_unlock(&s->lock); /* it may ask the caller */
		r = progress_check(progress, err);
		pthread_mutex_lock(&s->lock);
	}
	if (r == 0)
		r = begin_locked(s, kind, states, err);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int shim_begin_after(struct shim *s, const char *kind, unsigned states,
		     const struct wire_call_context *call, struct brumate_error *err)
{
	bool hung_up = false;

	wire_call_wait(call, true);
	pthread_mutex_lock(&s->lock);
	while (s->busy && !s->left && !hung_up) {
		const struct timespec until = deadline_timespec(deadline_in_ms(HANG_UP_MS));

		pthread_cond_timedwait(&s->freed, &s->lock, &until);
		hung_up = wire_call_is_cancelled(call);
	}
	int r = hung_up ? brumate_fail(err, ECANCELED, "cancelled")
			: begin_locked(s, kind, states, err);
	pthread_mutex_unlock(&s->lock);
	wire_call_wait(call, false);
	return r;
}

int shim_begin_now(struct shim *s, const char *kind, unsigned states, struct brumate_error *err)
{
	pthread_mutex_lock(&s->lock);
	int r = begin_locked(s, kind, states, err);
	pthread_mutex_unlock(&s->lock);
	return r;
}

bool shim_begin_recovery(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	const bool begins = !s->busy && !s->left && mend_is_wanted(s);
	if (begins && s->job.unsaved)
		s->unsaved = job_to_json(&s->job);
	if (begins)
		s->busy = "recovery";
	pthread_mutex_unlock(&s->lock);
	return begins;
}

bool shim_is_stopping(void *shim)
{
	const struct shim *s = shim;

	return s->stopping;
}

void shim_note_progress(void *shim, const struct progress_sample *sample)
{
	struct shim *s = shim;
	json_t *progress = op_progress_to_json(sample);

	pthread_mutex_lock(&s->lock);
	json_decref(s->progress);
	s->progress = progress;
	pthread_mutex_unlock(&s->lock);
}

void shim_end(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	assert(s->busy); /* ended twice, it would be the next one's end */
	s->busy = NULL;
	json_decref(s->progress);
	json_decref(s->unsaved);
	s->progress = s->unsaved = NULL;
	pthread_cond_broadcast(&s->freed);
	/* If nobody has noted yet how the root ended, the main thread settles it when it has reaped the root. */
	if (is_over(s->job.state) || find_exit(s, s->job.root.pid))
		settle(s);
	pthread_mutex_unlock(&s->lock);
	shim_wake(s);
}

void shim_leave(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	s->left = true; /* still busy, so that nobody writes the record */
	life_ends(s);
	pthread_mutex_unlock(&s->lock);
	shim_wake(s);
}

/* The caller has the lock, and no operation is under way. */
static void look_after_vault(struct shim *s)
{
	if (!s->job.root.pid && s->vault.n_pieces)
		vault_clear(&s->vault, &s->job.target);
	/* One that has gone is replaced by mend.c, one that is not needed ends when it is hung up on. */
	if (vault_is_alone(&s->vault))
		keeper_close(&s->vault.keeper);
	else if (!mend_wants_keeper(s))
		keeper_dismiss(&s->vault.keeper);
}

void shim_look(struct shim *s)
{
	const struct job *job = &s->job;
	struct shim_view *v = &s->view;

	pthread_mutex_lock(&s->lock);
	if (s->left || s->busy) {
		v->use = s->left ? SHIM_LEFT : SHIM_BUSY;
		v->keeper_fd = -1;
		pthread_mutex_unlock(&s->lock);
		return;
	}
	look_after_vault(s);
	*v = (struct shim_view){
		.use = SHIM_FREE,
		.members = job_members(job),
		.state = job->state,
		.data_path = job->data_path,
		.gpu_kind = job->gpu_kind,
		.unsaved = job->unsaved,
		.wakes = job_wakes(job),
		.listens = job->state == JOB_CHECKPOINTED && *job->ports,
		.mends = mend_is_wanted(s),
		.every_ms = job->schedule.every_ms,
		.next_ms = job->schedule.next_ms,
		.spare_bytes = vault_spare_bytes(&s->vault),
		.kept_bytes = vault_baseline_bytes(&s->vault),
		.keeper_fd = s->vault.keeper.fd,
	};
	if (v->spare_bytes)
		v->kept_bytes = v->spare_bytes;
	pthread_mutex_unlock(&s->lock);
}

int shim_life_fd(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	int fd = s->life_fds[0] < 0 ? -1 : fcntl(s->life_fds[0], F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&s->lock);
	return fd;
}

int shim_job_json(json_t **ret, struct shim *s, struct brumate_error *err)
{
	auto_(job_fini) struct job seen = JOB_EMPTY;
	json_t *job = NULL;

	/* It is read from disk, as an operation may be using the record in memory; unless it could not be written, and
	 * nobody changes it. */
	pthread_mutex_lock(&s->lock);
	if (s->busy ? s->unsaved != NULL : s->job.unsaved != 0)
		job = s->busy ? json_copy(s->unsaved) : job_to_json(&s->job);
	pthread_mutex_unlock(&s->lock);
	int r = job ? 0 : job_load(&seen, s->job.id, err);
	if (r < 0)
		return r;
	if (!job)
		job = job_to_json(&seen);
	pthread_mutex_lock(&s->lock);
	if (job && s->busy)
		json_object_set_new(
			job, "operation",
			json_pack("{s:s,s:O?}", "kind", s->busy, "progress", s->progress));
	pthread_mutex_unlock(&s->lock);
	*ret = job;
	return 0;
}

void shim_prepare_op(struct shim *s, struct op *op, struct request *request,
		     const struct brumate_conf *conf)
{
	op->data.vault = &s->vault;
	op->listeners = &s->listeners;
	op->gpus.pairs = take_ptr(&request->pairs);
	op->gpus.n_pairs = request->n_pairs;
	op->data.keep.spare = conf->spare_copy && s->returns_spare;
	if (conf->lock_timeout_ms && conf->lock_timeout_ms <= UINT32_MAX)
		op->data.lock_timeout_ms = (uint32_t)conf->lock_timeout_ms;
}

void shim_op_init(struct shim *s, struct op *op, const char *kind)
{
	op_init(op, kind, &s->job.target, NULL, NULL);
	op->data.vault = &s->vault;
}

int shim_own_init(struct shim_own *ret, struct shim *s, const char *kind,
		  const struct request *asked, unsigned where, struct brumate_error *err)
{
	const struct progress_caller caller = { s, shim_note_progress, shim_is_stopping };

	ret->request = *asked;
	ret->conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&ret->conf, err);
	request_configure(&ret->request, where, &ret->conf);
	op_init(&ret->op, kind, &s->job.target, &caller, &ret->request);
	shim_prepare_op(s, &ret->op, &ret->request, &ret->conf);
	mend_secure(s);
	return r;
}

void shim_own_fini(struct shim_own *own)
{
	op_fini(&own->op);
	conf_fini(&own->conf);
	request_fini(&own->request);
}

int shim_listen_beside_agents(const struct shim *s, int *fd, const char *name, int type,
			      int backlog)
{
	auto_free char *dir = job_agent_dir(&s->job.target);
	auto_close int dir_fd = dir ? agent_dir_open(dir) : -1;

	if (dir_fd < 0 || (*fd >= 0 && faccessat(dir_fd, name, F_OK, 0) == 0))
		return 0;
	cleanup_close(fd);
	int r = beside_listen(dir_fd, name, type, backlog);
	*fd = r < 0 ? -1 : r;
	return r < 0 ? r : 0;
}
