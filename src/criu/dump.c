// SPDX-License-Identifier: MIT
/* Dumps, in two parts: CRIU comes up beside whatever else there is to do, and then looks at the tree. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "criu/session.h"
#include "process/net-lock.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int ask_for_dump(struct session *s, Criu__Opts *opts, struct criu_fds *fds,
			struct brumate_error *err)
{
	const struct criu_options *o = s->options;
	struct proc_info info;
	int r = heal_prepare(&s->heal, o->root, err);

	if (r >= 0)
		r = proc_read(&info, o->root.pid, err);
	if (r < 0)
		return r;
	/* Making the lock and taking it back costs ten times what the dump of a small job does. */
	s->spares_lock = s->spares_lock && !heal_has_tcp(&s->heal);
	r = session_set_common(opts, o, !s->spares_lock && net_lock_is_possible(), fds, err);
	if (r < 0)
		return r;
	r = criu_fds_take(fds, heal_arm(&s->heal), "the guard of its death", err);
	if (r < 0)
		return r;
	opts->has_pid = true;
	opts->pid = o->enter_ns_of ? info.inner_pid : o->root.pid;
	opts->has_leave_running = true;
	opts->leave_running = o->leave_running;
	opts->has_tcp_established = opts->tcp_established = true;
	opts->external = (char **)o->externals;
	while (o->externals && o->externals[opts->n_external])
		opts->n_external++;
	return 0;
}

static void read_statistics(struct criu_result *result, const struct criu_options *o)
{
	struct criu_image_stats stats;

	if (criu_image_stats_read(&stats, o->work_dir_fd) < 0)
		return;
	result->frozen_seconds = stats.frozen_seconds;
	result->pages_bytes = stats.pages_written * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* CRIU did not end as it should: the tree is made to run on before anything is said about it. */
static int dump_failed(struct session *s, int status, struct brumate_error *err)
{
	if (s->outcome == DIED) {
		auto_close int log_fd = criu_log_open(s->options);
		heal_tree(&s->heal, log_fd);
	} else {
		/* The end of CRIU may have stopped it, although it was let go. */
		heal_continue(&s->heal);
	}
	return s->outcome == UNDECIDED ? status : session_explain(s, status, err);
}

/* A CRIU that comes up by itself, while the tree is what it will. */
static int begin(struct session *s, const struct criu_program *program,
		 const struct criu_options *options, bool may_spare_lock, struct brumate_error *err)
{
	auto_(criu_fds_fini) struct criu_fds fds = { .n = 0 };
	Criu__Opts opts = CRIU__OPTS__INIT;

	*s = SESSION_EMPTY;
	s->options = options;
	s->type = CRIU__REQ_TYPE__DUMP;
	s->spares_lock = may_spare_lock;
	int r = ask_for_dump(s, &opts, &fds, err);
	if (r >= 0)
		r = session_start(s, program, &opts, &fds, err);
	if (r < 0)
		heal_state_fini(&s->heal);
	return r < 0 ? r : 0;
}

static int end(struct session *s, struct brumate_error *err)
{
	int status = session_run(s), r = 0;

	if (s->outcome != SUCCEEDED)
		r = dump_failed(s, status, err);
	heal_state_fini(&s->heal);
	return r;
}

struct criu_dump {
	struct session session;
	struct criu_program program;
	struct criu_options options;
	bool has_run;
};

int criu_dump_start(struct criu_dump **ret, const struct criu_program *program,
		    const struct criu_options *options, struct brumate_error *err)
{
	struct criu_dump *d = calloc(1, sizeof(*d));

	if (!d)
		return brumate_fail(err, ENOMEM, "%m");
	d->program = *program;
	d->options = *options;
	int r = begin(&d->session, &d->program, &d->options, true, err);
	if (r < 0) {
		free(d);
		return r;
	}
	*ret = d;
	return 0;
}

int criu_dump_run(struct criu_dump *d, struct criu_result *ret, struct brumate_error *err)
{
	uint64_t start_ns = clock_now_ns();
	int r = end(&d->session, err);

	if (d->session.must_lock) {
		r = begin(&d->session, &d->program, &d->options, false, err);
		if (r == 0)
			r = end(&d->session, err);
	}
	d->has_run = true;
	if (r < 0)
		return r;

	struct criu_result result = { .seconds = clock_since_s(start_ns) };
	read_statistics(&result, &d->options);
	*ret = result;
	return 0;
}

void criu_dump_free(struct criu_dump *d)
{
	if (d && !d->has_run) {
		session_end(&d->session);
		heal_state_fini(&d->session.heal);
	}
	free(d);
}

int criu_dump(const struct criu_program *program, const struct criu_options *options,
	      struct criu_result *ret, struct brumate_error *err)
{
	auto_(criu_dump_free) struct criu_dump *d = NULL;
	int r = criu_dump_start(&d, program, options, err);

	return r < 0 ? r : criu_dump_run(d, ret, err);
}
